package migrate

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
)

// recordOf returns the PodAttachment of a pod to which Fairlead gave an address.
func recordOf(name, address string) v1alpha1.PodAttachment {
	return v1alpha1.PodAttachment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name + "-record"},
		Spec: v1alpha1.PodAttachmentSpec{
			PodName: name, PodUID: types.UID(name + "-uid"), NodeName: "node1",
			Interfaces: []v1alpha1.Interface{{
				Name: "net1", Network: lan, Domain: "default", Addresses: []string{address},
				Binding: v1alpha1.Binding{AddressOnly: &v1alpha1.AddressOnlyBinding{}},
			}},
		},
		Status: v1alpha1.PodAttachmentStatus{Sandbox: &v1alpha1.Sandbox{ID: name + "-container", State: v1alpha1.SandboxAttached}},
	}
}

func TestMakeExport(t *testing.T) {
	s := state(
		[]Pool{recorded("1 old", "2 stays", "3 gone", "4 orphan", "x damaged")},
		[]Reservation{reserved("10.0.0.1", "old"), reserved("10.0.0.2", "stays"), reserved("10.0.0.3", "gone"), reserved("10.0.0.4", "orphan")})
	s.Blocks = []v1alpha1.IPBlock{blockWith(
		"1 A 3 1700000000000 new-uid default/new/net1 node1",     // now another pod's
		"2 A 1 1700000000000 stays-uid default/stays/net1 node1", // imported
		"3 F 2 1700000000000", // released since
		"9 A 1 1700000000000 fresh-uid default/fresh/net1 node1", // given since
	)}
	s.Records = []v1alpha1.PodAttachment{recordOf("new", "10.0.0.1/24"), recordOf("stays", "10.0.0.2/24"), recordOf("fresh", "10.0.0.9/24")}

	got, err := MakeExport(s, "kube-system")
	if err != nil {
		t.Fatal(err)
	}
	entry := func(pod string) Allocation {
		return Allocation{ContainerID: pod + "-container", PodRef: "default/" + pod, Interface: "net1"}
	}
	given := func(addr, pod string) Given {
		return Given{
			Address: Address{Domain: "default", Addr: netip.MustParseAddr(addr)},
			Holder:  ipam.Holder{PodUID: pod + "-uid", Interface: "net1", Namespace: "default", Pod: pod, Node: "node1"},
		}
	}
	want := &Export{
		Pools: []Pool{{Namespace: "kube-system", Name: "10.0.0.0-24", Range: "10.0.0.0/24", Allocations: map[string]Allocation{
			"1": entry("new"), "2": entry("stays"), "4": entry("orphan"), "9": entry("fresh"), "x": entry("damaged"),
		}}},
		Reservations: []Reservation{reserved("10.0.0.1", "new"), reserved("10.0.0.9", "fresh")},
		Delete:       []Reservation{reserved("10.0.0.3", "gone")},
		Given:        []Given{given("10.0.0.1", "new"), given("10.0.0.2", "stays"), given("10.0.0.9", "fresh")},
		Findings:     []Finding{},
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Fatal(diff)
	}

	s.Pools = got.Pools
	s.Reservations = []Reservation{reserved("10.0.0.1", "new"), reserved("10.0.0.2", "stays"), reserved("10.0.0.4", "orphan"), reserved("10.0.0.9", "fresh")}
	if again, err := MakeExport(s, "kube-system"); err != nil || !again.Done() {
		t.Errorf("exported again: %v, %+v", err, again)
	}
}

// TestMakeExportAgain covers a rollback that was interrupted at its end: the slots are
// free and the pods exist.
func TestMakeExportAgain(t *testing.T) {
	s := state([]Pool{recorded("1 web")}, []Reservation{reserved("10.0.0.1", "web")}, running("web", lan, "10.0.0.1"))
	s.Blocks = []v1alpha1.IPBlock{blockWith("1 F 2 1700000000000")}
	if got, err := MakeExport(s, "kube-system"); err != nil || !got.Done() {
		t.Errorf("%v, %+v", err, got)
	}
}

// TestMakeExportNewPool covers a range for which whereabouts has no pool.
func TestMakeExportNewPool(t *testing.T) {
	s := state(nil, nil)
	s.Blocks = []v1alpha1.IPBlock{blockWith("9 A 1 1700000000000 fresh-uid default/fresh/net1 node1")}
	s.Records = []v1alpha1.PodAttachment{recordOf("fresh", "10.0.0.9/24")}
	got, err := MakeExport(s, "kube-system")
	if err != nil || len(got.Pools) != 1 || got.Pools[0].Name != "10.0.0.0-24" || got.Pools[0].Allocations["9"].PodRef != "default/fresh" {
		t.Errorf("%v, %+v", err, got)
	}
}

func TestNames(t *testing.T) {
	for _, tt := range []struct {
		space, node, cidr, addr string
		pool, reservation       string
	}{
		{"", "", "10.0.0.0/24", "10.0.0.5", "10.0.0.0-24", "10.0.0.5"},
		{"blue", "", "10.0.0.0/24", "10.0.0.5", "blue-10.0.0.0-24", "blue-10.0.0.5"},
		{"", "node-1", "10.0.0.0/26", "10.0.0.5", "node-1-10.0.0.0-26", "10.0.0.5"},
		{"blue", "node-1", "10.0.0.0/26", "10.0.0.5", "blue-node-1-10.0.0.0-26", "blue-10.0.0.5"},
		{"", "", "fd00::/64", "fd00::5", "fd00---64", "fd00--5"},
		{"blue-net", "", "fd00::/64", "fd00::", "blue-net-fd00---64", "blue-net-fd00--0"},
	} {
		r, a := netip.MustParsePrefix(tt.cidr), netip.MustParseAddr(tt.addr)
		if got := PoolName(tt.space, tt.node, r); got != tt.pool {
			t.Errorf("pool %q, want %q", got, tt.pool)
		}
		if got := ReservationName(tt.space, a); got != tt.reservation {
			t.Errorf("reservation %q, want %q", got, tt.reservation)
		}
		slices := []SlicePool{{Name: "blue", Range: "10.0.0.0/24", Slices: map[string]string{"node-1": "10.0.0.0/26"}}}
		if got, ok := spaceOf(Pool{Name: tt.pool, Range: tt.cidr}, slices); !ok || got != tt.space {
			t.Errorf("space of %q: %q, %v, want %q", tt.pool, got, ok, tt.space)
		}
		found := false
		for _, at := range readings(tt.reservation) {
			found = found || at == place{tt.space, a}
		}
		if !found {
			t.Errorf("%q cannot be read as %s of %q: %v", tt.reservation, a, tt.space, readings(tt.reservation))
		}
	}
}

// FuzzReadings reads any name: a reading formats as the same name again.
func FuzzReadings(f *testing.F) {
	for _, name := range []string{"10.0.0.5", "blue-10.0.0.5", "a-b-fd00--5", "--1", "fd00--0", "-", ""} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		for _, at := range readings(name) {
			if got := ReservationName(at.space, at.addr); got != name {
				t.Errorf("%q read as %+v is written %q", name, at, got)
			}
		}
	})
}

// FuzzMake plans arbitrary entries: no entry makes it fail, every address of an entry is
// imported, withheld or reported, and the reservations are valid.
func FuzzMake(f *testing.F) {
	f.Add("10.0.0.0-24", "10.0.0.0/24", "1", "default/web", "net1", `[{"name":"default/lan","interface":"net1","ips":["10.0.0.1"]}]`, "10.0.0.1")
	f.Add("blue-fd00---64", "fd00::/64", "18446744073709551615", "default/gone", "", `x`, "blue-fd00--ffff-ffff-ffff-ffff")
	// Two addresses, one after the other.
	f.Add("10.0.0.0-24", "10.0.0.0/24", "0", "default/gone", "net1", "", "10.0.0.1")
	f.Fuzz(func(t *testing.T, name, cidr, offset, ref, iface, status, reservation string) {
		web := running("web", lan)
		web.Annotations = map[string]string{statusAnnotation: status}
		s := state([]Pool{{Name: name, Range: cidr, Allocations: map[string]Allocation{offset: {PodRef: ref, Interface: iface}}}},
			[]Reservation{{Name: reservation, PodRef: ref, Interface: iface}}, web)
		plan, err := Make(s, false)
		if err != nil {
			t.Fatal(err)
		}
		if len(plan.Holdings) == 0 && len(plan.Findings) == 0 {
			t.Error("an entry vanished")
		}
		for _, h := range plan.Holdings {
			if err := h.Holder.Validate(); err != nil {
				t.Error(err)
			}
		}
		for _, r := range plan.Withhold {
			if _, err := ipam.ParseReservation(r.Spec.Domain, r.Spec.Ranges); err != nil {
				t.Errorf("withholds %q: %v", r.Spec.Ranges, err)
			}
		}
		if _, err := MakeExport(s, "kube-system"); err != nil {
			t.Error(err)
		}
	})
}
