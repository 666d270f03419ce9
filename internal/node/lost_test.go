package node

import (
	"os"
	"path/filepath"
	"testing"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/node/ledger"
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
				if err := w.del("c1"); err != nil {
					t.Fatal(err)
				}
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
