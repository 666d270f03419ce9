package native

import (
	"errors"
	"net/netip"
	"testing"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/test/blocktest"
	"fairlead.dev/fairlead/test/drivertest"
)

// further returns pod n's request for an interface net1 with an address of each pool.
func further(n int, pools ...string) *driver.Request {
	r := drivertest.Request(n)
	r.Interface, r.Network, r.Default, r.AddressOnly = "net1", "blue/net-a", false, true
	asks(r).Pools, asks(r).EachPool = pools, true
	return r
}

func TestAddressesOfEachPool(t *testing.T) {
	api := blocktest.NewAPI()
	d := start(t, api, "default")
	d.pool("v4", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.0/30"}, Gateways: []string{"10.0.0.1"}})
	d.pool("v6", v1alpha1.IPPoolSpec{Ranges: []string{"fd00::1"}})
	d.pool("more", v1alpha1.IPPoolSpec{Ranges: []string{"10.1.0.0/24"}})
	d.pool("wide", v1alpha1.IPPoolSpec{Ranges: []string{"10.1.0.0/16"}})
	r := further(1, "v4", "v6", "more", "wide")
	const want = "v4 10.0.0.2/30,fd00::1/128,10.1.0.1/24"
	// Pool wide covers the address of more: the pod has it once, as with whereabouts.
	if got := d.get(r); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	first, err := d.Ensure(t.Context(), r)
	if err != nil || first.Interface.Binding.AddressOnly == nil || first.Interface.Gateways[0] != "10.0.0.1" {
		t.Fatalf("error %v, interface %+v", err, first.Interface)
	}
	again := start(t, api, "default") // another leader
	for _, p := range []struct{ name, cidr string }{{"v4", "10.0.0.0/30"}, {"v6", "fd00::1"}, {"more", "10.1.0.0/24"}, {"wide", "10.1.0.0/16"}} {
		again.pool(p.name, v1alpha1.IPPoolSpec{Ranges: []string{p.cidr}})
	}
	if got := again.get(r); got != d.get(r) {
		t.Errorf("another leader gave %s, want %s", got, d.get(r))
	}
	// One Release frees the addresses of all pools. whereabouts stops at the first range
	// without an address and keeps the others.
	if err := d.Release(t.Context(), driver.Ref{Owner: r.Owner, Interface: first.Interface}); err != nil {
		t.Fatal(err)
	}
	if left := d.store.Held(HolderOf(r.Owner)); len(left) > 0 {
		t.Errorf("after the release it has %v", left)
	}
}

// If the second pool is exhausted, the pod keeps the address of the first, and a retry
// takes no further one. spiderpool#2901: more addresses with every restart.
func TestExhaustedSecondPoolKeepsTheFirst(t *testing.T) {
	d := start(t, blocktest.NewAPI(), "default")
	d.pool("v4", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.0/24"}})
	d.pool("one", v1alpha1.IPPoolSpec{Ranges: []string{"fd00::1"}})
	d.get(further(1, "v4", "one"))
	r := further(2, "v4", "one")
	for range 3 {
		if _, err := d.Ensure(t.Context(), r); !errors.Is(err, fault.ErrExhausted) {
			t.Fatalf("error %v, want ErrExhausted", err)
		}
		if held := d.store.Held(HolderOf(r.Owner)); len(held) != 1 {
			t.Fatalf("it holds %v, want one address however often it is tried", held)
		}
	}
}

// whereabouts#15, #177: a requested address is taken from the pool that covers it.
func TestRequestedAddressesOfEachPool(t *testing.T) {
	d := start(t, blocktest.NewAPI(), "default")
	d.pool("v4", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.0/24"}})
	d.pool("v6", v1alpha1.IPPoolSpec{Ranges: []string{"fd00::/64"}})
	r := further(1, "v4", "v6")
	r.Addresses = []netip.Addr{netip.MustParseAddr("fd00::77"), netip.MustParseAddr("10.0.0.77")}
	if got := d.get(r); got != "v4 10.0.0.77/24,fd00::77/64" {
		t.Error(got)
	}
	r2 := further(2, "v4", "v6")
	r2.Addresses = r.Addresses[1:]
	d.refused(r2, "Conflict", "10.0.0.77", "pod-1")
	r2.Addresses = []netip.Addr{netip.MustParseAddr("10.9.0.1")}
	d.refused(r2, "Invalid", "10.9.0.1", "v4, v6")
}

// A request for each of no pools returns an attachment without addresses, not nil.
func TestEachOfNoPools(t *testing.T) {
	d := start(t, blocktest.NewAPI(), "default")
	if a, err := d.Ensure(t.Context(), further(1)); err != nil || len(a.Interface.Addresses) != 0 {
		t.Errorf("%+v, %v", a, err)
	}
}

func TestRoutedPoolsAreNotForOtherPlugins(t *testing.T) {
	d := start(t, blocktest.NewAPI(), "default")
	d.pool("routed", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.0/24"}, Placement: v1alpha1.PlacementPerNode})
	d.refused(further(1, "routed"), "Invalid", "placement Shared")
}

// A claim holds one address per family, so an interface with addresses of several pools
// has a claim in each sticky pool. whereabouts#138: the next pod of a StatefulSet has the
// same addresses on its further networks too.
func TestStickyInEachPool(t *testing.T) {
	d := start(t, blocktest.NewAPI(), "default")
	d.cfg.Claims = written{store: d.store}
	d.pool("plain", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.0/24"}})
	d.pool("one", v1alpha1.IPPoolSpec{Ranges: []string{"10.1.0.0/24"}, Sticky: v1alpha1.StickyStatefulSet})
	d.pool("two", v1alpha1.IPPoolSpec{Ranges: []string{"10.2.0.0/24"}, Sticky: v1alpha1.StickyStatefulSet})
	of := func(n int) *driver.Request {
		r := further(n, "plain", "one", "two")
		asks(r).Sticky = map[v1alpha1.Sticky]string{v1alpha1.StickyStatefulSet: "web-0.net1"}
		return r
	}
	first := d.ensureAndRelease(of(1))
	for _, pool := range []string{"one", "two"} {
		has := d.store.Claimed(of(1).Namespace + "/web-0.net1." + pool)
		if len(has) != 1 {
			t.Errorf("of pool %s is kept %v", pool, has)
		}
	}
	if want := of(1).Namespace + "/web-0.net1.one"; first.Claim != want {
		t.Errorf("the record names claim %q, want %q", first.Claim, want)
	}
	d.get(further(2, "plain", "one", "two"))
	second := d.ensureAndRelease(of(3))
	if first.Addresses[0] == second.Addresses[0] || first.Addresses[1] != second.Addresses[1] || first.Addresses[2] != second.Addresses[2] {
		t.Errorf("addresses %v and then %v: want those of the sticky pools again", first.Addresses, second.Addresses)
	}
}
