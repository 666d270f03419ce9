package node

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/node/ledger"
)

// The daemon cannot write once that a record is damaged: the next daemon still knows the sandbox,
// and keeps the links of the living pod.
func TestDamagedRecordIsNotReplacedOnce(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		w.pod("p", "u1")
		w.mustAdd("c1", "p", "u1")
		w.damageRecord()
		w.stop()
		temp := filepath.Join(w.dir, ledger.RecordsDir, ledger.TempPrefix+"c1")
		// The directory is full for a moment: here a directory is where the file is to be.
		// recordNames would remove it, so it is made when the record is set aside.
		w.kernel.setHook(func(_ context.Context, step, _ string) error {
			if step == "links" {
				_ = os.Mkdir(temp, 0o700)
			}
			return nil
		})
		w.start()
		settle()
		w.wantLinks("c1/eth0") // still there
		w.kernel.setHook(nil)
		_ = os.Remove(temp)
		w.restart()
		w.wantLinks("c1/eth0")
	})
}

// The status still names the sandbox before the damaged one: the pod is not acknowledged while
// the later one lives.
func TestDamagedRecordOfALaterSandbox(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		key := w.pod("p", "u1")
		w.mustAdd("c0", "p", "u1")
		if got := w.state(key); got != v1alpha1.SandboxAttached {
			t.Fatal(got)
		}
		w.mustDel("c0")
		settle()
		w.api.setHook(func(context.Context, string, string) error { return errors.New("connection refused") })
		w.mustAdd("c1", "p", "u1") // the API server is away: the status still names c0
		w.stop()
		w.api.setHook(nil)
		w.damageRecord()
		w.start()
		settle()
		w.deleteAttachment(key)
		settle()
		w.wantLinks("c1/eth0")
		if got := w.state(key); got == v1alpha1.SandboxDetached {
			t.Errorf("it is %q while c1 lives", got)
		}
	})
}

// The heir of a claim waits for a predecessor whose record is damaged.
func TestHeirWaitsForADamagedSandbox(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		w.claimPod("web-0", "u1", "ns/web-0")
		w.mustAdd("c1", "web-0", "u1")
		w.damageRecord()
		w.restart()
		w.claimPod("web-0", "u2", "ns/web-0")
		if _, err := w.add("c2", "web-0", "u2"); err == nil {
			t.Errorf("plugged beside its predecessor: %v", w.kernel.names())
		}
	})
}

// The damaged record of a pod with a delegated interface ends with a DEL that names no
// namespace, because the runtime has ended it.
func TestDamagedDelegateEndsWithItsNamespace(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		key := w.pod("p", "u1")
		w.mustAdd("c1", "p", "u1")
		w.stop()
		w.damageRecord()
		w.api.change(key, func(pa *v1alpha1.PodAttachment) {
			pa.Spec.Interfaces = append(pa.Spec.Interfaces, v1alpha1.Interface{Name: "net1", Network: "ns/blue", Binding: v1alpha1.Binding{Delegate: &v1alpha1.PluginList{Name: "blue", CNIVersion: "1.0.0"}}})
		})
		w.start()
		w.kernel.holds(func(context.Context, []netip.Addr) (string, error) { return "", nil })
		settle()
		w.deleteAttachment(key)
		w.pass(time.Hour)
		if got := w.state(key); got != v1alpha1.SandboxAttached {
			t.Errorf("before its DEL it is %q", got)
		}
		w.kernel.drop(w.netns("c1"))
		if err := w.del("c1"); err != nil {
			t.Fatal(err)
		}
		w.pass(time.Hour)
		if got := w.state(key); got != v1alpha1.SandboxDetached {
			t.Errorf("after its DEL it is %q", got)
		}
	})
}
