package migrate

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/whereabouts"
)

// lan is the network of most tests: 10.0.0.0/24 without a network_name.
const lan = "default/lan"

// network returns a Network of one range.
func network(name, space, cidr string) Network {
	r := netip.MustParsePrefix(cidr)
	section, _ := json.Marshal(map[string]string{"type": whereabouts.Type, "range": cidr, "network_name": space})
	c, _, err := whereabouts.Parse(section, nil)
	if err != nil {
		panic(err)
	}
	return Network{Name: name, Space: space, Domain: whereabouts.Domain(space), Ranges: []netip.Prefix{r}, Overlapping: true, Pools: whereabouts.Pools(c, whereabouts.Domain(space))}
}

// running returns a running pod whose network-status shows addresses of a network on
// net1; without addresses it has no network-status.
func running(name, network string, ips ...string) corev1.Pod {
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name + "-uid-0001")},
		Spec:       corev1.PodSpec{NodeName: "node1"},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "172.16.0.5"}}},
	}
	if len(ips) > 0 {
		raw, _ := json.Marshal([]attached{
			{Name: "cbr0", Interface: "eth0", IPs: []string{"172.16.0.5"}, Default: true},
			{Name: network, Interface: "net1", IPs: ips},
		})
		p.Annotations = map[string]string{statusAnnotation: string(raw)}
	}
	return p
}

// recorded returns a pool of 10.0.0.0/24 with entries "offset pod".
func recorded(entries ...string) Pool {
	p := Pool{Namespace: "kube-system", Name: "10.0.0.0-24", Range: "10.0.0.0/24", Allocations: map[string]Allocation{}}
	for _, e := range entries {
		offset, name, _ := strings.Cut(e, " ")
		p.Allocations[offset] = Allocation{ContainerID: name + "-container", PodRef: "default/" + name, Interface: "net1"}
	}
	return p
}

func reserved(name, pod string) Reservation {
	return Reservation{Namespace: "kube-system", Name: name, PodRef: "default/" + pod, Interface: "net1"}
}

func state(pools []Pool, reservations []Reservation, pods ...corev1.Pod) State {
	return State{
		Pools: pools, Reservations: reservations, Pods: pods, Networks: []Network{network(lan, "", "10.0.0.0/24")},
		BootIDs: map[string]string{"node1": "boot-1"}, NodeUIDs: map[string]types.UID{"node1": "uid-of-node1"}, DomainOf: whereabouts.Domain,
	}
}

// outline describes a plan in words: the imported addresses, and the findings.
func outline(p *Plan) (imports, findings []string) {
	for _, h := range p.Holdings {
		imports = append(imports, fmt.Sprintf("%s %s %s/%s", h.Domain, h.Prefix, h.Holder.Pod, h.Holder.Interface))
	}
	for _, f := range p.Findings {
		findings = append(findings, fmt.Sprintf("%s %s %s %s", f.Domain, f.Address, f.Kind, f.Outcome))
	}
	return imports, findings
}

func withheld(p *Plan) []string {
	var out []string
	for _, r := range p.Withhold {
		out = append(out, r.Spec.Domain+" "+strings.Join(r.Spec.Ranges, " "))
	}
	return out
}

func TestMake(t *testing.T) {
	pending := running("web", lan)
	pending.Status.Phase = corev1.PodPending
	finished := running("web", lan, "10.0.0.1")
	finished.Status.Phase = corev1.PodSucceeded
	silent := running("web", lan)
	hidden, unlisted := running("web", lan), running("web", lan)
	hidden.Annotations = map[string]string{statusAnnotation: `[{"name":"cbr0","interface":"eth0","ips":["172.16.0.5"],"default":true},{"name":"default/lan","interface":"net1"}]`}
	unlisted.Annotations = map[string]string{statusAnnotation: `[{"name":"cbr0","interface":"eth0","ips":["172.16.0.5"],"default":true}]`}
	named := network("default/named", "blue", "10.0.0.0/24")
	six := network("default/six", "", "fd00::/64")
	sliced := network("default/sliced", "", "10.2.0.0/16")
	primary := running("web", "")
	primary.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.1"}}
	with := func(s State, change func(*State)) State { change(&s); return s }

	for _, tt := range []struct {
		name     string
		state    State
		imports  []string
		findings []string
		withheld []string
	}{
		{
			name:    "as it should be",
			state:   state([]Pool{recorded("1 web")}, []Reservation{reserved("10.0.0.1", "web")}, running("web", lan, "10.0.0.1")),
			imports: []string{"default 10.0.0.1/24 web/net1"},
		},
		{
			// whereabouts#712, defect 1 of v0.9.4: the write of the pool failed and
			// its error was overwritten, so the address is only in the reservation.
			name:     "a reservation without an allocation",
			state:    state([]Pool{recorded()}, []Reservation{reserved("10.0.0.1", "web")}, running("web", lan, "10.0.0.1")),
			imports:  []string{"default 10.0.0.1/24 web/net1"},
			findings: []string{"default 10.0.0.1 NoAllocation reported"},
		},
		{
			// Defect 2: without overlap checking nothing at all is written, and
			// three pods in a row get one address.
			name:     "one address on three pods",
			state:    state([]Pool{recorded()}, nil, running("a", lan, "10.0.0.1"), running("b", lan, "10.0.0.1"), running("c", lan, "10.0.0.1")),
			findings: []string{"default 10.0.0.1 Duplicate withheld"},
			withheld: []string{"default 10.0.0.1"},
		},
		{
			name:     "in use and not recorded",
			state:    state([]Pool{recorded()}, nil, running("web", lan, "10.0.0.9")),
			imports:  []string{"default 10.0.0.9/24 web/net1"},
			findings: []string{"default 10.0.0.9 NotRecorded imported"},
		},
		{
			// Defect 3: the reconciler deletes the reservations of running pods on
			// named networks.
			name: "an allocation without its reservation on a named network",
			state: with(state(nil, nil, running("web", "default/named", "10.0.0.1")), func(s *State) {
				p := recorded("1 web")
				p.Name = "blue-10.0.0.0-24"
				s.Pools, s.Networks = []Pool{p}, []Network{named}
			}),
			imports:  []string{"blue 10.0.0.1/24 web/net1"},
			findings: []string{"blue 10.0.0.1 NoReservation reported"},
		},
		{
			// Defect 4: the reconciler frees the addresses of a running pod without
			// network-status, and of a pod that is being started.
			name:     "a running pod without network-status",
			state:    state([]Pool{recorded("1 web")}, []Reservation{reserved("10.0.0.1", "web")}, silent),
			imports:  []string{"default 10.0.0.1/24 web/net1"},
			findings: []string{"default 10.0.0.1 NotVerified imported"},
		},
		{
			// An interface outside the kernel, as of DPDK: the address is in use, and the
			// pod does not show it.
			name:     "an interface that is shown without an address",
			state:    state([]Pool{recorded("1 web")}, []Reservation{reserved("10.0.0.1", "web")}, hidden),
			imports:  []string{"default 10.0.0.1/24 web/net1"},
			findings: []string{"default 10.0.0.1 NotVerified imported"},
		},
		{
			name:     "an interface that is shown without an address, of a pod that another shows the address of",
			state:    state([]Pool{recorded("1 web")}, []Reservation{reserved("10.0.0.1", "web")}, hidden, running("other", lan, "10.0.0.1")),
			findings: []string{"default 10.0.0.1 Duplicate withheld"},
			withheld: []string{"default 10.0.0.1"},
		},
		{
			name:     "an interface that is not shown",
			state:    state([]Pool{recorded("1 web")}, []Reservation{reserved("10.0.0.1", "web")}, unlisted),
			findings: []string{"default 10.0.0.1 NotVerified withheld"},
			withheld: []string{"default 10.0.0.1"},
		},
		{
			// Versions of whereabouts before 0.6.2 recorded no interface.
			name: "an interface that is neither recorded nor shown with an address",
			state: state([]Pool{{Namespace: "kube-system", Name: "10.0.0.0-24", Range: "10.0.0.0/24", Allocations: map[string]Allocation{"1": {PodRef: "default/web"}}}},
				[]Reservation{{Namespace: "kube-system", Name: "10.0.0.1", PodRef: "default/web"}}, hidden),
			imports:  []string{"default 10.0.0.1/24 web/net1"},
			findings: []string{"default 10.0.0.1 NotVerified imported"},
		},
		{
			name:     "a pod that is being started",
			state:    state([]Pool{recorded("1 web")}, []Reservation{reserved("10.0.0.1", "web")}, pending),
			findings: []string{"default 10.0.0.1 NotYetShown withheld"},
			withheld: []string{"default 10.0.0.1"},
		},
		{
			name:     "a silent pod and one that shows its address",
			state:    state([]Pool{recorded("1 web")}, []Reservation{reserved("10.0.0.1", "web")}, silent, running("other", lan, "10.0.0.1")),
			findings: []string{"default 10.0.0.1 Duplicate withheld"},
			withheld: []string{"default 10.0.0.1"},
		},
		{
			// Defect 5: DEL leaves the addresses of the other family, and an ADD
			// that failed half-way leaves those of the first range.
			name: "a family leaked",
			state: with(state([]Pool{recorded("1 web"), {Namespace: "kube-system", Name: "fd00---64", Range: "fd00::/64", Allocations: map[string]Allocation{"1": {PodRef: "default/gone"}}}},
				[]Reservation{reserved("10.0.0.1", "web"), reserved("fd00--1", "gone")}, running("web", lan, "10.0.0.1")), func(s *State) { s.Networks = append(s.Networks, six) }),
			imports:  []string{"default 10.0.0.1/24 web/net1"},
			findings: []string{"default fd00::1 PodGone withheld"},
			withheld: []string{"default fd00::1"},
		},
		{
			// Defect 5: exclude is ignored in slice mode. The pod keeps its address.
			name: "an address that the pool excludes, in a slice",
			state: with(state(nil, nil, running("web", "default/sliced", "10.2.1.1")), func(s *State) {
				s.Networks = []Network{sliced}
				s.Networks[0].Pools[0].Spec.Excludes = []string{"10.2.1.1"}
				s.Slices = []SlicePool{{Name: "sliced", Range: "10.2.0.0/16", Slices: map[string]string{"node-1": "10.2.1.0/24"}}}
				s.Pools = []Pool{{Namespace: "kube-system", Name: "node-1-10.2.1.0-24", Range: "10.2.1.0/24", Allocations: map[string]Allocation{"1": {PodRef: "default/web", Interface: "net1"}}}}
				s.Reservations = []Reservation{reserved("10.2.1.1", "web")}
			}),
			imports: []string{"default 10.2.1.1/16 web/net1"},
		},
		{
			name:     "a pod of the same name with another address",
			state:    state([]Pool{recorded("1 web", "2 web")}, []Reservation{reserved("10.0.0.1", "web"), reserved("10.0.0.2", "web")}, running("web", lan, "10.0.0.2")),
			imports:  []string{"default 10.0.0.2/24 web/net1"},
			findings: []string{"default 10.0.0.1 NotShown withheld"},
			withheld: []string{"default 10.0.0.1"},
		},
		{
			name:     "recorded for one pod and used by another",
			state:    state([]Pool{recorded("1 web")}, []Reservation{reserved("10.0.0.1", "web")}, running("other", lan, "10.0.0.1")),
			imports:  []string{"default 10.0.0.1/24 other/net1"},
			findings: []string{"default 10.0.0.1 RecordedForAnother imported"},
		},
		{
			// whereabouts#550.
			name:     "a pod that has finished",
			state:    state([]Pool{recorded("1 web")}, []Reservation{reserved("10.0.0.1", "web")}, finished),
			findings: []string{"default 10.0.0.1 PodFinished withheld"},
			withheld: []string{"default 10.0.0.1"},
		},
		{
			// whereabouts reads offsets with a sign, and loses the entries beyond: the
			// upper half of a /64.
			name: "the upper half of a /64",
			state: with(state(nil, nil, running("web", "default/six", "fd00::ffff:0:0:1")), func(s *State) {
				s.Networks = []Network{six}
				s.Pools = []Pool{{Namespace: "kube-system", Name: "fd00---64", Range: "fd00::/64", Allocations: map[string]Allocation{"18446462598732840961": {PodRef: "default/web", Interface: "net1"}}}}
				s.Reservations = []Reservation{reserved("fd00--ffff-0-0-1", "web")}
			}),
			imports: []string{"default fd00::ffff:0:0:1/64 web/net1"},
		},
		{
			name:  "what cannot be read",
			state: state([]Pool{recorded("-1 a", "x b", "300 c", "4294967296 d"), {Name: "other", Range: "10.0.0.0/24", Allocations: map[string]Allocation{"1": {}}}}, []Reservation{reserved("nobody", "e")}),
			findings: []string{
				" nobody Undecodable reported",
				"default 10.0.0.0/24 Undecodable reported", "default 10.0.0.0/24 Undecodable reported", "default 10.0.0.0/24 Undecodable reported", "default other Undecodable reported",
				"default 10.0.1.44 NoReservation reported", "default 10.0.1.44 OutOfRange withheld", "default 10.0.1.44 PodGone withheld",
			},
			withheld: []string{"default 10.0.1.44"},
		},
		{
			name:     "two spellings of one offset",
			state:    state([]Pool{recorded("1 web", "01 other")}, []Reservation{reserved("10.0.0.1", "web")}, running("web", lan, "10.0.0.1"), running("other", lan)),
			findings: []string{"default 10.0.0.1 Duplicate withheld"},
			withheld: []string{"default 10.0.0.1"},
		},
		{
			name:    "the only network of a pod",
			state:   state([]Pool{recorded("1 web")}, []Reservation{reserved("10.0.0.1", "web")}, primary),
			imports: []string{"default 10.0.0.1/24 web/net1"},
		},
		{
			// Every user may write the annotations of his own pods.
			name: "a network-status that nothing can come of",
			state: state([]Pool{recorded("1 web")}, []Reservation{reserved("10.0.0.1", "web")}, func() corev1.Pod {
				p := running("web", lan)
				p.Annotations = map[string]string{statusAnnotation: `[{"name":"default/lan","interface":"not a name of an interface","ips":["10.0.0.1","x"]}]`}
				return p
			}()),
			findings: []string{"default 10.0.0.1 NotVerified withheld"},
			withheld: []string{"default 10.0.0.1"},
		},
		{
			name:     "neighbours are withheld as one range",
			state:    state([]Pool{recorded("1 a", "2 b", "3 c", "7 d")}, []Reservation{reserved("10.0.0.1", "a"), reserved("10.0.0.2", "b"), reserved("10.0.0.3", "c"), reserved("10.0.0.7", "d")}),
			findings: []string{"default 10.0.0.1 PodGone withheld", "default 10.0.0.2 PodGone withheld", "default 10.0.0.3 PodGone withheld", "default 10.0.0.7 PodGone withheld"},
			withheld: []string{"default 10.0.0.1-10.0.0.3 10.0.0.7"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			plan, err := Make(tt.state, false)
			if err != nil {
				t.Fatal(err)
			}
			imports, findings := outline(plan)
			if diff := cmp.Diff(tt.imports, imports); diff != "" {
				t.Error("imports", diff)
			}
			if diff := cmp.Diff(tt.findings, findings); diff != "" {
				t.Error("findings", diff)
			}
			if diff := cmp.Diff(tt.withheld, withheld(plan)); diff != "" {
				t.Error("withheld", diff)
			}
		})
	}
}

// TestMakeDropped checks which addresses --drop-orphans frees.
func TestMakeDropped(t *testing.T) {
	pending := running("starting", lan)
	pending.Status.Phase = corev1.PodPending
	s := state([]Pool{recorded("1 gone", "2 starting")}, []Reservation{reserved("10.0.0.1", "gone"), reserved("10.0.0.2", "starting")},
		pending, running("a", lan, "10.0.0.3"), running("b", lan, "10.0.0.3"))
	hidden := running("hidden", lan)
	hidden.Annotations = map[string]string{statusAnnotation: `[{"name":"default/lan","interface":"net1"}]`}
	s.Pods = append(s.Pods, hidden)
	s.Pools[0].Allocations["5"] = Allocation{PodRef: "default/hidden", Interface: "net1"}
	plan, err := Make(s, true)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"default 10.0.0.2-10.0.0.3"}, withheld(plan)); diff != "" {
		t.Error(diff)
	}
	if imports, _ := outline(plan); !slices.Equal(imports, []string{"default 10.0.0.5/24 hidden/net1"}) {
		t.Errorf("imports %q", imports)
	}
}

// TestMakeRecord checks the PodAttachment of a pod with two networks.
func TestMakeRecord(t *testing.T) {
	six := recorded()
	six.Name, six.Range, six.Allocations = "fd00---64", "fd00::/64", map[string]Allocation{"1": {ContainerID: "c1", PodRef: "default/web", Interface: "net1"}}
	s := state([]Pool{recorded("1 web"), six}, nil, running("web", lan, "10.0.0.1", "fd00::1"))
	dual := network("default/six", "", "fd00::/64")
	s.Networks[0].Gateways, s.Networks[0].Routes = []string{"10.0.0.254"}, []v1alpha1.Route{{Destination: "10.1.0.0/16"}}
	s.Networks[0].Ranges, s.Networks[0].Pools = append(s.Networks[0].Ranges, dual.Ranges...), append(s.Networks[0].Pools, dual.Pools...)
	plan, err := Make(s, false)
	if err != nil || len(plan.Records) != 1 {
		t.Fatalf("%v, %d records", err, len(plan.Records))
	}
	r := plan.Records[0]
	want := []v1alpha1.Interface{{
		Name: "net1", Network: lan, Driver: "native", Addresses: []string{"10.0.0.1/24", "fd00::1/64"}, Domain: "default", Pool: "wb-10.0.0.0-24",
		Gateways: s.Networks[0].Gateways, Routes: s.Networks[0].Routes,
		Binding: v1alpha1.Binding{AddressOnly: &v1alpha1.AddressOnlyBinding{}},
	}}
	if diff := cmp.Diff(want, r.Object.Spec.Interfaces); diff != "" {
		t.Error(diff)
	}
	if got := r.Object.Spec.NodeUID; got != "uid-of-node1" {
		t.Errorf("it was made for Node %q, want uid-of-node1", got)
	}
	if want := (v1alpha1.Sandbox{ID: "web-container", State: v1alpha1.SandboxAttached, BootID: "boot-1"}); !cmp.Equal(r.Sandbox, want) {
		t.Errorf("sandbox %+v, want %+v", r.Sandbox, want)
	}
	if len(plan.Pools) != 2 {
		t.Errorf("%d pools, want 2", len(plan.Pools))
	}
	// A PodAttachment is immutable: an existing one cannot get the address.
	s.Records = []v1alpha1.PodAttachment{*r.Object}
	s.Records[0].Spec.Interfaces[0].Addresses = []string{"10.0.0.1/24"}
	if plan, err = Make(s, false); err != nil {
		t.Fatal(err)
	}
	if _, findings := outline(plan); !slices.Contains(findings, "default fd00::1 HasRecord withheld") {
		t.Errorf("findings %q", findings)
	}
}

// TestMakeRefuses checks that nothing is written if Fairlead has given an address to
// another pod.
func TestMakeRefuses(t *testing.T) {
	s := state([]Pool{recorded("1 web")}, nil, running("web", lan, "10.0.0.1"))
	s.Blocks = []v1alpha1.IPBlock{blockWith("1 A 1 1700000000000 other-uid default/other/net1 node1")}
	plan, err := Make(s, false)
	if err != nil || len(plan.Refused()) != 1 {
		t.Fatalf("%v, findings %+v", err, plan.Findings)
	}
}

func blockWith(slots ...string) v1alpha1.IPBlock {
	return v1alpha1.IPBlock{
		ObjectMeta: metav1.ObjectMeta{Name: "default.4-0a000000"},
		Spec:       v1alpha1.IPBlockSpec{Domain: "default", CIDR: "10.0.0.0/26", Slots: slots},
	}
}
