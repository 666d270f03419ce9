package node

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/node/background"
)

// wantEnded checks that the status of a PodAttachment still names its sandbox, and that
// neither condition is true.
func (w *testNode) wantEnded(key types.NamespacedName, containerID, bootID string) {
	w.t.Helper()
	pa := w.api.get(key)
	if s := pa.Status.Sandbox; s == nil || s.State != v1alpha1.SandboxAttached || s.ID != containerID || s.BootID != bootID {
		w.t.Errorf("the sandbox is %+v", s)
	}
	attached := meta.FindStatusCondition(pa.Status.Conditions, v1alpha1.ConditionAttached)
	if attached == nil || attached.Status != metav1.ConditionFalse || attached.Reason != "Unplugged" {
		w.t.Errorf("condition Attached is %+v", attached)
	}
	ready := meta.FindStatusCondition(pa.Status.Conditions, v1alpha1.ConditionReady)
	if ready == nil || ready.Status != metav1.ConditionFalse || ready.Reason != v1alpha1.ReasonInterfacesGone {
		w.t.Errorf("condition Ready is %+v", ready)
		return
	}
	w.wantLoss(pa, ready.Message)
}

// wantLoss checks that a pod has exactly one event about lost interfaces, with this message.
func (w *testNode) wantLoss(pa *v1alpha1.PodAttachment, message string) {
	w.t.Helper()
	var notes []string
	for _, e := range w.api.reports {
		if e.Reason == v1alpha1.ReasonInterfacesGone && e.Regarding.Name == pa.Spec.PodName && e.Regarding.UID == pa.Spec.PodUID {
			notes = append(notes, e.Note)
		}
	}
	if !cmp.Equal(notes, []string{message}) {
		w.t.Errorf("events of pod %s: %q, want one with %q", pa.Spec.PodName, notes, message)
	}
}

// wantLosses checks the metric of pods that have lost interfaces.
func (w *testNode) wantLosses(n float64) {
	w.t.Helper()
	if got := w.series("fairlead_node_pods_without_interfaces"); len(got) != 1 || got[0].GetGauge().GetValue() != n {
		w.t.Errorf("pods that have lost interfaces: %v, want %v", got, n)
	}
}

// wantGone checks that the status names a lost interface of a sandbox that has others.
func (w *testNode) wantGone(key types.NamespacedName, containerID, name string) {
	w.t.Helper()
	pa, ready := w.wantAttached(key, containerID)
	if ready == nil || ready.Status != metav1.ConditionFalse || ready.Reason != v1alpha1.ReasonInterfacesGone || !strings.HasPrefix(ready.Message, name+": ") {
		w.t.Errorf("condition Ready is %+v", ready)
		return
	}
	w.wantLoss(pa, ready.Message)
}

// The sandbox of a running pod ends, and no other is made: the status tells it after a
// while, and not at once, because most pods get another sandbox or are deleted.
func TestStatusTellsTheEndOfASandbox(t *testing.T) {
	for name, end := range map[string]func(*testNode){
		"by a DEL": func(w *testNode) {
			w.mustDel("c1")
		},
		"by another program": func(w *testNode) { w.kernel.change(func(links map[string]fakeLink) { clear(links) }) },
		"while the daemon is away": func(w *testNode) {
			w.stop()
			w.kernel.change(func(links map[string]fakeLink) { clear(links) })
			w.start()
		},
		"by a DEL before a restart": func(w *testNode) {
			w.mustDel("c1")
			settle()
			w.restart()
		},
	} {
		t.Run(name, func(t *testing.T) {
			onTestNode(t, func(w *testNode) {
				key := w.pod("web", "uid-1")
				w.mustAdd("c1", "web", "uid-1")
				end(w)
				w.pass(30 * time.Second)
				w.wantWrites(key, "Attached/c1")
				w.pass(background.SweepInterval + time.Minute)
				w.wantEnded(key, "c1", "boot-1")
				w.wantLosses(1)
				w.pass(10 * time.Minute)
				w.wantWrites(key, "Attached/c1", "Attached/c1")
				w.mustAdd("c2", "web", "uid-1")
				w.wantReady(key, "c2")
				w.wantLosses(0)
			})
		})
	}
}

// The runtime makes another sandbox, or the PodAttachment is deleted, soon after the end of
// a sandbox: that end costs no write.
func TestEndOfASandboxIsUsuallyNotWritten(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		key := w.pod("web", "uid-1")
		w.mustAdd("c1", "web", "uid-1")
		w.mustDel("c1")
		w.pass(50 * time.Second)
		w.mustAdd("c2", "web", "uid-1")
		w.pass(5 * time.Minute)
		w.wantWrites(key, "Attached/c1", "Attached/c2")
		w.mustDel("c2")
		w.pass(50 * time.Second)
		w.wantWrites(key, "Attached/c1", "Attached/c2")
		w.deleteAttachment(key)
		w.pass(5 * time.Minute)
		w.wantWrites(key, "Attached/c1", "Attached/c2", "Detached/c2")
		w.api.remove(key)
		settle()
		if ended, _ := w.network.ledger.LastEnd("pa-uid-1"); ended != "" {
			t.Errorf("the end of sandbox %s is remembered", ended)
		}
	})
}

// After a boot of the node the status still names the earlier boot: that is proof for the
// controller that nothing has the addresses.
func TestEndOfASandboxByABoot(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		key := w.pod("web", "uid-1")
		w.mustAdd("c1", "web", "uid-1")
		w.stop()
		w.kernel.reboot()
		w.bootID = "boot-2"
		w.start()
		w.pass(3 * time.Minute)
		w.wantEnded(key, "c1", "boot-1")
		w.mustAdd("c2", "web", "uid-1")
		w.wantReady(key, "c2")
	})
}

// A migration wrote the status of a sandbox that no record names.
func TestSandboxOfAMigrationHasNotEnded(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		key := w.pod("web", "uid-1")
		w.api.change(key, func(pa *v1alpha1.PodAttachment) {
			pa.Status.Sandbox = &v1alpha1.Sandbox{ID: "c1", BootID: "boot-1", State: v1alpha1.SandboxAttached}
			for _, c := range []string{v1alpha1.ConditionAttached, v1alpha1.ConditionReady} {
				meta.SetStatusCondition(&pa.Status.Conditions, metav1.Condition{Type: c, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonImported})
			}
		})
		w.pass(10 * time.Minute)
		w.wantWrites(key)
	})
}

// Another program removes one of two interfaces of a running pod.
func TestStatusTellsThatAnInterfaceIsGone(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		key := w.pod("web", "uid-1", "eth0", "net1")
		w.mustAdd("c1", "web", "uid-1")
		w.wantReady(key, "c1")
		w.kernel.change(func(links map[string]fakeLink) { delete(links, plug.RoutedName("c1", "eth0")) })
		w.pass(background.SweepInterval)
		w.wantGone(key, "c1", "eth0")
		w.wantLosses(1)
		w.restart()
		w.pass(10 * time.Minute)
		w.wantGone(key, "c1", "eth0")
		w.wantWrites(key, "Attached/c1", "Attached/c1")
		w.mustDel("c1")
		w.mustAdd("c2", "web", "uid-1")
		w.pass(2 * background.SweepInterval)
		w.wantReady(key, "c2")
	})
}

// The links of one sandbox cannot be read: others are reported all the same, and the report
// about it stays.
func TestGoneIsToldDespiteAnError(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		one, two := w.pod("one", "uid-1", "eth0", "net1"), w.pod("two", "uid-2", "eth0", "net1")
		w.mustAdd("c1", "one", "uid-1")
		w.mustAdd("c2", "two", "uid-2")
		cut := func(containerID, name string) {
			w.kernel.change(func(links map[string]fakeLink) { delete(links, plug.RoutedName(containerID, name)) })
			w.pass(background.SweepInterval)
		}
		cut("c1", "eth0")
		w.wantGone(one, "c1", "eth0")
		w.kernel.setHook(func(_ context.Context, step, what string) error {
			if step == "gone" && what == plug.RoutedName("c1", "eth0") {
				return errors.New("too many open files")
			}
			return nil
		})
		cut("c2", "net1")
		w.wantGone(two, "c2", "net1")
		w.wantGone(one, "c1", "eth0")
	})
}
