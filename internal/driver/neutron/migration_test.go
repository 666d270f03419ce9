package neutron

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/driver/neutron/choice"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/test/cloudtest"
)

// launchers are those of one virtual machine.
type launchers []*driver.Request

func (m launchers) Sources(_ context.Context, namespace string, target pod.Launcher) (out []pod.Identity, err error) {
	for _, r := range m {
		if l := r.Asks.(choice.Asks).Machine; namespace == r.Namespace && target.MigratesFrom(*l) {
			out = append(out, pod.Identity{Key: pod.Key{Namespace: r.Namespace, Name: r.PodName, UID: r.PodUID}, Node: r.NodeName})
		}
	}
	return out, nil
}

// launcher returns the request of the nth launcher, on the nth node.
func launcher(n int) *driver.Request {
	r := onLan(n, choice.Settings{Network: "pods"})
	r.NodeName = fmt.Sprintf("node-%d", n)
	l := &pod.Launcher{Instance: metav1.OwnerReference{APIVersion: "kubevirt.io/v1", Kind: pod.InstanceKind, Name: "vm", UID: "instance"}}
	if n > 1 {
		l.Migration = types.UID(fmt.Sprintf("migration-%d", n))
	}
	r.Asks = choice.Asks{Settings: choice.Settings{Network: "pods"}, Machine: l}
	return r
}

// migration is a machine on node-1 that migrates to node-2.
type migration struct {
	*testing.T
	s              *cloudtest.Server
	cfg            Config
	source, target *driver.Request
	from, to       driver.Ref
}

// onMigration runs a test in a cloud that binds a port on two hosts, and in a cloud without
// such bindings.
func onMigration(t *testing.T, test func(m *migration)) {
	for name, one := range map[string]bool{"two bindings": false, "one binding": true} {
		t.Run(name, func(t *testing.T) {
			s, cfg := lan(t, "10.8.0.0/24")
			if one {
				s.OneBinding()
			}
			m := &migration{T: t, s: s, cfg: cfg, source: launcher(1), target: launcher(2)}
			m.cfg.Machines = launchers{m.source, m.target}
			d := m.start()
			m.from = attach(t, d, m.source)
			test(m)
		})
	}
}

// start returns a driver that knows only the cloud.
func (m *migration) start() *Driver { return connected(m.T, m.cfg, m.s.File, cloudtest.Admin) }

// wantPort checks the one port: its owner by device ID, and its hosts, that of the traffic first.
func (m *migration) wantPort(step string, owner driver.Owner, hosts ...string) {
	m.Helper()
	all := m.s.Objects("ports")
	if len(all) != 1 || all[0]["device_id"] != deviceID("east", owner) {
		m.Fatalf("%s: ports %v, want one of %s", step, all, owner.PodName)
	}
	id := all[0]["id"].(string)
	if diff := cmp.Diff(hosts, m.s.Bindings(id)); diff != "" {
		m.Errorf("%s: hosts (-want +got):\n%s", step, diff)
	}
	if id != m.from.Interface.Binding.OVS.PortID {
		m.Errorf("%s: port %s is another", step, id)
	}
}

// hosts returns those of the port while both launchers have it.
func (m *migration) hosts() []string {
	if m.s.Calls()["POST /ports/{id}/bindings"] == 0 {
		m.Fatal("no second binding was asked for")
	}
	return m.s.Bindings(m.from.Interface.Binding.OVS.PortID)
}

func described(refs []driver.Ref) (out []string) {
	for _, r := range refs {
		out = append(out, r.PodName+" "+r.NodeName+" "+r.Interface.Binding.OVS.PortID+" "+fmt.Sprint(r.Interface.Addresses))
	}
	slices.Sort(out)
	return out
}

// The target gets the port of the source at once, without waiting and without an announcement
// of its addresses, and the port stays when the source goes. The next migration begins from
// the target.
func TestMachineKeepsItsPort(t *testing.T) {
	onMigration(t, func(m *migration) {
		t, d := m.T, m.start()
		for range 2 {
			m.to = attach(t, d, m.target)
		}
		want := m.from.Interface
		want.WaitForActive = false
		if diff := cmp.Diff(want, m.to.Interface); diff != "" {
			t.Errorf("interface of the target (-want +got):\n%s", diff)
		}
		m.wantPort("both run", m.source.Owner, m.hosts()...)
		port, addresses := m.from.Interface.Binding.OVS.PortID, fmt.Sprint(m.from.Interface.Addresses)
		both := []string{"pod-1 node-1 " + port + " " + addresses, "pod-2 node-2 " + port + " " + addresses}
		refs := listed(t, m.start())
		if diff := cmp.Diff(both, described(refs)); diff != "" {
			t.Errorf("listed (-want +got):\n%s", diff)
		}
		for _, ref := range refs {
			if i, err := d.Confirm(t.Context(), ref); err != nil || i.Binding.OVS.PortID != port {
				t.Errorf("Confirm %s: %+v, %v", ref.PodName, i, err)
			}
		}
		for range 2 {
			release(t, d, m.source)
			m.wantPort("the source is gone", m.target.Owner, "node-2")
		}
		if diff := cmp.Diff(both[1:], described(listed(t, d))); diff != "" {
			t.Errorf("listed (-want +got):\n%s", diff)
		}
		third := launcher(3)
		m.cfg.Machines = launchers{m.target, third}
		attach(t, m.start(), third)
		release(t, d, m.target)
		m.wantPort("the next migration", third.Owner, "node-3")
		release(t, d, third)
		if left := m.s.Objects("ports"); len(left) > 0 {
			t.Errorf("ports %v are left", left)
		}
	})
}

// A target that goes first leaves the source as it was, also without the memory of its Ensure.
func TestAbortedMigration(t *testing.T) {
	onMigration(t, func(m *migration) {
		t := m.T
		m.to = attach(t, m.start(), m.target)
		other := launcher(3)
		m.cfg.Machines = launchers{m.source, m.target, other}
		refuse(t, m.start(), other, "Unavailable", "is that of another target of a migration, pod pod-2")
		d := m.start()
		for range 2 {
			if err := d.Release(t.Context(), m.to); err != nil {
				t.Fatal(err)
			}
			m.wantPort("the target is gone", m.source.Owner, "node-1")
		}
		attach(t, d, other)
		release(t, d, m.source)
		m.wantPort("the next migration", other.Owner, "node-3")
	})
}

// The process ends, or a reply is lost, at each write. The next process ends the work.
func TestMigrationKilledAtEachStep(t *testing.T) {
	for _, lost := range []cloudtest.Fault{{LoseRequest: true}, {LoseReply: true}} {
		for step := range 6 {
			for _, back := range []bool{false, true} {
				t.Run(fmt.Sprintf("write %d, reply lost %v, back %v", step, lost.LoseReply, back), func(t *testing.T) {
					onMigration(t, func(m *migration) { m.killedAt(step, lost, back) })
				})
			}
		}
	}
}

func (m *migration) killedAt(step int, lost cloudtest.Fault, back bool) {
	writes := 0
	m.s.Inject(func(method, path string) cloudtest.Fault {
		if method == "GET" || !strings.HasPrefix(path, "/ports") {
			return cloudtest.Fault{}
		}
		if writes++; writes-1 != step {
			return cloudtest.Fault{}
		}
		return lost
	})
	again := func(do func(d *Driver) error) {
		m.Helper()
		var err error
		for range 3 { // the call that fails, and others after it
			if err = do(m.start()); err == nil {
				return
			}
		}
		m.Fatal(err)
	}
	again(func(d *Driver) error {
		a, err := d.Ensure(m.Context(), m.target)
		if err == nil {
			m.to = driver.Ref{Owner: m.target.Owner, Interface: a.Interface}
		}
		return err
	})
	gone, stays := m.from, m.target
	if back {
		gone, stays = m.to, m.source
	}
	again(func(d *Driver) error { return d.Release(m.Context(), gone) })
	m.wantPort("one is left", stays.Owner, stays.NodeName)
	left := m.to
	if back {
		left = m.from
	}
	again(func(d *Driver) error { return d.Release(m.Context(), left) })
	if ports := m.s.Objects("ports"); len(ports) > 0 {
		m.Errorf("ports %v are left", ports)
	}
}

// A target gets a port of its own, if the source's is on another network or is not a port
// that a node plugs, and no pod gets the port of a machine by naming it in a record.
func TestPortsThatAreNotInherited(t *testing.T) {
	onMigration(t, func(m *migration) {
		t, d := m.T, m.start()
		forged := launcher(4)
		ref := driver.Ref{Owner: forged.Owner, Interface: m.from.Interface}
		if err := d.Release(t.Context(), ref); err != nil {
			t.Error(err)
		}
		m.wantPort("the release of a stranger", m.source.Owner, "node-1")
		attach(t, d, m.target)
		hosts := m.hosts()
		if err := d.Release(t.Context(), ref); err != nil {
			t.Error(err)
		}
		m.wantPort("the release of a stranger during the migration", m.source.Owner, hosts...)
		if _, err := d.Confirm(t.Context(), ref); driver.Result(err) != "NotFound" {
			t.Errorf("Confirm of a stranger: %v", err)
		}
		for name, change := range map[string]func(r *driver.Request){
			"another network": func(r *driver.Request) { r.Network = "fairlead-system/other" },
			"the same node":   func(r *driver.Request) { r.NodeName = "node-1" },
			"a pod":           func(r *driver.Request) { r.Asks = choice.Asks{Settings: choice.Settings{Network: "pods"}} },
		} {
			other := launcher(3)
			change(other)
			if got := attach(t, d, other); got.Interface.Binding.OVS.PortID == m.from.Interface.Binding.OVS.PortID {
				t.Errorf("%s: has the port of the machine", name)
			}
			release(t, d, other)
		}
	})
}

// A source has two ports if the reply of a create was lost. The machine keeps the plugged one.
func TestMachineWithTwoPorts(t *testing.T) {
	onMigration(t, func(m *migration) {
		t := m.T
		port := m.from.Interface.Binding.OVS.PortID
		twin := cloudtest.Object{}
		for _, field := range []string{"name", "description", "device_id", "device_owner", "network_id", "binding:host_id"} {
			twin[field] = m.s.Objects("ports")[0][field]
		}
		other := m.s.Add(t, "ports", cloudtest.AdminProject, twin)
		refuse(t, m.start(), m.target, "Unavailable", "several ports are those of the source launcher")
		m.s.Plug(port)
		d := m.start()
		if got := attach(t, d, m.target); got.Interface.Binding.OVS.PortID != port {
			t.Errorf("the target has port %s, want %s; the twin is %s", got.Interface.Binding.OVS.PortID, port, other)
		}
		if err := d.Release(t.Context(), m.from); err != nil {
			t.Fatal(err)
		}
		m.wantPort("the source is gone", m.target.Owner, "node-2")
	})
}
