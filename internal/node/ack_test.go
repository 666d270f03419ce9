package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/node/report"
	"fairlead.dev/fairlead/test/nodetest"
)

func TestNeverPluggedIsAcknowledgedWhenItIsDeleted(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		key := w.pod("p", "u1")
		settle()
		w.wantWrites(key)
		w.deleteAttachment(key)
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

// A sandbox that ends before its status was written is named all the same: what it had was
// plugged.
func TestEndBeforeTheFirstStatusNamesTheSandbox(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		key := w.pod("p", "u1")
		if _, err := w.add("c1", "p", "u1"); err != nil {
			t.Fatal(err)
		}
		w.mustDel("c1")
		w.deleteAttachment(key)
		settle()
		w.wantWrites(key, "Detached/c1")
		if ready := meta.FindStatusCondition(w.api.get(key).Status.Conditions, v1alpha1.ConditionReady); ready == nil || ready.Reason != "Unplugged" {
			t.Errorf("condition Ready is %+v", ready)
		}
	})
}

func TestDeletedWhilePluggedIsAcknowledgedAfterDel(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		key := w.pod("p", "u1")
		w.mustAdd("c1", "p", "u1")
		w.deleteAttachment(key)
		settle()
		w.wantWrites(key, "Attached/c1")
		w.mustDel("c1")
		settle()
		w.wantWrites(key, "Attached/c1", "Detached/c1")
		w.api.remove(key)
		settle()
		if ended, _ := w.network.ledger.LastEnd("pa-u1"); ended != "" {
			t.Errorf("the end of sandbox %s is remembered", ended)
		}
	})
}

// The kernel has no link left when Detached is written.
func TestDetachedIsNeverSaidTooEarly(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		key := w.pod("p", "u1", "eth0", "net1")
		w.mustAdd("c1", "p", "u1")
		w.api.setHook(func(_ context.Context, s, _ string) error {
			if links := w.kernel.names(); s == "patch" && len(links) > 0 {
				return fmt.Errorf("written while %v are plugged", links)
			}
			return nil
		})
		w.deleteAttachment(key)
		w.mustDel("c1")
		settle()
		w.wantWrites(key, "Attached/c1", "Detached/c1")
	})
}

func TestAcknowledgementIsRetriedForEver(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		key := w.pod("p", "u1")
		w.api.setDown(errors.New("connection refused"))
		w.mustAdd("c1", "p", "u1")
		time.Sleep(10 * time.Minute) //nolint:forbidigo // the bubble's clock
		w.wantWrites(key)
		w.api.setDown(nil)
		time.Sleep(report.RetryLast) //nolint:forbidigo // the bubble's clock
		settle()
		w.wantWrites(key, "Attached/c1")
	})
}

// The controller writes at the same time as the node. The controller's write is kept, and
// the node's write follows on the newer copy.
func TestAcknowledgementAfterConflict(t *testing.T) {
	onTestNode(t, func(w *testNode) {
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

// A restarted sandbox has the same pod and the same PodAttachment: the kubelet removes
// the old sandbox and makes another. Detached is not written in between, and the API
// server is not needed.
func TestSandboxIsRestarted(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		key := w.pod("p", "u1")
		w.mustAdd("c1", "p", "u1")
		w.api.setDown(errors.New("connection refused"))
		w.mustDel("c1")
		settle()
		w.wantLinks()
		w.mustAdd("c2", "p", "u1")
		w.wantLinks("c2/eth0")
		w.api.setDown(nil)
		time.Sleep(report.RetryLast) //nolint:forbidigo // the bubble's clock
		settle()
		w.wantWrites(key, "Attached/c1", "Attached/c2")
	})
}

// A sandbox is restarted after Detached was written of its PodAttachment: the addresses
// may belong to another pod by now. The daemon remembers its write, even if the watch
// does not show it.
func TestSandboxIsRestartedTooLate(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		key := w.pod("p", "u1")
		w.mustAdd("c1", "p", "u1")
		w.mustDel("c1")
		w.deleteAttachment(key)
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

// After a reboot the status names the former boot until an ADD comes.
func TestAddAfterReboot(t *testing.T) {
	onTestNode(t, func(w *testNode) {
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

// Two sandboxes of one pod have the same addresses: the second waits until the first is
// gone.
func TestSuccessorWaitsForItsPredecessor(t *testing.T) {
	onTestNode(t, func(w *testNode) {
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

// The namespace of the first sandbox is gone, and no DEL will come.
func TestSuccessorOfADeadSandbox(t *testing.T) {
	onTestNode(t, func(w *testNode) {
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

// A StatefulSet makes pods of the same name one after the other. Each pod gets its own
// PodAttachment, however late the earlier one goes.
func TestStatefulSetRecreation(t *testing.T) {
	onTestNode(t, func(w *testNode) {
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
			w.mustDel(id)
			before = types.NamespacedName{Namespace: "ns", Name: "web-0-" + uid}
			w.deleteAttachment(before)
			settle()
			w.wantWrites(before, "Attached/"+id, "Detached/"+id)
		}
		if w.api.reads != 0 {
			t.Errorf("%d reads of the API", w.api.reads)
		}
	})
}

// wipe empties the state directory, as a reboot does.
func (w *testNode) wipe() {
	w.t.Helper()
	if err := os.RemoveAll(w.dir); err != nil {
		w.t.Fatal(err)
	}
	if err := os.MkdirAll(w.dir, 0o700); err != nil {
		w.t.Fatal(err)
	}
}
