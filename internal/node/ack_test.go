package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/node/nodetest"
	"fairlead.dev/fairlead/internal/node/queue"
)

func TestNeverPluggedIsAcknowledgedWhenItIsDeleted(t *testing.T) {
	inWorld(t, func(w *world) {
		t := w.t
		key := w.pod("p", "u1")
		settle()
		w.wantWrites(key)
		w.leave(key)
		settle()
		w.wantWrites(key, "Detached/")
		if _, err := w.add("c1", "p", "u1"); err == nil {
			t.Error("plugged after it was said that it never will be")
		}
		settle()
		w.wantLinks()
		w.wantWrites(key, "Detached/")
	})
}

func TestDeletedWhilePluggedIsAcknowledgedAfterDel(t *testing.T) {
	inWorld(t, func(w *world) {
		t := w.t
		key := w.pod("p", "u1")
		w.mustAdd("c1", "p", "u1")
		w.leave(key)
		settle()
		w.wantWrites(key, "Attached/c1")
		if err := w.del("c1"); err != nil {
			t.Fatal(err)
		}
		settle()
		w.wantWrites(key, "Attached/c1", "Detached/c1")
		w.api.remove(key)
		settle()
		if l := w.network.ledger.Remembered(); l["detached"] != 0 {
			t.Errorf("PodAttachments are remembered: %v", l)
		}
	})
}

// The kernel has no link any more before anybody reads Detached.
func TestDetachedIsNeverSaidTooEarly(t *testing.T) {
	inWorld(t, func(w *world) {
		t := w.t
		key := w.pod("p", "u1", "eth0", "net1")
		w.mustAdd("c1", "p", "u1")
		w.api.setHook(func(_ context.Context, s, _ string) error {
			if links := w.kernel.names(); s == "patch" && len(links) > 0 {
				return fmt.Errorf("written while %v are plugged", links)
			}
			return nil
		})
		w.leave(key)
		if err := w.del("c1"); err != nil {
			t.Fatal(err)
		}
		settle()
		w.wantWrites(key, "Attached/c1", "Detached/c1")
	})
}

func TestAcknowledgementIsRetriedForEver(t *testing.T) {
	inWorld(t, func(w *world) {
		key := w.pod("p", "u1")
		w.api.setDown(errors.New("connection refused"))
		w.mustAdd("c1", "p", "u1")
		time.Sleep(10 * time.Minute) //nolint:forbidigo // the bubble's clock
		w.wantWrites(key)
		w.api.setDown(nil)
		time.Sleep(queue.RetryLast) //nolint:forbidigo // the bubble's clock
		settle()
		w.wantWrites(key, "Attached/c1")
	})
}

// The controller's write crosses ours: nothing of it is lost, and ours follows
// on the newer copy.
func TestAcknowledgementAfterConflict(t *testing.T) {
	inWorld(t, func(w *world) {
		t := w.t
		key := w.pod("p", "u1")
		crossed := false
		w.api.setHook(func(_ context.Context, s, _ string) error {
			if s == "patch" && !crossed {
				crossed = true
				w.api.change(key, func(pa *v1alpha1.PodAttachment) {
					pa.Status.Interfaces = []v1alpha1.InterfaceStatus{{Name: "eth0", Active: true}}
				})
			}
			return nil
		})
		w.mustAdd("c1", "p", "u1")
		time.Sleep(time.Second) //nolint:forbidigo // the bubble's clock
		settle()
		w.wantWrites(key, "Attached/c1")
		if len(w.api.get(key).Status.Interfaces) != 1 {
			t.Error("the controller's part of the status is lost")
		}
	})
}

// A sandbox that is restarted has the same pod and the same PodAttachment: the
// kubelet takes the old one down and makes another. Detached is not said in
// between, and the API server is not needed.
func TestSandboxIsRestarted(t *testing.T) {
	inWorld(t, func(w *world) {
		t := w.t
		key := w.pod("p", "u1")
		w.mustAdd("c1", "p", "u1")
		w.api.setDown(errors.New("connection refused"))
		if err := w.del("c1"); err != nil {
			t.Fatal(err)
		}
		settle()
		w.wantLinks()
		w.mustAdd("c2", "p", "u1")
		w.wantLinks("c2/eth0")
		w.api.setDown(nil)
		time.Sleep(queue.RetryLast) //nolint:forbidigo // the bubble's clock
		settle()
		w.wantWrites(key, "Attached/c1", "Attached/c2")
	})
}

// A restarted sandbox asks for a PodAttachment of which it was said that nothing
// is plugged: its addresses may be another's by now. The daemon knows by its own
// word, whatever the watch shows.
func TestSandboxIsRestartedTooLate(t *testing.T) {
	inWorld(t, func(w *world) {
		t := w.t
		key := w.pod("p", "u1")
		w.mustAdd("c1", "p", "u1")
		if err := w.del("c1"); err != nil {
			t.Fatal(err)
		}
		w.leave(key)
		settle()
		w.wantWrites(key, "Attached/c1", "Detached/c1")
		_, err := w.add("c2", "p", "u1") // the pod is still there
		nodetest.WantCode(t, err, cniproto.CodeTryAgainLater, "being deleted")
		w.restart()
		_, err = w.add("c3", "p", "u1")
		nodetest.WantCode(t, err, cniproto.CodeTryAgainLater, "being deleted")
		w.wantLinks()
		w.wantRecords()
		w.wantWrites(key, "Attached/c1", "Detached/c1")
	})
}

// After a reboot the status speaks of the former boot until ADD comes.
func TestAddAfterReboot(t *testing.T) {
	inWorld(t, func(w *world) {
		t := w.t
		key := w.outlivesBoot()
		w.wantWrites(key, "Attached/c1")
		w.mustAdd("c2", "p", "u1")
		w.wantLinks("c2/eth0")
		w.wantWrites(key, "Attached/c1", "Attached/c2", "Attached/c2") // before it is plugged, and after
		if s := w.api.get(key).Status.Sandbox; s.BootID != "boot-2" {
			t.Errorf("sandbox %+v", s)
		}
	})
}

// Two sandboxes of one pod have the same addresses: the second waits until the
// first is gone.
func TestSuccessorWaitsForItsPredecessor(t *testing.T) {
	inWorld(t, func(w *world) {
		t := w.t
		key := w.pod("p", "u1")
		w.mustAdd("c1", "p", "u1")
		_, err := w.add("c2", "p", "u1")
		nodetest.WantCode(t, err, cniproto.CodeTryAgainLater, "c1")
		w.wantLinks("c1/eth0")
		w.wantRecords("c1")
		time.AfterFunc(time.Second, func() { _ = w.del("c1") })
		w.mustAdd("c3", "p", "u1")
		w.wantLinks("c3/eth0")
		w.wantWrites(key, "Attached/c1", "Attached/c3")
	})
}

// The namespace of the first is gone, and no DEL will come.
func TestSuccessorOfADeadSandbox(t *testing.T) {
	inWorld(t, func(w *world) {
		t := w.t
		w.pod("p", "u1")
		w.mustAdd("c1", "p", "u1")
		w.kernel.drop(w.netns("c1"))
		start := time.Now()
		w.mustAdd("c2", "p", "u1")
		if waited := time.Since(start); waited > time.Second {
			t.Errorf("waited %s", waited)
		}
		w.wantLinks("c2/eth0")
		w.wantRecords("c2")
	})
}

// The same name again and again, as a StatefulSet makes it: every pod gets its
// own PodAttachment, however late the one before it goes.
func TestStatefulSetRecreation(t *testing.T) {
	inWorld(t, func(w *world) {
		t := w.t
		var before types.NamespacedName
		for n := range 200 {
			uid := fmt.Sprintf("u%03d", n)
			id := fmt.Sprintf("c%03d", n)
			time.AfterFunc(5*time.Millisecond, func() { w.pod("web-0", uid) })
			w.mustAdd(id, "web-0", uid)
			w.wantLinks(id + "/eth0")
			if n > 0 {
				w.api.remove(before)
			}
			if err := w.del(id); err != nil {
				t.Fatal(err)
			}
			before = types.NamespacedName{Namespace: "ns", Name: "web-0-" + uid}
			w.leave(before)
			settle()
			w.wantWrites(before, "Attached/"+id, "Detached/"+id)
		}
		if w.api.reads != 0 {
			t.Errorf("%d reads of the API", w.api.reads)
		}
	})
}

// wipe takes the state directory's content away, as a reboot does.
func (w *world) wipe() {
	w.t.Helper()
	if err := os.RemoveAll(w.dir); err != nil {
		w.t.Fatal(err)
	}
	if err := os.MkdirAll(w.dir, 0o700); err != nil {
		w.t.Fatal(err)
	}
}
