package native

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/ipam/block"
	"fairlead.dev/fairlead/test/blocktest"
	"fairlead.dev/fairlead/test/drivertest"
)

// written are claims that exist. asks has the requested addresses and macs the MAC of a claim
// by its key;
// any other claim requests none.
type written struct {
	store *block.Store
	asks  map[string][]netip.Addr
	macs  map[string]string
}

func (w written) Obtain(_ context.Context, key types.NamespacedName, _ Making) (Obtained, error) {
	return Obtained{Addresses: w.asks[key.String()], MAC: w.macs[key.String()]}, nil
}

func (w written) Has(key types.NamespacedName) []block.Lease { return w.store.Claimed(key.String()) }

func (written) Refused(context.Context, types.NamespacedName, string, error) error { return nil }

func (d *inMemory) release(r *driver.Request, a *driver.Attachment) {
	d.t.Helper()
	if err := d.Release(d.t.Context(), driver.Ref{Owner: r.Owner, Interface: a.Interface}); err != nil {
		d.t.Fatal(err)
	}
}

// ensureAndRelease obtains an interface, releases it and returns it.
func (d *inMemory) ensureAndRelease(r *driver.Request) v1alpha1.Interface {
	d.t.Helper()
	a, err := d.Ensure(d.t.Context(), r)
	if err != nil {
		d.t.Fatalf("pod %s: %v", r.PodName, err)
	}
	d.release(r, a)
	return a.Interface
}

func TestStickyPools(t *testing.T) {
	sts := map[v1alpha1.Sticky]string{v1alpha1.StickyStatefulSet: "web-0"}
	vm := map[v1alpha1.Sticky]string{v1alpha1.StickyVirtualMachine: "vm1"}
	cases := []struct {
		name   string
		sticky v1alpha1.Sticky
		claim  string
		by     map[v1alpha1.Sticky]string
		want   string
	}{
		{name: "off", sticky: v1alpha1.StickyOff, by: sts},
		{name: "an ordinal", sticky: v1alpha1.StickyStatefulSet, by: sts, want: "web-0"},
		{name: "a virtual machine", sticky: v1alpha1.StickyVirtualMachine, by: vm, want: "vm1"},
		{name: "sticky for others", sticky: v1alpha1.StickyVirtualMachine, by: sts},
		{name: "a claim that the pod names", sticky: v1alpha1.StickyStatefulSet, by: sts, claim: "mine", want: "mine"},
		{name: "a claim in a pool that is not sticky", sticky: v1alpha1.StickyOff, claim: "mine", want: "mine"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			d := start(t, blocktest.NewAPI(), "a")
			d.cfg.Claims = written{store: d.store}
			d.pool("a", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.0/24"}, Sticky: tc.sticky})
			one, two := drivertest.Request(1), drivertest.Request(2)
			asks(one).Claim, asks(two).Claim, asks(one).Sticky, asks(two).Sticky = tc.claim, tc.claim, tc.by, tc.by
			two.NodeName = "another"
			first, second := d.ensureAndRelease(one), d.ensureAndRelease(two)
			want := tc.want
			if want != "" {
				want = one.Namespace + "/" + want
			}
			if first.Claim != want || second.Claim != want {
				t.Errorf("claims %q and %q, want %q", first.Claim, second.Claim, want)
			}
			if same := slices.Equal(first.Addresses, second.Addresses); same != (want != "") {
				t.Errorf("addresses %v and then %v", first.Addresses, second.Addresses)
			}
		})
	}
}

// A claim is served from the pool of its addresses, regardless of the order of pools.
func TestClaimsAndTheOrderOfPools(t *testing.T) {
	d := start(t, blocktest.NewAPI(), "a", "b")
	d.cfg.Claims = written{store: d.store}
	d.pool("b", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.1.0/24"}})
	one, two := drivertest.Request(1), drivertest.Request(2)
	asks(one).Claim, asks(two).Claim = "db", "db"
	a, err := d.Ensure(t.Context(), one)
	if err != nil {
		t.Fatal(err)
	}
	d.pool("a", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.0/24"}})
	// Pool a has room, but the claim's last pod has not released its address. The error
	// has the pod's own text for the claim.
	asks(two).ClaimText = "Rack 4"
	d.refused(two, "Conflict", one.PodName, `claim "Rack 4"`)
	d.release(one, a)
	if got, want := d.get(two), "b "+a.Interface.Addresses[0]; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for ref, err := range d.List(t.Context()) {
		if want := one.Namespace + "/db"; err != nil || ref.Interface.Claim != want {
			t.Errorf("listed %+v, error %v, want claim %s", ref.Interface, err, want)
		}
	}
}

// A pod with a claim waits for the claim's last pod even if it requests an address of
// another pool.
func TestClaimsAndRequestsInAnotherPool(t *testing.T) {
	d := start(t, blocktest.NewAPI(), "a", "b")
	d.cfg.Claims = written{store: d.store}
	d.pool("a", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.0/24"}})
	d.pool("b", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.1.0/24"}})
	one, two := drivertest.Request(1), drivertest.Request(2)
	asks(one).Claim, asks(two).Claim = "db", "db"
	two.Addresses = []netip.Addr{netip.MustParseAddr("10.0.1.7")}
	a, err := d.Ensure(t.Context(), one)
	if err != nil {
		t.Fatal(err)
	}
	d.refused(two, "Conflict", "default/db", one.PodName)
	d.release(one, a)
	if got, want := d.get(two), "b 10.0.1.7/32"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// The address of a claim is an edge of the first pool, which does not hand it out. The
// second pool does.
func TestClaimAtThePoolThatHandsItOut(t *testing.T) {
	d := start(t, blocktest.NewAPI(), "a", "b")
	d.cfg.Claims = written{store: d.store}
	d.pool("a", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.0/30"}})
	d.pool("b", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.2-10.0.0.8"}})
	one, two := drivertest.Request(1), drivertest.Request(2)
	asks(one).Claim, asks(two).Claim = "db", "db"
	one.Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.3")}
	first := d.ensureAndRelease(one)
	if second := d.ensureAndRelease(two); !slices.Equal(first.Addresses, second.Addresses) || second.Pool != "b" {
		t.Errorf("addresses %v and then %v of pool %s", first.Addresses, second.Addresses, second.Pool)
	}
}

// A repeated Ensure, as after a crash, names the pool with the claim of the address. The
// pod keeps its address if the claim requests another one meanwhile.
func TestClaimedAddressFoundAgain(t *testing.T) {
	d := start(t, blocktest.NewAPI(), "a", "b")
	claims := written{store: d.store, asks: map[string][]netip.Addr{}}
	d.cfg.Claims = claims
	d.pool("b", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.0/25"}, Sticky: v1alpha1.StickyVirtualMachine})
	r := drivertest.Request(1)
	asks(r).Sticky = map[v1alpha1.Sticky]string{v1alpha1.StickyVirtualMachine: "vm1"}
	first, err := d.Ensure(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	d.pool("a", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.0/24"}})
	claims.asks[r.Namespace+"/vm1"] = []netip.Addr{netip.MustParseAddr("10.0.0.99")}
	again, err := d.Ensure(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first.Interface, again.Interface); diff != "" {
		t.Errorf("the second time (-want +got):\n%s", diff)
	}
}

// Two leaders at once may serve a pod from two overlapping pools. The pod then has an
// address of each, or an address that gets a claim afterwards. The record of either leader
// names the same claim for the address as the block (make sim SEED=5014).
func TestTwoLeadersAndTwoPools(t *testing.T) {
	r := drivertest.Request(1)
	asks(r).Sticky = map[v1alpha1.Sticky]string{v1alpha1.StickyStatefulSet: "db-0"}
	for _, tc := range []struct{ a, b, first, second string }{
		{"10.0.0.1-10.0.0.3", "10.0.0.4-10.0.0.9", "b 10.0.0.4/32", "a 10.0.0.1/32"},
		{"10.0.0.1-10.0.0.4", "10.0.0.4-10.0.0.9", "b 10.0.0.4/32", "a 10.0.0.4/32"},
		{"10.0.0.1-10.0.0.3", "10.0.0.64-10.0.0.99", "b 10.0.0.64/32", "a 10.0.0.1/32"}, // of two blocks
	} {
		api := blocktest.NewAPI()
		leaders := []*inMemory{start(t, api, "a", "b"), start(t, api, "a", "b")}
		for i, want := range []string{tc.first, tc.second} {
			d := leaders[i]
			d.cfg.Claims = written{store: d.store}
			if i == 0 {
				d.pool("b", v1alpha1.IPPoolSpec{Ranges: []string{tc.b}})
			} else {
				d.pool("a", v1alpha1.IPPoolSpec{Ranges: []string{tc.a}, Sticky: v1alpha1.StickyStatefulSet})
			}
			if got := d.get(r); got != want {
				t.Fatalf("leader %d gave %s, want %s", i, got, want)
			}
		}
		for i, d := range slices.Concat(leaders, leaders) {
			d.pool("a", v1alpha1.IPPoolSpec{Ranges: []string{tc.a}, Sticky: v1alpha1.StickyStatefulSet})
			d.pool("b", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.1-10.0.0.99"}})
			a, err := d.Ensure(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range d.store.Held(HolderOf(r.Owner)) {
				if has := a.Interface.Addresses[0] == l.Addr.String()+"/32"; has && l.Claim != a.Interface.Claim {
					t.Errorf("leader %d: %v of pool %s for claim %q, and the block has claim %q", i%2, a.Interface.Addresses, a.Interface.Pool, a.Interface.Claim, l.Claim)
				}
			}
			for _, b := range api.List() {
				d.store.Observe(b) // also the blocks that the other leader wrote
			}
		}
	}
}

func TestRequestedAddresses(t *testing.T) {
	d := start(t, blocktest.NewAPI(), "a", "b")
	v4, v6 := netip.MustParseAddr("10.0.1.7"), netip.MustParseAddr("fd00::7")
	d.cfg.Claims = written{store: d.store, asks: map[string][]netip.Addr{"default/db": {netip.MustParseAddr("10.0.1.9"), v6}}}
	d.pool("a", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.0/24"}})
	d.pool("b", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.1.0/24", "fd00::/120"}})
	one, two := drivertest.Request(1), drivertest.Request(2)
	one.Namespace, asks(one).Claim, one.Addresses = "default", "db", []netip.Addr{v4}
	if got, want := d.get(one), "b 10.0.1.7/32,fd00::7/128"; got != want {
		t.Errorf("the address that the pod requests precedes the claim's: got %s, want %s", got, want)
	}
	two.Addresses = []netip.Addr{v4}
	d.refused(two, "Conflict", v4.String(), "default/"+one.PodName)
	two.Addresses = []netip.Addr{netip.MustParseAddr("10.9.0.1")}
	d.refused(two, "Invalid", "10.9.0.1", "10.0.0.0/24", "10.0.1.0/24")
}

func TestStickyNeedsASharedPool(t *testing.T) {
	d := start(t, blocktest.NewAPI(), "a")
	d.cfg.Claims = written{store: d.store}
	d.pool("a", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.0/24"}, Placement: v1alpha1.PlacementPerNode, Sticky: v1alpha1.StickyStatefulSet})
	d.refused(drivertest.Request(1), "Invalid", "spec.sticky", "StatefulSet", "Shared")
	d.pool("a", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.0/24"}, Placement: v1alpha1.PlacementPerNode})
	r := drivertest.Request(1)
	asks(r).Claim = "db"
	d.refused(r, "Invalid", "db", "placement Shared")
}

// made records the names of the claims that would be created.
type made struct {
	written
	names *[]string
}

func (m made) Obtain(_ context.Context, key types.NamespacedName, making Making) (Obtained, error) {
	if err := making.Serves(); err != nil {
		return Obtained{}, err
	}
	*m.names = append(*m.names, key.Name)
	return Obtained{}, nil
}

// No claim is created for a pod that no pool serves or whose requested address has another
// holder.
func TestNoClaimForNothing(t *testing.T) {
	var names []string
	d := start(t, blocktest.NewAPI(), "a", "b")
	d.cfg.Claims = made{written{store: d.store}, &names}
	d.pool("a", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.1-10.0.0.2"}})
	d.pool("b", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.1.1-10.0.1.2"}})
	get := func(i int, claim string, wants ...string) error {
		r := drivertest.Request(i)
		asks(r).Claim = claim
		for _, a := range wants {
			r.Addresses = append(r.Addresses, netip.MustParseAddr(a))
		}
		_, err := d.Ensure(t.Context(), r)
		return err
	}
	if err := errors.Join(get(1, ""), get(2, ""), get(3, "")); err != nil {
		t.Fatal(err)
	}
	if err := get(4, "taken", "10.0.0.1"); !errors.Is(err, fault.ErrConflict) {
		t.Errorf("another has it: %v", err)
	}
	if err := get(5, "excluded", "10.0.5.1"); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("no pool has it: %v", err)
	}
	if err := get(6, "last"); err != nil {
		t.Error(err)
	}
	if err := get(7, "late"); !errors.Is(err, fault.ErrExhausted) {
		t.Errorf("nothing is left: %v", err)
	}
	if diff := cmp.Diff([]string{"last"}, names); diff != "" {
		t.Errorf("claims that were made (-want +got):\n%s", diff)
	}
}

// reporting records the reports about IPAMClaims.
type reporting struct {
	written
	told *[]string
}

func (r reporting) Refused(_ context.Context, key client.ObjectKey, pod string, why error) error {
	*r.told = append(*r.told, pod+" of "+key.Name+": "+why.Error())
	return nil
}

// A pod that references an IPAMClaim draws by its claim, whatever the pool's stickiness. A
// refusal is reported of the IPAMClaim. A server that does not answer refuses nothing.
func TestReference(t *testing.T) {
	d := start(t, blocktest.NewAPI(), "a")
	var told []string
	d.cfg.Claims = reporting{written{store: d.store}, &told}
	d.pool("a", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.1"}, Sticky: v1alpha1.StickyVirtualMachine})
	first, second := drivertest.Request(1), drivertest.Request(2)
	asks(first).Reference, asks(second).Reference = "vm1.lan", "vm2.lan"
	asks(first).Sticky = map[v1alpha1.Sticky]string{v1alpha1.StickyVirtualMachine: "vm1"}
	a, err := d.Ensure(t.Context(), first)
	if err != nil || a.Interface.Claim != first.Namespace+"/ipamclaim.vm1.lan" {
		t.Fatalf("%+v, %v", a, err)
	}
	if _, err := d.Ensure(t.Context(), second); !errors.Is(err, fault.ErrExhausted) {
		t.Errorf("the second: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.Ensure(ended, second); !errors.Is(err, fault.ErrUnavailable) && !errors.Is(err, fault.ErrExhausted) {
		t.Errorf("without an answer: %v", err)
	}
	if len(told) == 0 || !strings.HasPrefix(told[0], second.PodName+" of vm2.lan: ") || !strings.Contains(told[0], "no IPv4 address left") {
		t.Errorf("reported: %q", told)
	}
}
