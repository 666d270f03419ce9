package native

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/test/blocktest"
	"fairlead.dev/fairlead/test/drivertest"
)

// half leaves a pod with an IPv4 address of pool a and no IPv6 address. The store had found
// a free address of both families, but another leader took the last IPv6 address between
// the two writes.
func half(t *testing.T) (*blocktest.API, *inMemory) {
	t.Helper()
	api := blocktest.NewAPI()
	leader, other := start(t, api, "a", "b"), start(t, api, "a6")
	for _, d := range []*inMemory{leader, other} {
		d.pool("a", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.1-10.0.0.2", "fd00::1"}})
		d.pool("a6", one("fd00::1"))
	}
	lost := false
	api.Hook(func(c blocktest.Call) blocktest.Fault {
		if c.Verb == "create" && strings.Contains(c.Name, ".6-") && !lost {
			lost = true
			other.get(drivertest.Request(9))
		}
		return blocktest.Fault{}
	})
	leader.refused(drivertest.Request(1), "Exhausted", "pool a: ", "no IPv6 address left")
	if held := leader.addresses(); len(held) != 1 || !strings.HasPrefix(held[0], "10.0.0.") {
		t.Fatalf("the pod has %v, want an IPv4 address of pool a", held)
	}
	return api, leader
}

// addresses returns the addresses of the first pod.
func (d *inMemory) addresses() []string {
	var out []string
	for _, l := range d.store.Held(HolderOf(drivertest.Request(1).Owner)) {
		out = append(out, l.Addr.String())
	}
	return out
}

// A pod with one family of pool a is served by pool b, which has both: also on a repeated
// call and after a crash. The address of pool a can be released alone.
func TestRealHalf(t *testing.T) {
	api, leader := half(t)
	leader.refused(drivertest.Request(1), "Exhausted", "pool a: ")
	had := leader.addresses()
	b := v1alpha1.IPPoolSpec{Ranges: []string{"10.0.1.1", "fd00:1::1"}}
	leader.pool("b", b)
	const whole = "b 10.0.1.1/32,fd00:1::1/128"
	if got := leader.get(drivertest.Request(1)); got != whole {
		t.Fatalf("got %s", got)
	}
	next := start(t, api, "a", "b")
	next.pool("a", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.1-10.0.0.2", "fd00::1"}})
	next.pool("b", b)
	for _, d := range []*inMemory{leader, next} {
		if got := d.get(drivertest.Request(1)); got != whole {
			t.Errorf("got %s", got)
		}
	}
	rest := v1alpha1.Interface{Name: "eth0", Domain: "default", Addresses: []string{had[0] + "/32"}}
	if err := next.Release(t.Context(), driver.Ref{Owner: drivertest.Request(1).Owner, Interface: rest}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"10.0.1.1", "fd00:1::1"}, next.addresses()); diff != "" {
		t.Errorf("the pod has (-want +got):\n%s", diff)
	}
}

// A pod with one family of a pool gets the other family from the same pool as soon as an
// address is free. No other pool is tried.
func TestHalfBecomesWhole(t *testing.T) {
	api, _ := half(t)
	next := start(t, api, "b", "a")
	next.pool("a", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.1-10.0.0.2", "fd00::1-fd00::2"}})
	next.pool("b", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.1.1", "fd00:1::1"}})
	if got := next.get(drivertest.Request(1)); !strings.HasPrefix(got, "a 10.0.0.") || !strings.HasSuffix(got, ",fd00::2/128") {
		t.Errorf("got %s", got)
	}
}
