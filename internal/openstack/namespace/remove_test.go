package namespace

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/internal/openstack/cloud"
	"fairlead.dev/fairlead/test/cloudtest"
)

// A network is removed after its last port. Ports of others, other networks and the
// interfaces that the router has in them stay.
func TestRemoval(t *testing.T) {
	w := newWorld(t)
	w.namespace("blue", blueUID)
	w.namespace("red", "2a2b3c4d-0000-4000-8000-000000000001")
	network := w.network("blue")
	w.network("red")
	_, subnets := w.server.AddNetwork(t, "machines", "10.99.0.0/24")
	router := w.server.Objects("routers")[0]["id"].(string)
	if err := w.cloud.Routers.Connect(t.Context(), router, subnets[0]); err != nil {
		t.Fatal(err)
	}
	pod, err := w.port(network, "blue/web/eth0")
	if err != nil {
		t.Fatal(err)
	}
	machine := w.server.Add(t, "ports", cloudtest.AdminProject, cloudtest.Object{"network_id": network, "name": "vm", "device_owner": "compute:nova"})

	var freed []string
	w.nets.OnRemoval(func(id string) { freed = append(freed, id) })
	w.end("blue")
	for _, left := range []string{pod, machine} {
		again, err := w.nets.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: blue}})
		if err != nil || again.RequeueAfter != portsRetry {
			t.Errorf("again %v, %v", again, err)
		}
		w.wantConditions(blue, "False PortsLeft", "False AddressesLeft")
		if c := w.record(blue).Status.Conditions[0]; !strings.Contains(c.Message, left) {
			t.Errorf("condition %q, want port %s", c.Message, left)
		}
		if len(freed) == 0 || freed[len(freed)-1] != network {
			t.Errorf("the ports of %v were to be freed, want those of %s", freed, network)
		}
		if subnets := len(w.server.Objects("subnets")); subnets != 5 {
			t.Errorf("%d subnets while ports are left", subnets)
		}
		if err := w.cloud.DeletePort(t.Context(), left); err != nil {
			t.Fatal(err)
		}
	}
	w.settle()
	w.wantLeft(map[string]int{"networks": 2, "subnets": 3, "ports": 3, "records": 1})
	if !w.connected(router, subnets[0]) {
		t.Error("the router lost its interface to the machines")
	}
}

func (w *world) connected(router, subnet string) bool {
	for _, p := range w.server.Objects("ports") {
		if p["device_id"] == router && strings.Contains(fmt.Sprint(p["fixed_ips"]), subnet) {
			return true
		}
	}
	return false
}

// A NamespaceNetwork that a person deletes goes after the pods. The next pod waits until
// then, and has another network made.
func TestDeletedByAPerson(t *testing.T) {
	w := newWorld(t)
	w.namespace("blue", blueUID)
	network := w.network("blue")
	port, err := w.port(network, "blue/web/eth0")
	if err != nil {
		t.Fatal(err)
	}
	o := w.record(blue)
	if err := w.api.Delete(t.Context(), &o); err != nil {
		t.Fatal(err)
	}
	w.settle()
	w.refused("blue", "Unavailable", "is being removed", blue)
	if err := w.cloud.DeletePort(t.Context(), port); err != nil {
		t.Fatal(err)
	}
	w.settle()
	w.wantLeft(map[string]int{})
	if again := w.network("blue"); again == network {
		t.Error("the network is the removed one")
	}
}

// kuryr names networks after namespaces: a namespace finds the network of its predecessor of
// the same name. Here the later one has its own at once, also while the former one's port
// hangs on a lost node, and the removal of the former one's leaves it alone.
func TestNameReuse(t *testing.T) {
	w := newWorld(t)
	w.namespace("blue", blueUID)
	former := w.network("blue")
	port, err := w.port(former, "blue/web/eth0")
	if err != nil {
		t.Fatal(err)
	}
	w.end("blue")
	w.settle()
	w.namespace("blue", "9f000000-0000-4000-8000-000000000002")
	later := w.network("blue")
	if later == former {
		t.Fatal("the later namespace has the former one's network")
	}
	w.wantConditions(blue, "False PortsLeft", "False AddressesLeft")
	if err := w.cloud.DeletePort(t.Context(), port); err != nil {
		t.Fatal(err)
	}
	w.settle()
	w.wantLeft(made(1))
	if id := w.network("blue"); id != later {
		t.Errorf("network %s, want %s", id, later)
	}
}

var errCrash = errors.New("the controller is killed")

// crash lets a number of writes pass, of the cloud and of the API together, and loses the
// request or the reply of the next one. fired reports whether it did.
func (w *world) crash(after int, lost cloudtest.Fault) (fired func() bool, end func()) {
	var mu sync.Mutex
	n, done := 0, false
	due := func() bool {
		mu.Lock()
		defer mu.Unlock()
		n++
		if n-1 != after {
			return false
		}
		done = true
		return true
	}
	w.server.Inject(func(method, _ string) cloudtest.Fault {
		if method == "GET" || !due() {
			return cloudtest.Fault{}
		}
		return lost
	})
	var now bool
	w.write = func(isAfter bool) error {
		if !isAfter {
			now = due()
		}
		if now && isAfter == lost.LoseReply {
			return errCrash
		}
		return nil
	}
	return func() bool { mu.Lock(); defer mu.Unlock(); return done }, func() {
		w.server.Inject(nil)
		w.write = func(bool) error { return nil }
	}
}

// The controller is killed at each write, before and after it takes effect. The next one ends
// with one network, complete, and removes it without a rest.
func TestKilledAtEachStep(t *testing.T) {
	for _, lost := range []cloudtest.Fault{{LoseRequest: true}, {LoseReply: true}} {
		for _, phase := range []string{"make", "extend", "remove"} {
			steps := 0
			for fired := true; fired; steps++ {
				t.Run(fmt.Sprintf("%s, reply %v, step %d", phase, lost.LoseReply, steps), func(t *testing.T) { fired = killed(t, phase, steps, lost) })
			}
			if least := map[string]int{"make": 10, "extend": 4, "remove": 6}[phase]; steps < least {
				t.Errorf("%s has %d steps, want at least %d", phase, steps, least)
			}
		}
	}
}

// killed reports whether the controller was killed: not if there are fewer steps.
func killed(t *testing.T, phase string, step int, lost cloudtest.Fault) bool {
	w := newWorld(t)
	w.namespace("blue", blueUID)
	want := made(1)
	if phase != "make" {
		network := w.network("blue")
		if phase == "extend" {
			for n := range 5 {
				if _, err := w.port(network, fmt.Sprint("pod-", n)); err != nil {
					t.Fatal(err)
				}
			}
			_ = w.nets.Failed(t.Context(), "blue", cloud.ErrFull)
			want = map[string]int{"networks": 1, "subnets": 3, "ports": 2 + 1 + 5, "records": 1}
		} else {
			w.end("blue")
			want = map[string]int{}
		}
	}
	fired, end := w.crash(step, lost)
	_, _ = w.nets.Network(t.Context(), "blue", "")
	_ = w.reconcile()
	end()
	w.nets = New(w.cfg)
	if phase != "remove" {
		w.network("blue")
	}
	w.settle()
	w.wantLeft(want)
	for _, o := range w.server.Objects("networks") {
		if fmt.Sprint(o["tags"]) != "[fairlead:cluster=east]" {
			t.Errorf("network without its tag: %v", o)
		}
	}
	if phase == "make" {
		w.end("blue")
		w.settle()
		w.wantLeft(map[string]int{})
	}
	return fired()
}

// A create whose reply was lost may end after the next one has made a network. The second
// network is deleted, and the recorded one stays.
func TestSecondNetwork(t *testing.T) {
	w := newWorld(t)
	w.namespace("blue", blueUID)
	network := w.network("blue")
	late := func() {
		w.server.Add(t, "networks", cloudtest.AdminProject, cloudtest.Object{"name": "fairlead/east/blue/" + blueUID, "description": "[fairlead:cluster=east]"})
	}
	late()
	w.settle()
	w.wantLeft(made(1))
	if id := w.network("blue"); id != network {
		t.Errorf("network %s, want %s", id, network)
	}
	late()
	w.end("blue")
	w.settle()
	w.wantLeft(map[string]int{})
}

// Two leaders at once make one network in the end: the first record decides.
func TestTwoLeaders(t *testing.T) {
	for round := range 8 {
		w := newWorld(t)
		w.namespace("blue", blueUID)
		if _, err := w.nets.Network(t.Context(), "blue", ""); err == nil {
			t.Fatal("the network is there already")
		}
		leaders := []*Networks{New(w.cfg), New(w.cfg)}
		var both sync.WaitGroup
		for i, n := range leaders {
			both.Go(func() {
				for range 1 + (round+i)%2 {
					// Errors are repeated below.
					_, _ = n.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: blue}})
				}
			})
		}
		both.Wait()
		w.settle()
		o := w.record(blue)
		networks := w.server.Objects("networks")
		if len(networks) != 1 || networks[0]["id"] != o.Status.Network {
			t.Errorf("networks %v, recorded %s", networks, o.Status.Network)
		}
		for _, s := range w.server.Objects("subnets") {
			if !w.connected(o.Status.Router, s["id"].(string)) {
				t.Errorf("subnet %v has no interface of the router", s["name"])
			}
		}
		w.end("blue")
		w.settle()
		w.wantLeft(map[string]int{})
	}
}

// A network without a record gets one again, with which it is removed if its namespace is
// gone. Networks of other clusters and in other projects do not count.
func TestCompare(t *testing.T) {
	w := newWorld(t)
	w.namespace("blue", blueUID)
	w.namespace("red", "2a2b3c4d-0000-4000-8000-000000000001")
	network := w.network("blue")
	w.network("red")
	for _, o := range w.records() {
		o.Finalizers = nil // as by hand
		if err := errors.Join(w.api.Update(t.Context(), &o), client.IgnoreNotFound(w.api.Delete(t.Context(), &o))); err != nil {
			t.Fatal(err)
		}
	}
	w.end("red")
	for _, o := range []struct{ project, name string }{
		{cloudtest.AdminProject, "fairlead/west/green/3a2b3c4d-0000-4000-8000-000000000001"},
		{cloudtest.AdminProject, "fairlead/east/Green!/3a2b3c4d"},
		{cloudtest.AdminProject, "somebody"},
		{cloudtest.MemberProject, "fairlead/east/green/3a2b3c4d-0000-4000-8000-000000000001"},
	} {
		w.server.Add(t, "networks", o.project, cloudtest.Object{"name": o.name, "description": "[fairlead:cluster=east]"})
	}
	for range 2 {
		if err := w.nets.compare(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(w.records()); n != 2 {
		t.Errorf("%d records, want those of blue and red: %v", n, w.records())
	}
	w.collect()
	w.settle()
	if id := w.network("blue"); id != network {
		t.Errorf("network %s, want %s", id, network)
	}
	w.wantLeft(map[string]int{"networks": 1 + 4, "subnets": 2, "ports": 2, "records": 1})
}
