package neutron

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/driver/neutron/activation"
	"fairlead.dev/fairlead/internal/driver/neutron/choice"
	"fairlead.dev/fairlead/internal/driver/neutron/nested"
	"fairlead.dev/fairlead/internal/openstack/cloud"
	"fairlead.dev/fairlead/test/cloudtest"
	"fairlead.dev/fairlead/test/drivertest"
)

// machines is a cloud with the network "pods", and with one machine for each node, whose
// port is on a network.
type machines struct {
	*cloudtest.Server
	cfg    Config
	nodes  []corev1.Node
	port   map[string]string // of the node's machine
	trunk  map[string]string
	number int
}

func newMachines(t *testing.T, way Way, pods string) *machines {
	t.Helper()
	s, cfg := lan(t, pods)
	s.AddNetwork(t, "machines", "192.168.0.0/24")
	cfg.Way = way
	return &machines{Server: s, cfg: cfg, port: map[string]string{}, trunk: map[string]string{}}
}

// add adds a node with its machine, with a trunk for the way Trunk.
func (m *machines) add(t *testing.T, node string) {
	t.Helper()
	on := 1
	if m.cfg.Way == Macvlan {
		on = 0
	}
	id := m.Add(t, "ports", cloudtest.AdminProject, cloudtest.Object{
		"name": node, "network_id": m.Objects("networks")[on]["id"], "device_id": "machine-" + node, "device_owner": "compute:nova", "binding:host_id": "hypervisor",
	})
	m.port[node] = id
	if m.cfg.Way == Trunk {
		m.trunk[node] = m.Add(t, "trunks", cloudtest.AdminProject, cloudtest.Object{"name": node, "port_id": id})
	}
	address := m.Object("ports", id)["fixed_ips"].([]any)[0].(map[string]any)["ip_address"].(string)
	m.number++
	m.nodes = append(m.nodes, corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node, CreationTimestamp: metav1.Unix(int64(m.number), 0)},
		Spec:       corev1.NodeSpec{ProviderID: "openstack:///machine-" + node},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}},
	})
}

func (m *machines) start(t *testing.T) *Driver {
	t.Helper()
	d := connected(t, m.cfg, m.File, cloudtest.Admin)
	d.nodes.reader = fake.NewClientBuilder().WithLists(&corev1.NodeList{Items: m.nodes}).Build()
	return d
}

// subports returns the VLANs of a node's trunk by port.
func (m *machines) subports(node string) map[string]int {
	out := map[string]int{}
	for _, s := range m.Object("trunks", m.trunk[node])["sub_ports"].([]any) {
		s := s.(map[string]any)
		out[s["port_id"].(string)] = int(s["segmentation_id"].(float64))
	}
	return out
}

// pairsOfNode1 returns the pairs of the port of node-1, as "address MAC".
func (m *machines) pairsOfNode1() (out []string) {
	for _, p := range m.Object("ports", m.port["node-1"])["allowed_address_pairs"].([]any) {
		p := p.(map[string]any)
		out = append(out, fmt.Sprint(p["ip_address"], " ", p["mac_address"]))
	}
	slices.Sort(out)
	return out
}

func (m *machines) setPairs(t *testing.T, node string, pairs ...cloud.Pair) {
	t.Helper()
	c, err := m.start(t).conn.get()
	if err == nil {
		_, err = c.UpdatePort(t.Context(), m.port[node], 0, cloud.PortChange{Pairs: &pairs})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// pods returns the number of ports of pods.
func (m *machines) pods() (n int) {
	for _, p := range m.Objects("ports") {
		if p["device_owner"] == DeviceOwner || p["device_owner"] == subportOwner {
			n++
		}
	}
	return n
}

func on(node string, n int) *driver.Request {
	r := drivertest.Request(n)
	r.NodeName = node
	return r
}

func TestContractOfWays(t *testing.T) {
	for _, way := range []Way{Trunk, Macvlan} {
		t.Run(string(way), func(t *testing.T) {
			drivertest.Run(t, func(t *testing.T) drivertest.Backend {
				m := newMachines(t, way, "10.8.0.0/28")
				m.SetMaxPairs(64)
				m.add(t, "node-1")
				b := drivertest.Backend{
					Start:      func(t *testing.T) driver.Driver { return m.start(t) },
					Capacity:   13,
					Recover:    func() {},
					OwnBinding: true,
					Interrupt: func(after bool, do func()) {
						var done atomic.Bool
						m.Inject(func(method, path string) cloudtest.Fault {
							if method != "POST" || path != "/ports" || !done.CompareAndSwap(false, true) {
								return cloudtest.Fault{}
							}
							do()
							return cloudtest.Fault{LoseRequest: !after, LoseReply: after}
						})
					},
				}
				if way == Macvlan {
					b.Capacity = 12 // the machine has an address
				}
				return b
			})
		})
	}
}

// A subport has the VLAN that the trunk of its node has for it, and a pair has the addresses
// of its port with a MAC of its own. Both name the link of the node by the MAC of its port,
// and nothing is left of them after the release.
func TestBindingOfWays(t *testing.T) {
	m := newMachines(t, Trunk, "10.8.0.0/24")
	m.add(t, "node-1")
	d := m.start(t)
	ref := attach(t, d, on("node-1", 1))
	port := ref.Interface.Binding.Port()
	parent := m.Object("ports", m.port["node-1"])["mac_address"].(string)
	if diff := cmp.Diff(v1alpha1.Binding{VLAN: &v1alpha1.VLANBinding{ParentMAC: parent, PortID: port, ID: int32(m.subports("node-1")[port])}}, ref.Interface.Binding); diff != "" {
		t.Errorf("binding of a subport (-want +got):\n%s", diff)
	}
	if err := ref.Interface.Validate(); err != nil || !ref.Interface.WaitForActive {
		t.Errorf("%+v: %v", ref.Interface, err)
	}
	if err := d.Release(t.Context(), ref); err != nil || m.pods() != 0 || len(m.subports("node-1")) != 0 {
		t.Errorf("after the release: %v, %d ports, subports %v", err, m.pods(), m.subports("node-1"))
	}

	m = newMachines(t, Macvlan, "10.8.0.0/24")
	m.add(t, "node-1")
	others := m.pairsOfNode1()
	d = m.start(t)
	ref = attach(t, d, on("node-1", 1))
	port = ref.Interface.Binding.Port()
	parent = m.Object("ports", m.port["node-1"])["mac_address"].(string)
	if diff := cmp.Diff(v1alpha1.Binding{Macvlan: &v1alpha1.MacvlanBinding{ParentMAC: parent, PortID: port, Mode: "bridge"}}, ref.Interface.Binding); diff != "" {
		t.Errorf("binding of a pair (-want +got):\n%s", diff)
	}
	address, _, _ := strings.Cut(ref.Interface.Addresses[0], "/")
	if diff := cmp.Diff([]string{address + " " + ref.Interface.MAC}, m.pairsOfNode1()); diff != "" {
		t.Errorf("pairs (-want +got):\n%s", diff)
	}
	// Tried on Neutron with OVN: of two ports with one MAC, OVN chose the unbound port, and the
	// pod got no packet.
	if own := m.Object("ports", port)["mac_address"]; own == ref.Interface.MAC || ref.Interface.WaitForActive {
		t.Errorf("the pod has MAC %s, its port %s; WaitForActive %v", ref.Interface.MAC, own, ref.Interface.WaitForActive)
	}
	if err := d.Release(t.Context(), ref); err != nil || m.pods() != 0 || !slices.Equal(m.pairsOfNode1(), others) {
		t.Errorf("after the release: %v, %d ports, pairs %v", err, m.pods(), m.pairsOfNode1())
	}
}

// The label of a node chooses its way, then Kuryr's label, then the configuration.
func TestWayOfANode(t *testing.T) {
	d := New(Config{Way: Macvlan})
	for _, tc := range []struct {
		name   string
		labels map[string]string
		want   Way
		err    string
	}{
		{name: "no label", labels: map[string]string{}, want: Macvlan},
		{name: "ours", labels: map[string]string{v1alpha1.LabelNeutronPort: "trunk", labelKuryr: "neutron-vif"}, want: Trunk},
		{name: "Kuryr's", labels: map[string]string{labelKuryr: "nested-vlan"}, want: Trunk},
		{name: "another", labels: map[string]string{v1alpha1.LabelNeutronPort: "vlan"}, err: `label fairlead.dev/neutron-port="vlan" of Node node-1: must be host, trunk or macvlan`},
		{name: "another of Kuryr's", labels: map[string]string{labelKuryr: "nested-dpdk"}, err: `label pod_vif="nested-dpdk" of Node node-1 is not served`},
		{name: "not known", err: "the labels of Node node-1 are not known yet"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := drivertest.Request(1)
			r.NodeLabels = tc.labels
			got, err := d.nodes.wayOf(r)
			if tc.err == "" && (got != tc.want || err != nil) || tc.err != "" && (driver.Result(err) != "Unavailable" || !strings.Contains(err.Error(), tc.err)) {
				t.Errorf("%s, %v; want %s, %s", got, err, tc.want, tc.err)
			}
		})
	}
	d.nodes.way = ""
	if got, err := d.nodes.wayOf(drivertest.Request(1)); got != Host || err != nil {
		t.Errorf("without a configuration: %s, %v", got, err)
	}
}

// kuryr 7.3: one set of VLANs for all trunks allowed some 4094 nested pods in a cluster.
func TestVLANsOfEachTrunk(t *testing.T) {
	m := newMachines(t, Trunk, "10.8.0.0/24")
	m.add(t, "node-1")
	m.add(t, "node-2")
	d := m.start(t)
	one, two := attach(t, d, on("node-1", 1)), attach(t, d, on("node-2", 2))
	if a, b := one.Interface.Binding.VLAN.ID, two.Interface.Binding.VLAN.ID; a != 1 || b != 1 {
		t.Errorf("VLANs %d and %d of two trunks, want 1 and 1", a, b)
	}
	if a, b := len(m.subports("node-1")), len(m.subports("node-2")); a != 1 || b != 1 {
		t.Errorf("%d and %d subports", a, b)
	}
}

// kuryr 7.3: a conflict leaked the VLAN, and the next try used a wrong port. Here another
// leader, which the first does not know of, has taken the VLANs.
func TestTwoLeadersOnATrunk(t *testing.T) {
	m := newMachines(t, Trunk, "10.8.0.0/24")
	m.add(t, "node-1")
	a, b := m.start(t), m.start(t)
	attach(t, a, on("node-1", 0)) // both know the trunk
	attach(t, b, on("node-1", 1))
	var wg sync.WaitGroup
	for n := range 12 {
		wg.Go(func() { attach(t, []*Driver{a, b}[n%2], on("node-1", 2+n)) })
	}
	wg.Wait()
	used := map[int]bool{}
	for _, vlan := range m.subports("node-1") {
		used[vlan] = true
	}
	if len(used) != 14 || m.pods() != 14 {
		t.Errorf("%d VLANs, %d ports, want 14", len(used), m.pods())
	}
}

// A reply that is lost after the addition: the subport is adopted with its VLAN.
func TestLostReplyOfAnAttachment(t *testing.T) {
	for _, way := range []Way{Trunk, Macvlan} {
		t.Run(string(way), func(t *testing.T) {
			m := newMachines(t, way, "10.8.0.0/24")
			m.add(t, "node-1")
			d := m.start(t)
			var lost atomic.Bool
			m.Inject(func(method, path string) cloudtest.Fault {
				ours := strings.HasSuffix(path, "/add_subports") || method == "PUT" && path == "/ports/{id}"
				return cloudtest.Fault{LoseReply: ours && lost.CompareAndSwap(false, true)}
			})
			_, err := d.Ensure(t.Context(), on("node-1", 1))
			if err != nil && driver.Result(err) != "Unavailable" || !lost.Load() {
				t.Fatalf("the reply was lost %v: %v", lost.Load(), err)
			}
			ref := attach(t, m.start(t), on("node-1", 1))
			if m.pods() != 1 || way == Trunk && len(m.subports("node-1")) != 1 || way == Macvlan && len(m.pairsOfNode1()) != 1 {
				t.Errorf("%d ports, of %+v", m.pods(), ref.Interface.Binding)
			}
		})
	}
}

// kuryr 1.5 (BZ1969397): a subport that stays DOWN is removed and added with the same VLAN.
func TestSubportThatStaysDown(t *testing.T) {
	m := newMachines(t, Trunk, "10.8.0.0/24")
	m.Stuck(func(p cloudtest.Object) bool { return p["device_id"] == "" })
	m.add(t, "node-1")
	d := m.start(t)
	attach(t, d, on("node-1", 7)) // another, which is not touched
	ref := attach(t, d, on("node-1", 1))
	port, before := ref.Interface.Binding.Port(), m.subports("node-1")
	m.Stuck(nil)
	d.reattach(t.Context(), port, int(ref.Interface.Binding.VLAN.ID))
	if diff := cmp.Diff(before, m.subports("node-1")); diff != "" || m.Object("ports", port)["status"] != activation.Active {
		t.Errorf("port is %v; subports (-before +after):\n%s", m.Object("ports", port)["status"], diff)
	}
}

// A trunk that is missing is named with the command that makes it, and the pods of other
// nodes get their ports. When it is made, the pod gets its port.
func TestMissingTrunk(t *testing.T) {
	m := newMachines(t, Trunk, "10.8.0.0/24")
	m.add(t, "node-1")
	m.cfg.Way = Host // no trunk
	m.add(t, "node-2")
	m.cfg.Way = Trunk
	d := m.start(t)
	refuse(t, d, on("node-2", 2), "Unavailable", "openstack network trunk create --parent-port "+m.port["node-2"])
	attach(t, d, on("node-1", 1))
	if _, err := d.Ensure(t.Context(), on("node-3", 3)); driver.Result(err) != "Unavailable" || !strings.Contains(err.Error(), "Node node-3") {
		t.Errorf("a Node that is not known: %v", err)
	}
	m.trunk["node-2"] = m.Add(t, "trunks", cloudtest.AdminProject, cloudtest.Object{"name": "late", "port_id": m.port["node-2"]})
	ref := attach(t, d, on("node-2", 2))
	// The trunk is deleted by hand and made again, with another ID.
	c, err := d.conn.get()
	if err == nil {
		err = c.DeleteTrunk(t.Context(), m.trunk["node-2"])
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Release(t.Context(), ref); err != nil {
		t.Errorf("release after the trunk: %v", err)
	}
	m.trunk["node-2"] = m.Add(t, "trunks", cloudtest.AdminProject, cloudtest.Object{"name": "again", "port_id": m.port["node-2"]})
	attach(t, d, on("node-2", 3))
	if n := len(m.subports("node-2")); n != 1 {
		t.Errorf("%d subports of the new trunk", n)
	}
}

// A Node with the machine of an older Node gets no port there.
func TestNodeThatClaimsAnotherMachine(t *testing.T) {
	m := newMachines(t, Trunk, "10.8.0.0/24")
	m.add(t, "node-1")
	bad := m.nodes[0].DeepCopy()
	bad.Name, bad.CreationTimestamp = "a-bad-node", metav1.Unix(100, 0)
	m.nodes = append(m.nodes, *bad)
	d := m.start(t)
	refuse(t, d, on("a-bad-node", 1), "Unavailable", "Node a-bad-node has the same machine or address as Node node-1, which is older")
	attach(t, d, on("node-1", 2))
	if n := len(m.subports("node-1")); n != 1 {
		t.Errorf("%d subports", n)
	}
}

// afterRead changes a port once between the read of it and the write.
type afterRead struct {
	nested.PairCalls
	once sync.Once
	then func()
}

func (a *afterRead) Port(ctx context.Context, id string) (cloud.Port, error) {
	p, err := a.PairCalls.Port(ctx, id)
	a.once.Do(a.then)
	return p, err
}

// Pairs of others stay, and so do those that come between the read and the write.
func TestPairsOfOthersStay(t *testing.T) {
	m := newMachines(t, Macvlan, "10.8.0.0/24")
	m.add(t, "node-1")
	other := func(text string) cloud.Pair { return cloud.Pair{Prefix: netip.MustParsePrefix(text)} }
	m.setPairs(t, "node-1", other("10.244.0.0/16"))
	d := m.start(t)
	calls, err := d.conn.get()
	if err != nil {
		t.Fatal(err)
	}
	d.pairs = nested.NewPairs(func() (nested.PairCalls, error) {
		return &afterRead{PairCalls: calls, then: func() { m.setPairs(t, "node-1", other("10.244.0.0/16"), other("10.245.0.0/16")) }}, nil
	})
	ref := attach(t, d, on("node-1", 1))
	if n := len(m.pairsOfNode1()); n != 3 {
		t.Errorf("pairs %v", m.pairsOfNode1())
	}
	if err := d.Release(t.Context(), ref); err != nil || len(m.pairsOfNode1()) != 2 {
		t.Errorf("after the release: %v, %v", err, m.pairsOfNode1())
	}
}

// A port has room for few pairs. Pods beyond it get an error, and those that came with them
// get theirs.
func TestNoRoomForPairs(t *testing.T) {
	m := newMachines(t, Macvlan, "10.8.0.0/24")
	m.SetMaxPairs(4)
	m.add(t, "node-1")
	d := m.start(t)
	var wg sync.WaitGroup
	var got, full atomic.Int32
	for n := range 6 {
		wg.Go(func() {
			switch _, err := d.Ensure(t.Context(), on("node-1", n)); {
			case err == nil:
				got.Add(1)
			case driver.Result(err) == "Exhausted" && strings.Contains(err.Error(), "the port of node node-1 has no room for another allowed address pair"):
				full.Add(1)
			default:
				t.Errorf("Ensure: %v", err)
			}
		})
	}
	wg.Wait()
	if got.Load() != 4 || full.Load() != 2 || len(m.pairsOfNode1()) != 4 {
		t.Errorf("%d pods got pairs, %d did not, the port has %v", got.Load(), full.Load(), m.pairsOfNode1())
	}
}

// Neutron enforces nothing at the port of a pod whose addresses are pairs: a request for it
// is refused before anything is made.
func TestRefusedOnPairs(t *testing.T) {
	m := newMachines(t, Macvlan, "10.8.0.0/24")
	m.add(t, "node-1")
	d := m.start(t)
	r := drivertest.Request(1)
	r.NamespaceLabels = map[string]string{}
	d.cfg.Choice.Open = []choice.Opening{{Namespaces: labels.Everything(), Names: map[string][]string{choice.KindGroup: {"web"}}}}
	m.Add(t, "security-groups", cloudtest.AdminProject, cloudtest.Object{"name": "web"})
	r.Asks = choice.Asks{PodGroups: []string{"web"}}
	refuse(t, d, r, "Invalid", "security groups, port security and QoS policy are those of the node")
	refuse(t, d, onLan(1, choice.Settings{Network: "pods", PortSecurity: new(bool)}), "Invalid", "port security")
	refuse(t, d, onLan(1, choice.Settings{Network: "machines"}), "Invalid", "on the network of its own port")
	r = drivertest.Request(1)
	r.MAC = "02:00:00:00:00:01"
	refuse(t, d, r, "Invalid", "the pod asks for MAC 02:00:00:00:00:01")
	if m.pods() != 0 || len(m.pairsOfNode1()) != 0 {
		t.Errorf("%d ports, pairs %v", m.pods(), m.pairsOfNode1())
	}
}

// A port that was made, and not attached before a crash, is listed and released.
func TestHalfMade(t *testing.T) {
	for _, way := range []Way{Trunk, Macvlan} {
		t.Run(string(way), func(t *testing.T) {
			m := newMachines(t, way, "10.8.0.0/24")
			m.add(t, "node-1")
			d := m.start(t)
			ctx, cancel := context.WithCancel(t.Context())
			m.Inject(func(method, path string) cloudtest.Fault {
				if strings.HasSuffix(path, "/add_subports") || method == "PUT" && path == "/ports/{id}" {
					cancel()
					return cloudtest.Fault{LoseRequest: true}
				}
				return cloudtest.Fault{}
			})
			if _, err := d.Ensure(ctx, on("node-1", 1)); err == nil || m.pods() != 1 {
				t.Fatalf("Ensure: %v, %d ports", err, m.pods())
			}
			m.Inject(nil)
			next, n := m.start(t), 0
			for ref, err := range next.List(t.Context()) {
				if err != nil {
					t.Fatal(err)
				}
				if n++; ref.Interface.Validate() != nil {
					t.Errorf("it cannot be recorded: %+v", ref.Interface)
				}
				if err := next.Release(t.Context(), ref); err != nil {
					t.Error(err)
				}
			}
			if n != 1 || m.pods() != 0 {
				t.Errorf("%d listed, %d ports left", n, m.pods())
			}
		})
	}
}
