package neutron

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/driver/neutron/activation"
	"fairlead.dev/fairlead/test/cloudtest"
)

// refusal is an answer of Neutron.
func refusal(status int, kind string) cloudtest.Fault {
	return cloudtest.Fault{Status: status, Body: `{"NeutronError":{"type":"` + kind + `","message":"injected","detail":""}}`}
}

// Faults of one call, each as often as its name says.
var wayFaults = []struct {
	name  string
	fault cloudtest.Fault
	times int
}{
	{"the request is lost", cloudtest.Fault{LoseRequest: true}, 1},
	{"the reply is lost", cloudtest.Fault{LoseReply: true}, 1},
	{"two replies are lost", cloudtest.Fault{LoseReply: true}, 2},
	{"409: the VLAN is taken", refusal(http.StatusConflict, "DuplicateSubPort"), 1},
	{"409: the port is in use", refusal(http.StatusConflict, "TrunkPortInUse"), 2},
	{"404: another was faster", refusal(http.StatusNotFound, "SubPortNotFound"), 1},
	{"412: another revision", refusal(http.StatusPreconditionFailed, "RevisionNumberConstraintFailed"), 1},
	{"412, and no end of it", refusal(http.StatusPreconditionFailed, "RevisionNumberConstraintFailed"), 7},
	{"500", refusal(http.StatusInternalServerError, "HTTPInternalServerError"), 1},
}

// injecting has some calls to a path fail, and returns the number of faults that are left.
func (m *machines) injecting(method, path string, fault cloudtest.Fault, times int) (left func() int) {
	var mu sync.Mutex
	m.Inject(func(gotMethod, gotPath string) cloudtest.Fault {
		mu.Lock()
		defer mu.Unlock()
		if gotMethod != method || gotPath != path || times == 0 {
			return cloudtest.Fault{}
		}
		times--
		return fault
	})
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return times
	}
}

// Whatever fails while a port is made ready and taken back, the next try of the controller
// adopts it: one port, with the VLAN of its record or with its pair, and nothing is left in the end.
// kuryr 7.3: a failure of the call for subports leaked the VLAN, and its repetition had a wrong
// port.
func TestFaultsOfWays(t *testing.T) {
	for _, call := range []struct {
		name, method, path string
		way                Way
		release            bool
	}{
		{"add subport", "PUT", "/trunks/{id}/add_subports", Trunk, false},
		{"read trunk", "GET", "/trunks", Trunk, false},
		{"remove subport", "PUT", "/trunks/{id}/remove_subports", Trunk, true},
		{"delete subport", "DELETE", "/ports/{id}", Trunk, true},
		{"add pair", "PUT", "/ports/{id}", Macvlan, false},
		{"remove pair", "PUT", "/ports/{id}", Macvlan, true},
	} {
		for _, f := range wayFaults {
			if call.way == Macvlan && f.fault.Status == http.StatusNotFound {
				continue // it would mean that the machine is gone
			}
			t.Run(call.name+"/"+f.name, func(t *testing.T) {
				m := newMachines(t, call.way, "10.8.0.0/24")
				m.add(t, "node-1")
				m.add(t, "node-2")
				d := m.start(t)
				other := attach(t, d, on("node-1", 7)) // it stays
				var left func() int
				if !call.release {
					d.known.forget()
					left = m.injecting(call.method, call.path, f.fault, f.times)
				}
				node := "node-1"
				if call.name == "read trunk" {
					node = "node-2" // whose trunk is not known yet
				}
				ref := m.eventually(t, "Ensure", func() (driver.Ref, error) {
					a, err := d.Ensure(t.Context(), on(node, 1))
					if err != nil {
						return driver.Ref{}, err
					}
					return driver.Ref{Owner: on(node, 1).Owner, Interface: a.Interface}, nil
				})
				if m.pods() != 2 || call.way == Trunk && m.subports(node)[ref.Interface.Binding.Port()] != int(ref.Interface.Binding.VLAN.ID) {
					t.Errorf("%d ports; record %+v, trunk %v", m.pods(), ref.Interface.Binding.VLAN, m.subports(node))
				}
				if call.way == Macvlan && len(m.pairsOfNode1()) != 2 {
					t.Errorf("pairs %v, want those of two pods", m.pairsOfNode1())
				}
				if call.release {
					left = m.injecting(call.method, call.path, f.fault, f.times)
				}
				m.eventually(t, "Release", func() (driver.Ref, error) { return ref, d.Release(t.Context(), ref) })
				if n := left(); n == f.times {
					t.Error("nothing failed")
				}
				m.Inject(nil)
				if m.pods() != 1 || call.way == Macvlan && len(m.pairsOfNode1()) != 1 {
					t.Errorf("after the release: %d ports, pairs %v", m.pods(), m.pairsOfNode1())
				}
				if call.way == Trunk {
					want := map[string]int{other.Interface.Binding.Port(): int(other.Interface.Binding.VLAN.ID)}
					if diff := cmp.Diff(want, m.subports("node-1")); diff != "" || len(m.subports("node-2")) != 0 {
						t.Errorf("node-2 has %v; subports of node-1 (-want +got):\n%s", m.subports("node-2"), diff)
					}
				}
			})
		}
	}
}

// eventually repeats a step as the controller does: for errors that pass.
func (m *machines) eventually(t *testing.T, step string, do func() (driver.Ref, error)) driver.Ref {
	t.Helper()
	for try := 1; ; try++ {
		ref, err := do()
		if err == nil {
			return ref
		}
		if result := driver.Result(err); result != "Unavailable" || try == 9 {
			t.Fatalf("%s, try %d: %s: %v", step, try, result, err)
		}
	}
}

// Pods that start together on a machine are added with few calls, also when a reply is lost:
// each has the VLAN of its record then, and no other pod has it.
func TestPodsOfATrunkTogether(t *testing.T) {
	m := newMachines(t, Trunk, "10.8.0.0/24")
	m.add(t, "node-1")
	d := m.start(t)
	attach(t, d, on("node-1", 0)) // the trunk is known
	m.ResetCalls()
	var wg sync.WaitGroup
	var mu sync.Mutex
	lost := false
	m.Inject(func(_, path string) cloudtest.Fault {
		if !strings.HasSuffix(path, "/add_subports") {
			return cloudtest.Fault{}
		}
		mu.Lock()
		defer mu.Unlock()
		f := cloudtest.Fault{Delay: 30 * time.Millisecond, LoseReply: !lost} // others come meanwhile
		lost = true
		return f
	})
	records := map[string]int{}
	for n := range 16 {
		wg.Go(func() {
			for {
				a, err := d.Ensure(t.Context(), on("node-1", 1+n))
				if err == nil {
					mu.Lock()
					records[a.Interface.Binding.Port()] = int(a.Interface.Binding.VLAN.ID)
					mu.Unlock()
					return
				}
				if driver.Result(err) != "Unavailable" {
					t.Errorf("pod %d: %v", n, err)
					return
				}
			}
		})
	}
	wg.Wait()
	subports := m.subports("node-1")
	for port, vlan := range records {
		if subports[port] != vlan {
			t.Errorf("port %s has VLAN %d in its record, %d on the trunk", port, vlan, subports[port])
		}
	}
	vlans := map[int]bool{}
	for _, vlan := range subports {
		vlans[vlan] = true
	}
	if len(records) != 16 || len(subports) != 17 || len(vlans) != 17 {
		t.Errorf("%d records, %d subports, %d VLANs", len(records), len(subports), len(vlans))
	}
	for call, n := range m.Calls() {
		if strings.HasSuffix(call, "add_subports") && n > 8 {
			t.Errorf("%d calls for 16 pods", n)
		}
	}
}

// A subport that stays DOWN is attached again with its VLAN, whatever fails: a failure leaves it
// to the next try, a minute later.
func TestFaultsOfAttachingAgain(t *testing.T) {
	for _, path := range []string{"/trunks/{id}/add_subports", "/trunks/{id}/remove_subports"} {
		for _, f := range wayFaults {
			t.Run(path+"/"+f.name, func(t *testing.T) {
				m := newMachines(t, Trunk, "10.8.0.0/24")
				m.Stuck(func(cloudtest.Object) bool { return true })
				m.add(t, "node-1")
				d := m.start(t)
				ref := attach(t, d, on("node-1", 1))
				port, vlan := ref.Interface.Binding.Port(), int(ref.Interface.Binding.VLAN.ID)
				m.Stuck(nil)
				left := m.injecting("PUT", path, f.fault, f.times)
				for range 9 {
					if d.reattach(t.Context(), port, vlan); m.Object("ports", port)["status"] == activation.Active {
						break
					}
					_, err := d.Ensure(t.Context(), on("node-1", 2)) // another pod, which must not get the VLAN
					if err != nil && driver.Result(err) != "Unavailable" {
						t.Fatal(err)
					}
				}
				if left() == f.times {
					t.Error("nothing failed")
				}
				m.Inject(nil)
				if got := m.subports("node-1")[port]; got != vlan || m.Object("ports", port)["status"] != activation.Active {
					t.Errorf("VLAN %d, want %d; the port is %v", got, vlan, m.Object("ports", port)["status"])
				}
			})
		}
	}
}

// A machine was replaced by another with its address, first under another name and then under
// the same one: pods are on the trunk of the new machine. Pods of the old one are released.
// kuryr 7.3: the trunk of an address was never looked up again.
func TestNewMachineWithAnOldAddress(t *testing.T) {
	m := newMachines(t, Trunk, "10.8.0.0/24")
	m.add(t, "node-1")
	d := m.start(t)
	c, err := d.conn.get()
	if err != nil {
		t.Fatal(err)
	}
	refs, address := []driver.Ref{attach(t, d, on("node-1", 1))}, m.nodes[0].Status.Addresses
	for _, node := range []string{"node-2", "node-2"} {
		gone := m.nodes[0].Name
		if err := c.DeleteTrunk(t.Context(), m.trunk[gone]); err != nil {
			t.Fatal(err)
		}
		if err := c.DeletePort(t.Context(), m.port[gone]); err != nil {
			t.Fatal(err)
		}
		m.nodes = nil
		m.add(t, node)
		if diff := cmp.Diff(address, m.nodes[0].Status.Addresses); diff != "" {
			t.Fatalf("the machine has another address:\n%s", diff)
		}
		d.nodes.reader = fake.NewClientBuilder().WithLists(&corev1.NodeList{Items: m.nodes}).Build()
		r := on(node, 1+len(refs))
		ref := m.eventually(t, "Ensure", func() (driver.Ref, error) {
			a, err := d.Ensure(t.Context(), r)
			if err != nil {
				return driver.Ref{}, err
			}
			return driver.Ref{Owner: r.Owner, Interface: a.Interface}, nil
		})
		refs = append(refs, ref)
		parent := m.Object("ports", m.port[node])["mac_address"]
		if v := ref.Interface.Binding.VLAN; v.ParentMAC != parent || m.subports(node)[v.PortID] != int(v.ID) {
			t.Errorf("binding %+v; the machine has MAC %s and subports %v", v, parent, m.subports(node))
		}
	}
	for _, ref := range refs {
		if err := d.Release(t.Context(), ref); err != nil {
			t.Error(err)
		}
	}
	if m.pods() != 0 {
		t.Errorf("%d ports are left", m.pods())
	}
}
