package fabric

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/openstack/cloud"
	"fairlead.dev/fairlead/test/cloudtest"
)

// twoSubnets is a world with a router between two subnets, and routes of others.
func twoSubnets(t *testing.T, others int) (w *world, router string) {
	t.Helper()
	server := cloudtest.New(t)
	network, subnets := server.AddNetwork(t, "nodes", "192.0.2.0/24", "198.51.100.0/24")
	router = server.Add(t, "routers", cloudtest.AdminProject, cloudtest.Object{"name": "between"})
	w = newWorld(t, server, network, "c1", func(c *Config) { c.Router = "between" })
	for _, s := range subnets {
		w.must(w.cloud.Routers.Connect(t.Context(), router, s))
	}
	var theirs []cloud.Route
	for i := range others {
		r, _ := parseRoute(v1alpha1.FabricRoute{Destination: fmt.Sprintf("203.0.113.%d/32", i), NextHop: "192.0.2.250"})
		theirs = append(theirs, r)
	}
	if others > 0 {
		w.must(w.cloud.Routers.AddRoutes(t.Context(), router, theirs))
	}
	for i, address := range []string{"192.0.2.11", "198.51.100.12"} {
		w.machine(fmt.Sprint("n", i+1), address, nil)
	}
	return w, router
}

func (w *world) wantRouted(node string, want ...string) {
	w.t.Helper()
	if diff := cmp.Diff(want, recordOf(w.get(node)).Routed, cmpopts.EquateEmpty()); diff != "" {
		w.t.Errorf("node %s: routed: %s", node, diff)
	}
}

// A router has room for 30 routes. A node whose routes do not fit has the condition, and
// the router sends nobody to its blocks. Neighbouring blocks need one route.
func TestRouterIsFull(t *testing.T) {
	w, router := twoSubnets(t, 28)
	w.join("n1", "192.0.2.11", "10.244.1.0/26")
	w.join("n2", "198.51.100.12", "10.244.2.0/26", "10.244.2.128/26")
	w.run()
	w.wantReason("n1", ReasonReady)
	w.wantRouted("n1", "10.244.1.0/26")
	w.wantReason("n2", ReasonLimit)
	w.wantRouted("n2")
	if r, err := w.cloud.Routers.Router(t.Context(), router); err != nil || len(r.Routes) != 29 {
		t.Errorf("routes %v, %v; want 28 of others and that of n1", r.Routes, err)
	}
	if len(w.events.Events) != 1 {
		t.Errorf("%d events; want one about the limit", len(w.events.Events))
	}
	w.blocks("n2", "10.244.2.0/26", "10.244.2.64/26")
	w.run()
	w.wantReason("n2", ReasonReady)
	w.wantRouted("n2", "10.244.2.0/25")
	// No room is left for the wider route beside the narrow one: they are exchanged.
	w.blocks("n2", "10.244.2.0/26", "10.244.2.64/26", "10.244.2.128/26", "10.244.2.192/26")
	w.run()
	w.wantReason("n2", ReasonReady)
	w.wantRouted("n2", "10.244.2.0/24")
	// The last node of its subnet goes: no node needs a route.
	w.leave("n2")
	w.run()
	w.run()
	w.wantRouted("n1")
	if r, err := w.cloud.Routers.Router(t.Context(), router); err != nil || len(r.Routes) != 28 {
		t.Errorf("routes %v, %v; want those of others", r.Routes, err)
	}
}

// A route of another program serves as well and stays. It was compared as missing every
// five minutes (own review).
func TestRouteOfAnother(t *testing.T) {
	w, router := twoSubnets(t, 0)
	r, _ := parseRoute(v1alpha1.FabricRoute{Destination: "10.244.1.0/26", NextHop: "192.0.2.11"})
	w.must(w.cloud.Routers.AddRoutes(t.Context(), router, []cloud.Route{r}))
	w.join("n1", "192.0.2.11", "10.244.1.0/26")
	w.join("n2", "198.51.100.12")
	w.run()
	w.wantRouted("n1", "10.244.1.0/26")
	w.must(w.compare(t.Context()))
	if n := len(w.fabric.drifted); n > 0 {
		t.Errorf("%d nodes differ", n)
	}
	w.leave("n1")
	w.run()
	if got, err := w.cloud.Routers.Router(t.Context(), router); err != nil || !slices.Contains(got.Routes, r) {
		t.Errorf("routes %v, %v; want that of the other", got.Routes, err)
	}
}

// The first node in another subnet has all nodes get their routes, and the last one has
// them removed, before the next comparison.
func TestFirstAndLastNodeApart(t *testing.T) {
	w, _ := twoSubnets(t, 0)
	told := func(step string, reconcile func()) {
		t.Helper()
		for len(w.fabric.drifted) > 0 {
			<-w.fabric.drifted
		}
		reconcile()
		for len(w.fabric.drifted) > 0 {
			if (<-w.fabric.drifted).Object.GetName() == "n1" {
				return
			}
		}
		t.Errorf("%s: n1 is not reconciled anew", step)
	}
	w.join("n1", "192.0.2.11", "10.244.1.0/26")
	w.run()
	w.wantRouted("n1")
	w.join("n2", "198.51.100.12", "10.244.2.0/26")
	told("the first one comes", func() { w.settle() })
	w.settle()
	w.wantRouted("n1", "10.244.1.0/26")
	// The NodeNetwork is deleted after its Node.
	w.must(w.client.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}))
	w.settle()
	w.must(w.client.Delete(t.Context(), w.get("n2")))
	told("the last one goes", func() {
		_, err := w.fabric.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Name: "n2"}})
		w.must(err)
	})
	w.settle()
	w.wantRouted("n1")
}

// routersThat observes the calls about routes.
type routersThat struct {
	Routers
	see func(call string) error
}

func (r routersThat) AddRoutes(ctx context.Context, router string, all []cloud.Route) error {
	if err := r.see("add"); err != nil {
		return err
	}
	return r.Routers.AddRoutes(ctx, router, all)
}

func (r routersThat) RemoveRoutes(ctx context.Context, router string, all []cloud.Route) error {
	if err := r.see("remove"); err != nil {
		return err
	}
	return r.Routers.RemoveRoutes(ctx, router, all)
}

// Other nodes use a route only between its addition and its removal, and a wider route is
// there before the narrow one goes.
func TestRoutesAreUsedWhileTheyExist(t *testing.T) {
	w, _ := twoSubnets(t, 0)
	w.join("n1", "192.0.2.11", "10.244.1.0/26")
	w.join("n2", "198.51.100.12")
	var seen []string
	w.calls.Routers = routersThat{w.calls.Routers, func(call string) error {
		seen = append(seen, fmt.Sprint(call, " ", recordOf(w.get("n1")).Routed))
		return nil
	}}
	w.restart()
	w.run()
	w.blocks("n1", "10.244.1.0/26", "10.244.1.64/26")
	w.run()
	w.wantRouted("n1", "10.244.1.0/25")
	w.blocks("n1")
	w.run()
	want := []string{"add []", "add [10.244.1.0/26]", "remove [10.244.1.0/26]", "remove []"}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("calls, and what other nodes used: %s", diff)
	}
	// A cloud that does not answer changes nothing for other nodes.
	w.blocks("n1", "10.244.1.0/26")
	w.run()
	w.calls.Routers = routersThat{w.calls.Routers, func(string) error { return fmt.Errorf("%w: no answer", cloud.ErrUnavailable) }}
	w.restart()
	w.fabric.opened()
	w.blocks("n1", "10.244.1.0/26", "10.244.1.128/26")
	if failed := w.settle(); !errors.Is(failed["n1"], cloud.ErrUnavailable) {
		t.Errorf("errors %v", failed)
	}
	w.wantRouted("n1", "10.244.1.0/26")
	w.wantReason("n1", ReasonReady)
}

// slowRouter takes its time for each call, and counts those at once.
type slowRouter struct{ now, most int }

func (r *slowRouter) call() {
	r.now++
	r.most = max(r.most, r.now)
	time.Sleep(time.Second) //nolint:forbidigo // the bubble's clock
	r.now--
}

func (r *slowRouter) Router(context.Context, string) (cloud.Router, error) {
	r.call()
	return cloud.Router{ID: "r"}, nil
}

func (r *slowRouter) AddRoutes(context.Context, string, []cloud.Route) error {
	r.call()
	return nil
}

func (r *slowRouter) RemoveRoutes(context.Context, string, []cloud.Route) error { return nil }

// Two nodes get their routes one after the other. Neutron with OVN had both routes in its
// database, and only one in the network (own laboratory of OpenStack).
func TestRoutesOfOneNodeAfterAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		scheme := runtime.NewScheme()
		if err := v1alpha1.AddToScheme(scheme); err != nil {
			t.Fatal(err)
		}
		m, err := NewMetrics(prometheus.NewRegistry())
		if err != nil {
			t.Fatal(err)
		}
		router := &slowRouter{}
		f := New(Config{Client: fake.NewClientBuilder().WithScheme(scheme).Build(), Metrics: m, Router: "r"})
		f.Routers = router
		done := make(chan error)
		for i := range 3 {
			nn := &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}}
			if err := f.Client.Create(t.Context(), nn); err != nil {
				t.Fatal(err)
			}
			r, _ := parseRoute(v1alpha1.FabricRoute{Destination: fmt.Sprintf("10.244.%d.0/26", i), NextHop: "192.0.2.1"})
			c := &change{fabric: f, nn: nn, wants: wants{routes: []cloud.Route{r}}}
			go func() { done <- c.makeRoutes(t.Context()) }()
		}
		for range 3 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if router.most != 1 {
			t.Errorf("%d calls at once", router.most)
		}
	})
}
