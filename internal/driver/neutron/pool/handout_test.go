package pool

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"fairlead.dev/fairlead/api/v1alpha1"
)

func record(name, podName string, uid types.UID, port string, leaving bool) *v1alpha1.PodAttachment {
	r := &v1alpha1.PodAttachment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: uid + "-record", Finalizers: []string{v1alpha1.ReleaseFinalizer}}}
	r.Spec.PodName, r.Spec.PodUID, r.Spec.NodeName = podName, uid, "node-1"
	r.Spec.Interfaces = []v1alpha1.Interface{{Name: "eth0", Network: "default", Driver: "neutron", Default: true, Binding: v1alpha1.Binding{OVS: &v1alpha1.OVSBinding{Bridge: "br-int", PortID: port}}}}
	if leaving {
		now := metav1.Now()
		r.DeletionTimestamp = &now
		r.Status.Sandbox = &v1alpha1.Sandbox{State: v1alpha1.SandboxDetached}
		r.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReleased, Status: metav1.ConditionFalse, Reason: "Unavailable", LastTransitionTime: now}}
	}
	return r
}

// TestRecordWhoseReleaseHasBegun: pod-9 has ended and its port went back to the pool, but its
// record stays (another interface cannot be released yet). pod-1 has the port now.
func TestRecordWhoseReleaseHasBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.start(marks)
		h := w.take(p, key, 9)
		w.free(p, 9)
		wait(cooldown + time.Second)
		var now Held
		for n := 1; n < 6; n++ { // one of these gets the port
			if got := w.take(p, key, n); got.ID == h.ID {
				now = got
			}
		}
		if now.ID == "" {
			t.Fatal("nobody got the port")
		}
		scheme := runtime.NewScheme()
		if err := v1alpha1.AddToScheme(scheme); err != nil {
			t.Fatal(err)
		}
		k := Kube{
			Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(
				record("z-old", "pod-9", "uid-1", h.ID, true), record("a-new", now.Name, "uid-1", h.ID, false)).Build(),
			Listed: func() bool { return true }, Driver: "neutron",
		}
		recorded, err := k.Recorded(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		if recorded[h.ID].Name != now.Name {
			t.Errorf("the record of %s names the port, want that of %s", recorded[h.ID].Name, now.Name)
		}
		w.set(func() { w.recorded = recorded })
		p.stop()
		p = w.start(marks) // the next leader
		wait(time.Second)
		if _, _, err := p.Free(t.Context(), holder(9)); err != nil { // the release of the old record is repeated
			t.Fatal(err)
		}
		wait(cooldown + time.Second)
		seen := map[string]string{}
		for n := 20; n < 30; n++ {
			if got := w.take(p, key, n); got.ID == now.ID {
				seen[got.ID] = got.Name
			}
		}
		if len(seen) > 0 {
			t.Errorf("%s runs with port %s, and another got it: %v", now.Name, now.ID, seen)
		}
	})
}

// An empty list of subnets in the configuration is no list in a stored object.
func TestEmptySubnets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		k := key
		k.Subnets = []string{}
		p := w.start(marks)
		w.take(p, k, 1)
		p.stop()
		if err := w.api.Edit(k.name(0), func(o *v1alpha1.PortPool) { o.Spec.Subnets = nil }); err != nil { // omitempty
			t.Fatal(err)
		}
		p = w.start(marks)
		for n := 2; n < 12; n++ { // more than are ready
			w.take(p, k, n)
		}
	})
}

// A pod waits while the only port gets other groups, and no other
// can be made: it is woken when the port is ready.
func TestChangedPortWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.set(func() { w.capacity = 1 })
		p := w.start(Marks{Low: 1, High: 1, Batch: 1})
		w.take(p, key, 1)
		w.free(p, 1)
		wait(cooldown + time.Second)
		w.want(0, "ready")
		fail := true
		w.fails(func(call string) (error, bool) {
			if call == "change port-1" && fail {
				return errAway, false
			}
			return nil, false
		})
		w.set(func() { w.network.GroupIDs = []string{"g2"} })
		wait(checkAfter + time.Second)
		w.want(0, "stale")
		if _, err := p.Take(t.Context(), key, holder(2)); !errors.Is(err, ErrEmpty) {
			t.Fatal(err)
		}
		wait(time.Second)
		w.set(func() { fail = false; w.wakes = 0 })
		for range 60 {
			wait(time.Second)
			synctest.Wait()
			w.mu.Lock()
			n := w.wakes
			w.mu.Unlock()
			if w.states() == "ready" {
				t.Logf("ready, %d wakes", n)
				wait(200 * time.Millisecond)
				w.mu.Lock()
				n = w.wakes
				w.mu.Unlock()
				if n == 0 {
					t.Error("the port is ready and nobody was woken")
				}
				return
			}
		}
		t.Error("never ready: ", w.states())
	})
}
