package neutron

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/driver/neutron/pool"
	"fairlead.dev/fairlead/internal/openstack/cloud"
	"fairlead.dev/fairlead/test/cloudtest"
	"fairlead.dev/fairlead/test/drivertest"
	"fairlead.dev/fairlead/test/pooltest"
)

// pooled starts a process with pools on the trunks of machines.
func (m *machines) pooled(t *testing.T, api *pooltest.API, marks pool.Marks) *patient {
	t.Helper()
	return startOn(t, m.Server, api, m.cfg, marks, fake.NewClientBuilder().WithLists(&corev1.NodeList{Items: m.nodes}).Build())
}

func TestContractWithPoolsOnTrunks(t *testing.T) {
	drivertest.Run(t, func(t *testing.T) drivertest.Backend {
		m := newMachines(t, Trunk, "10.8.0.0/28")
		m.add(t, "node-1")
		return backend(func(t *testing.T, api *pooltest.API) driver.Driver { return m.pooled(t, api, few) })
	})
}

// The ports of a refill are added to the trunk of the node with one call. A pod gets one of
// them with its VLAN, without a call of Neutron. A released port stays on the trunk. Ports that
// leave the pool leave the trunk.
func TestPoolOnATrunk(t *testing.T) {
	m := newMachines(t, Trunk, "10.8.0.0/24")
	m.add(t, "node-1")
	api := pooltest.New()
	t.Run("pods", func(t *testing.T) { // the processes end with it
		calls := counted(m.Server, nil)
		p := m.pooled(t, api, pool.Marks{Low: 8, High: 16, Batch: 20})
		p.obtain(t, 0)
		p.full(t, 8)
		made := calls()
		if n := made["POST /ports"]; n > 2 || made["PUT /trunks/{id}/add_subports"] != n { // a pod for itself, and the rest
			t.Errorf("calls of the first refill: %v", made)
		}
		if subports, ready := m.subports("node-1"), p.pools.Ready(); len(subports) != ready+1 {
			t.Errorf("%d subports, want those of %d ready ports and of a pod", len(subports), ready)
		}
		again := m.pooled(t, api, pool.Marks{Low: 1, High: 16, Batch: 20}) // the process restarts
		again.full(t, 4)
		counted(m.Server, func(string, string) cloudtest.Fault { return cloudtest.Fault{Status: 500} })
		ref := again.obtain(t, 1)
		vlan := ref.Interface.Binding.VLAN
		if vlan == nil || int(vlan.ID) != m.subports("node-1")[vlan.PortID] || vlan.ParentMAC != m.Object("ports", m.port["node-1"])["mac_address"] || ref.Interface.WaitForActive {
			t.Fatalf("interface %+v, subports %v", ref.Interface, m.subports("node-1"))
		}
		if err := ref.Interface.Validate(); err != nil {
			t.Error(err)
		}
		if err := again.Release(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
		if id, ok := m.subports("node-1")[vlan.PortID]; !ok || id != int(vlan.ID) {
			t.Errorf("the released port has VLAN %d, want %d", id, vlan.ID)
		}
	})
	m.Inject(nil)
	off := m.pooled(t, pooltest.New(), pool.Marks{}) // without the objects: the ports are strays
	found, err := off.made(t.Context())
	if err != nil || len(found) != len(m.subports("node-1")) {
		t.Errorf("%d ports are found, %v; want %v", len(found), err, m.subports("node-1"))
	}
	for _, f := range found {
		if f.Parent != m.port["node-1"] || int(f.VLAN) != m.subports("node-1")[f.ID] || f.Host != "" || len(f.Addresses) != 1 {
			t.Errorf("found %+v", f)
		}
		if err := (maker{off.Driver}).Delete(t.Context(), f.Port, v1alpha1.PortPoolNetwork{}); err != nil {
			t.Error(err)
		}
	}
	if left := m.subports("node-1"); len(left) != 0 || m.pods() != 0 {
		t.Errorf("left: subports %v, %d ports", left, m.pods())
	}
}

// Lost replies and requests leave no port unknown, and none twice on the trunk.
func TestLostCallsOfARefillOnATrunk(t *testing.T) {
	for name, fault := range map[string]cloudtest.Fault{
		"reply": {LoseReply: true}, "request": {LoseRequest: true}, "taken": {Status: 409}, "busy": {Status: 503, RetryAfter: "1"},
	} {
		for _, call := range []string{"POST /ports", "PUT /trunks/"} {
			t.Run(name+" "+call, func(t *testing.T) {
				m := newMachines(t, Trunk, "10.8.0.0/24")
				m.add(t, "node-1")
				var once atomic.Bool
				counted(m.Server, func(method, path string) cloudtest.Fault {
					if !strings.HasPrefix(method+" "+path, call) || strings.HasSuffix(path, "/tags") || !once.CompareAndSwap(false, true) {
						return cloudtest.Fault{}
					}
					return fault
				})
				p := m.pooled(t, pooltest.New(), few)
				p.obtain(t, 1)
				p.full(t, 1)
				if got := m.subports("node-1"); !once.Load() || len(got) != p.pools.Ready()+1 || m.pods() != len(got) {
					t.Errorf("subports %v, %d ports, %d are ready", got, m.pods(), p.pools.Ready())
				}
			})
		}
	}
}

// The machine of a node is replaced: the ready ports on the trunk of the old one go, and pods get
// ports on that of the new one.
func TestPoolOfAReplacedMachine(t *testing.T) {
	m := newMachines(t, Trunk, "10.8.0.0/24")
	m.add(t, "node-1")
	api := pooltest.New()
	t.Run("before", func(t *testing.T) { // the process ends with it
		p := m.pooled(t, api, few)
		ref := p.obtain(t, 1)
		p.full(t, 1)
		if err := p.Release(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
	})
	was, trunk := m.port["node-1"], m.trunk["node-1"]
	m.nodes = nil
	c, err := m.start(t).conn.get()
	if err == nil {
		other := "machine-of-before"
		_, err = c.UpdatePort(t.Context(), was, 0, cloud.PortChange{DeviceID: &other})
	}
	if err != nil {
		t.Fatal(err)
	}
	m.add(t, "node-1")
	again := m.pooled(t, api, few)
	var ref driver.Ref
	for n := 2; ; n++ { // ready ports of the old machine are handed out until the comparison
		ref = again.obtain(t, n)
		if v := ref.Interface.Binding.VLAN; v.ParentMAC == m.Object("ports", m.port["node-1"])["mac_address"] {
			break
		}
		if err := again.Release(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
		if n > 40 {
			t.Fatalf("pod %d has a port on the old machine: %+v", n, ref.Interface)
		}
	}
	again.full(t, 1) // not before the old ports are gone
	if diff := cmp.Diff(int(ref.Interface.Binding.VLAN.ID), m.subports("node-1")[ref.Interface.Binding.VLAN.PortID]); diff != "" {
		t.Errorf("VLAN (-record +trunk):\n%s", diff)
	}
	if left := m.Object("trunks", trunk)["sub_ports"].([]any); len(left) != 0 {
		t.Errorf("the old trunk has %v", left)
	}
}
