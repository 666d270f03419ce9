package fabric

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/openstack/cloud"
	"fairlead.dev/fairlead/test/cloudtest"
)

var errCrash = errors.New("the controller is killed")

// Nodes join and leave, blocks and pools change, entries are edited by hand, replies and
// requests are lost, and the controller is killed between any two of its steps. In the end
// the cloud has exactly the needed pairs, groups, rules and routes, and all those of others.
func TestAnyInterleaving(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { simulate(t, rand.New(rand.NewPCG(seed, 30))) })
	}
}

type sim struct {
	*world
	rand   *rand.Rand
	router string
	ports  map[string]string   // by machine
	living map[string][]string // blocks by node
	more   bool                // the second pool exists
	kill   int                 // steps until the controller is killed, 0 for never
}

func simulate(t *testing.T, r *rand.Rand) {
	server := cloudtest.New(t)
	network, subnets := server.AddNetwork(t, "nodes", "192.0.2.0/24", "198.51.100.0/24")
	s := &sim{rand: r, ports: map[string]string{}, living: map[string][]string{}}
	s.router = server.Add(t, "routers", cloudtest.AdminProject, cloudtest.Object{"name": "between"})
	s.world = newWorld(t, server, network, "c1", func(c *Config) { c.Router, c.PerBlock = "between", r.IntN(2) == 0 })
	for _, subnet := range subnets {
		s.must(s.cloud.Routers.Connect(t.Context(), s.router, subnet))
	}
	s.must(s.cloud.Routers.AddRoutes(t.Context(), s.router, []cloud.Route{theirRoute()}))
	// Each write of a record is a step at which the controller may be killed.
	s.config.Client = interceptor.NewClient(s.client.(client.WithWatch), interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			if s.dies() {
				return errCrash
			}
			err := c.Patch(ctx, o, p, opts...)
			if err == nil && s.dies() {
				return errCrash
			}
			return err
		},
	})
	for i := range 4 {
		s.ports[name(i)] = s.machine(name(i), address(i), cloudtest.Object{"allowed_address_pairs": []any{cloudtest.Object{"ip_address": "192.0.2.200"}}})
	}
	s.restart()
	for range 40 {
		s.happen()
		s.faulty()
		s.routed()
	}
	s.kill = 0
	s.server.Inject(nil)
	s.restart()
	for range 3 {
		s.run()
	}
	s.check()
	for n := range s.living {
		s.leave(n)
	}
	s.living = map[string][]string{}
	for range 3 {
		s.run()
	}
	s.check()
}

func theirRoute() cloud.Route {
	r, _ := parseRoute(v1alpha1.FabricRoute{Destination: "203.0.113.0/24", NextHop: "192.0.2.250"})
	return r
}

func name(i int) string { return fmt.Sprint("n", i) }

// address returns the address of a node; those with odd numbers are in the second subnet.
func address(i int) string { return fmt.Sprintf("%s.%d", []string{"192.0.2", "198.51.100"}[i%2], 11+i) }

// dies reports whether the controller is killed at this step.
func (s *sim) dies() bool {
	if s.kill == 0 {
		return false
	}
	s.kill--
	return s.kill == 0
}

// happen does one thing in the cluster or in the cloud.
func (s *sim) happen() {
	i := s.rand.IntN(4)
	n := name(i)
	_, lives := s.living[n]
	switch what := s.rand.IntN(8); {
	case what < 3 && !lives:
		if s.client.Get(s.t.Context(), client.ObjectKey{Name: n}, &v1alpha1.NodeNetwork{}) == nil {
			return // the last one of this name still ends
		}
		s.join(n, address(i))
		s.living[n] = []string{}
	case what < 2 && lives:
		s.leave(n)
		delete(s.living, n)
	case what < 5 && lives:
		block := fmt.Sprintf("10.244.%d.%d/26", i, 64*s.rand.IntN(4))
		if at := slices.Index(s.living[n], block); at >= 0 {
			s.living[n] = slices.Delete(s.living[n], at, at+1)
		} else {
			s.living[n] = append(s.living[n], block)
		}
		s.blocks(n, s.living[n]...)
	case what == 5:
		if s.more = !s.more; s.more {
			s.pool("more", "10.246.0.0/16")
		} else {
			s.must(s.client.Delete(s.t.Context(), poolNamed("more")))
		}
	case what == 6: // an edit by hand, of entries of the cluster only
		p, err := s.cloud.Port(s.t.Context(), s.ports[n])
		s.must(err)
		kept := slices.DeleteFunc(p.Pairs, func(x cloud.Pair) bool { return strings.HasPrefix(x.Prefix.String(), "10.24") && s.rand.IntN(2) == 0 })
		_, err = s.cloud.UpdatePort(s.t.Context(), p.ID, 0, cloud.PortChange{Pairs: &kept})
		s.must(err)
	}
}

func poolNamed(name string) *v1alpha1.IPPool {
	p := &v1alpha1.IPPool{}
	p.Name = name
	return p
}

// faulty has the controller work for a while, with faults of the cloud, and perhaps killed.
func (s *sim) faulty() {
	// Of its own and with a lock: a request that was given up may still be served.
	faults, mu := rand.New(rand.NewPCG(s.rand.Uint64(), 30)), sync.Mutex{}
	s.server.Inject(func(method, _ string) cloudtest.Fault {
		mu.Lock()
		defer mu.Unlock()
		if method == "GET" || faults.IntN(6) > 0 {
			return cloudtest.Fault{}
		}
		return cloudtest.Fault{LoseReply: faults.IntN(2) == 0, LoseRequest: faults.IntN(2) == 0}
	})
	defer s.server.Inject(nil)
	if s.rand.IntN(3) == 0 {
		s.kill = 1 + s.rand.IntN(6)
	}
	if s.rand.IntN(3) == 0 {
		_ = s.compare(s.t.Context()) // its errors are repeated by the next
	}
	s.fabric.opened()
	var list v1alpha1.NodeNetworkList
	s.must(s.client.List(s.t.Context(), &list))
	s.rand.Shuffle(len(list.Items), func(i, j int) { list.Items[i], list.Items[j] = list.Items[j], list.Items[i] })
	for _, nn := range list.Items {
		_, err := s.fabric.Reconcile(s.t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&nn)})
		if errors.Is(err, errCrash) {
			s.restart()
			break
		}
	}
	s.kill = 0
	for len(s.fabric.drifted) > 0 {
		<-s.fabric.drifted
	}
}

// routed checks that the router has a route to each prefix that other nodes send to it,
// whatever has failed.
func (s *sim) routed() {
	s.t.Helper()
	r, err := s.cloud.Routers.Router(s.t.Context(), s.router)
	s.must(err)
	var list v1alpha1.NodeNetworkList
	s.must(s.client.List(s.t.Context(), &list))
	for _, nn := range list.Items {
		for _, p := range parse(recordOf(&nn).Routed) {
			leads := func(x cloud.Route) bool {
				return x.Destination.Contains(p.Addr()) && x.Destination.Bits() <= p.Bits() && x.NextHop.String()+"/32" == nn.Spec.Underlay[0]
			}
			if !slices.ContainsFunc(r.Routes, leads) {
				s.t.Errorf("node %s: no route to %v, which is recorded as routed: %v", nn.Name, p, r.Routes)
			}
		}
	}
}

// check compares the cloud with the needs of the living nodes.
func (s *sim) check() {
	s.t.Helper()
	pools := prefixes(v4, v6)
	if s.more {
		pools = append(pools, prefixes("10.246.0.0/16")...)
	}
	wantRoutes := []string{"203.0.113.0/24 192.0.2.250"}
	seen := map[string]bool{}
	for n := range s.living {
		seen[strings.SplitN(s.get(n).Status.Addresses[0], ".", 2)[0]] = true
	}
	for i := range 4 {
		n := name(i)
		blocks, lives := s.living[n]
		want, groups := []string{"192.0.2.200"}, 1
		mine := aggregate(prefixes(blocks...))
		if lives && s.config.PerBlock {
			want = append(want, texts(mine)...)
		} else if lives {
			want = append(want, texts(aggregate(pools))...)
		}
		if lives {
			groups = 2
		}
		s.wantPairs(s.ports[n], want...)
		if got := s.groupsOf(s.ports[n]); got != groups {
			s.t.Errorf("node %s: %d groups, want %d", n, got, groups)
		}
		var routed []string
		if lives && len(seen) == 2 {
			for _, b := range mine {
				wantRoutes = append(wantRoutes, b.String()+" "+address(i))
				routed = append(routed, b.String())
			}
		}
		if lives {
			if diff := cmp.Diff(routed, recordOf(s.get(n)).Routed, cmpopts.EquateEmpty()); diff != "" {
				s.t.Errorf("node %s: routed: %s", n, diff)
			}
		}
	}
	r, err := s.cloud.Routers.Router(s.t.Context(), s.router)
	s.must(err)
	var routes []string
	for _, x := range r.Routes {
		routes = append(routes, x.Destination.String()+" "+x.NextHop.String())
	}
	less := cmpopts.SortSlices(func(a, b string) bool { return a < b })
	if diff := cmp.Diff(wantRoutes, routes, less); diff != "" {
		s.t.Errorf("routes: %s", diff)
	}
	if len(s.living) == 0 {
		return
	}
	if diff := cmp.Diff(texts(aggregate(pools)), s.rules(), less); diff != "" {
		s.t.Errorf("rules: %s", diff)
	}
}
