package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/node/background"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/internal/node/report"
)

// The state directory was removed while pods ran. The next daemon keeps their interfaces and
// serves their DEL. A link of an ADD that was not answered is still removed.
func TestLostStateDirectory(t *testing.T) {
	for name, lose := range map[string]struct {
		path string
		kept bool
	}{
		"the whole directory":      {path: "", kept: true},
		"the directory of records": {path: ledger.RecordsDir, kept: true},
		"one record":               {path: filepath.Join(ledger.RecordsDir, "c1"+ledger.RecordSuffix)},
	} {
		t.Run(name, func(t *testing.T) {
			onTestNode(t, func(w *testNode) {
				key := w.pod("web", "uid-1")
				w.mustAdd("c1", "web", "uid-1")
				w.stop()
				if err := os.RemoveAll(filepath.Join(w.dir, lose.path)); err != nil {
					t.Fatal(err)
				}
				w.start()
				settle()
				if !lose.kept {
					w.wantLinks()
					return
				}
				w.wantLinks("c1/eth0")
				w.wantRecords("c1")
				w.restart() // and adopts the rebuilt record
				w.wantLinks("c1/eth0")
				if got := w.state(key); got != v1alpha1.SandboxAttached {
					t.Errorf("it is %q", got)
				}
				w.deleteAttachment(key)
				settle()
				if got := w.state(key); got != v1alpha1.SandboxAttached {
					t.Errorf("before the DEL it is %q", got)
				}
				w.mustDel("c1")
				settle()
				w.wantLinks()
				w.wantRecords()
				if got := w.state(key); got != v1alpha1.SandboxDetached {
					t.Errorf("after the DEL it is %q", got)
				}
			})
		})
	}
}

// writeAgain removes a PodAttachment and writes it again, as a controller does: with another UID and
// without a status.
func (w *testNode) writeAgain(key types.NamespacedName, away time.Duration) {
	w.t.Helper()
	again := w.api.get(key).DeepCopy()
	again.UID, again.ResourceVersion, again.Status = "written-again", "", v1alpha1.PodAttachmentStatus{}
	w.api.remove(key)
	time.Sleep(away) //nolint:forbidigo // the bubble's clock
	w.api.put(again)
}

// The kind of PodAttachments was deleted and installed again: the controller wrote the record
// of a running pod again, with another UID. The node reports the sandbox to it, and does not
// report Detached before the DEL, also after a restart in between.
func TestPodAttachmentWrittenAgain(t *testing.T) {
	for _, restarts := range []bool{false, true} {
		t.Run(fmt.Sprintf("the daemon restarts: %v", restarts), func(t *testing.T) {
			onTestNode(t, func(w *testNode) {
				key := w.pod("web", "uid-1")
				w.mustAdd("c1", "web", "uid-1")
				w.wantWrites(key, "Attached/c1")
				w.writeAgain(key, 2*background.SweepInterval)
				settle()
				if restarts {
					w.restart()
				}
				time.Sleep(2 * report.AckDelay) //nolint:forbidigo // the bubble's clock
				settle()
				if got := w.state(key); got != v1alpha1.SandboxAttached {
					t.Errorf("it is %q; want Attached", got)
				}
				w.deleteAttachment(key)
				time.Sleep(2 * report.AckDelay) //nolint:forbidigo // the bubble's clock
				settle()
				if got := w.state(key); got != v1alpha1.SandboxAttached {
					t.Errorf("before the DEL it is %q: its addresses would be given to others", got)
				}
				w.mustDel("c1")
				time.Sleep(2 * report.AckDelay) //nolint:forbidigo // the bubble's clock
				settle()
				if got := w.state(key); got != v1alpha1.SandboxDetached {
					t.Errorf("after the DEL it is %q", got)
				}
				w.wantLinks()
				w.wantRecords()
			})
		})
	}
}

// The PodAttachment of a pod is written again, and deleted, while the DEL of its sandbox
// works on the former record.
func TestPodAttachmentWrittenAgainDuringDel(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		key := w.pod("web", "uid-1")
		w.mustAdd("c1", "web", "uid-1")
		var once sync.Once
		w.kernel.setHook(func(context.Context, string, string) error {
			once.Do(func() {
				w.writeAgain(key, 0)
				w.deleteAttachment(key)
				time.Sleep(2 * report.AckDelay) //nolint:forbidigo // the bubble's clock
				if got := w.state(key); got == v1alpha1.SandboxDetached {
					t.Error("it is Detached before the DEL has removed the interface")
				}
			})
			return nil
		})
		w.mustDel("c1")
		time.Sleep(2 * report.AckDelay) //nolint:forbidigo // the bubble's clock
		settle()
		if got := w.state(key); got != v1alpha1.SandboxDetached {
			t.Errorf("after the DEL it is %q", got)
		}
		w.wantLinks()
		w.wantRecords()
	})
}
