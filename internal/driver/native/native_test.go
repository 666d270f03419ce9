package native

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/ipam/block"
	"fairlead.dev/fairlead/test/blocktest"
	"fairlead.dev/fairlead/test/cluster"
	"fairlead.dev/fairlead/test/drivertest"
)

// onAPI returns a backend on the real API server. Each case has a domain of its own.
// Recover moves the clock of the store instead of waiting.
func onAPI(spec v1alpha1.IPPoolSpec, capacity int) func(t *testing.T) drivertest.Backend {
	return func(t *testing.T) drivertest.Backend {
		c := cluster.New(t)
		pool := &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: spec}
		pool.Spec.Domain = c.Namespace
		var ahead time.Duration
		t.Cleanup(func() { removeBlocks(t, c) })
		api := &interruptible{Client: c.Client}
		return drivertest.Backend{
			Capacity:  capacity,
			Recover:   func() { ahead += time.Hour },
			Interrupt: api.interrupt,
			Start: func(t *testing.T) driver.Driver {
				begin := time.Now()
				s := block.New(block.Kube{Writer: api, Live: c.Client}, block.Config{
					Run:        func() time.Duration { return time.Since(begin) + ahead },
					FreeLinger: -1,
				})
				ctx, cancel := context.WithCancel(context.Background())
				done := make(chan error, 1)
				go func() { done <- s.Run(ctx) }()
				t.Cleanup(func() {
					cancel()
					if err := <-done; err != nil {
						t.Errorf("the store ended with: %v", err)
					}
				})
				for _, b := range blocksOf(t, c) {
					s.Observe(&b)
				}
				pools := NewPools()
				pools.observe(pool)
				return New(Config{Pools: []string{"default"}}, pools, s)
			},
		}
	}
}

// interruptible calls a function once, before or after the next write.
type interruptible struct {
	client.Client
	mu            sync.Mutex
	before, after func()
}

func (i *interruptible) interrupt(after bool, do func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if after {
		i.after = do
	} else {
		i.before = do
	}
}

func (i *interruptible) call(do *func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if *do != nil {
		(*do)()
		*do = nil
	}
}

func (i *interruptible) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	i.call(&i.before)
	defer i.call(&i.after)
	return i.Client.Create(ctx, o, opts...)
}

func (i *interruptible) Update(ctx context.Context, o client.Object, opts ...client.UpdateOption) error {
	i.call(&i.before)
	defer i.call(&i.after)
	return i.Client.Update(ctx, o, opts...)
}

func blocksOf(t *testing.T, c *cluster.Cluster) []v1alpha1.IPBlock {
	t.Helper()
	var list v1alpha1.IPBlockList
	if err := c.Client.List(context.Background(), &list, client.MatchingLabels{v1alpha1.LabelDomain: c.Namespace}); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

func removeBlocks(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	for _, b := range blocksOf(t, c) {
		if err := c.RemoveBlock(context.Background(), b.Name); err != nil {
			t.Errorf("remove block %s: %v", b.Name, err)
		}
	}
}

func TestContract(t *testing.T) {
	cases := []struct {
		name     string
		spec     v1alpha1.IPPoolSpec
		capacity int
	}{
		{"shared", v1alpha1.IPPoolSpec{Ranges: []string{"10.1.0.0/28"}, Gateways: []string{"10.1.0.1"}}, 13},
		{"routed to nodes", v1alpha1.IPPoolSpec{Ranges: []string{"10.1.0.0/27"}, Placement: v1alpha1.PlacementPerNode}, 32},
		{"IPv6", v1alpha1.IPPoolSpec{Ranges: []string{"fd00::10-fd00::17"}}, 8},
		{"dual stack, IPv4 ends first", v1alpha1.IPPoolSpec{Ranges: []string{"10.1.0.0/29", "fd00::/64"}, Placement: v1alpha1.PlacementPerNode}, 8},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) { drivertest.Run(t, onAPI(tc.spec, tc.capacity)) })
	}
}

func TestInterfaceOfAPool(t *testing.T) {
	cases := []struct {
		name string
		spec v1alpha1.IPPoolSpec
		want v1alpha1.Interface
	}{
		{
			name: "a pool for a link has the node as its gateway too",
			spec: v1alpha1.IPPoolSpec{
				Ranges: []string{"10.1.0.10-10.1.0.10/24"}, Gateways: []string{"10.1.0.1"},
				Routes: []v1alpha1.Route{{Destination: "10.9.0.0/16", Gateway: "10.1.0.9"}},
			},
			want: v1alpha1.Interface{
				Addresses: []string{"10.1.0.10/32"}, Gateways: []string{"169.254.1.1"},
				Routes: []v1alpha1.Route{{Destination: "10.9.0.0/16", Gateway: "169.254.1.1"}},
			},
		},
		{
			name: "a routed pool has the node's link-local gateways",
			spec: v1alpha1.IPPoolSpec{Ranges: []string{"10.1.0.10", "fd00::10"}, Placement: v1alpha1.PlacementPerNode},
			want: v1alpha1.Interface{Addresses: []string{"10.1.0.10/32", "fd00::10/128"}, Gateways: []string{"169.254.1.1", "fe80::1"}},
		},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			b := onAPI(tc.spec, 1)(t)
			a, err := b.Start(t).Ensure(t.Context(), drivertest.Request(1))
			if err != nil {
				t.Fatal(err)
			}
			want := tc.want
			want.Name, want.Network, want.Driver, want.Default = "eth0", "default", "native", true
			want.Domain, want.Pool = a.Interface.Domain, "default"
			want.Binding.Routed = &v1alpha1.RoutedBinding{}
			if diff := cmp.Diff(want, a.Interface); diff != "" || !a.Active || want.Domain == "" {
				t.Errorf("active %v, domain %q, -want +got:\n%s", a.Active, want.Domain, diff)
			}
		})
	}
}

// On a further network, which is one link, an interface has the gateway and the prefix length of its pool.
func TestInterfaceOfALink(t *testing.T) {
	d := start(t, blocktest.NewAPI(), "default")
	for name, tc := range map[string]struct {
		spec               v1alpha1.IPPoolSpec
		addresses, gateway string
		routes             int
	}{
		"with a gateway": {v1alpha1.IPPoolSpec{
			Ranges: []string{"10.1.0.10-10.1.0.10/24"}, Gateways: []string{"10.1.0.1"}, Routes: []v1alpha1.Route{{Destination: "10.9.0.0/16", Gateway: "10.1.0.9"}},
		}, "10.1.0.10/24", "[10.1.0.1]", 1},
		"without": {v1alpha1.IPPoolSpec{Ranges: []string{"10.1.1.10"}}, "10.1.1.10/32", "[]", 0},
	} {
		d.pool("default", tc.spec)
		r := drivertest.Request(1)
		r.Binding = &v1alpha1.Binding{Bridge: &v1alpha1.BridgeBinding{Name: "br1"}}
		a, err := d.Ensure(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		i := a.Interface
		if i.Addresses[0] != tc.addresses || fmt.Sprint(i.Gateways) != tc.gateway || len(i.Routes) != tc.routes || tc.routes > 0 && i.Routes[0].Gateway != "10.1.0.9" {
			t.Errorf("%s: addresses %v, gateways %v, routes %v", name, i.Addresses, i.Gateways, i.Routes)
		}
		d.release(r, a)
	}
}

// A further interface on a routed pool reaches the other interfaces of the pool: no default
// route leads there.
func TestAdditionalInterfaceOfARoutedPool(t *testing.T) {
	d := start(t, blocktest.NewAPI(), "default")
	d.pool("storage", v1alpha1.IPPoolSpec{
		Ranges: []string{"10.1.0.0/16", "10.3.0.1-10.3.0.2", "fd00:1::/64"}, Placement: v1alpha1.PlacementPerNode,
		Routes: []v1alpha1.Route{{Destination: "10.9.0.0/16", Gateway: "169.254.1.1"}},
	})
	a, err := d.Ensure(t.Context(), onPool(1, "storage"))
	if err != nil {
		t.Fatal(err)
	}
	want := []v1alpha1.Route{
		{Destination: "10.9.0.0/16", Gateway: "169.254.1.1"},
		{Destination: "10.1.0.0/16", Gateway: "169.254.1.1"},
		{Destination: "10.3.0.1/32", Gateway: "169.254.1.1"},
		{Destination: "10.3.0.2/32", Gateway: "169.254.1.1"},
		{Destination: "fd00:1::/64", Gateway: "fe80::1"},
	}
	if diff := cmp.Diff(want, a.Interface.Routes); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// So does the default interface of a pod whose default route is on another interface.
func TestDefaultInterfaceWithoutTheDefaultRoute(t *testing.T) {
	d := start(t, blocktest.NewAPI(), "default")
	d.pool("default", v1alpha1.IPPoolSpec{Ranges: []string{"10.1.0.0/16"}, Placement: v1alpha1.PlacementPerNode})
	for without, want := range map[bool][]v1alpha1.Route{false: nil, true: {{Destination: "10.1.0.0/16", Gateway: "169.254.1.1"}}} {
		r := drivertest.Request(1)
		r.NoDefaultRoute = without
		a, err := d.Ensure(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, a.Interface.Routes); diff != "" {
			t.Errorf("without the default route %t: -want +got:\n%s", without, diff)
		}
	}
}

func TestPoolThatCannotBeUsed(t *testing.T) {
	pools := NewPools()
	d := New(Config{Pools: []string{"default"}}, pools, block.New(blocktest.NewAPI(), block.Config{}))
	_, err := d.Ensure(t.Context(), drivertest.Request(1))
	if driver.Result(err) != "NotFound" || !strings.Contains(err.Error(), `"default"`) {
		t.Errorf("no pool: %v", err)
	}
	pools.observe(&v1alpha1.IPPool{
		ObjectMeta: metav1.ObjectMeta{Name: "default"},
		Spec:       v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.1/24"}},
	})
	_, err = d.Ensure(t.Context(), drivertest.Request(1))
	if driver.Result(err) != "Invalid" || !strings.Contains(err.Error(), "spec.ranges[0]") || !strings.Contains(err.Error(), "10.0.0.0/24") {
		t.Errorf("host bits: %v", err)
	}
}
