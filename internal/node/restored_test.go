package node

import (
	"testing"
	"time"

	"fairlead.dev/fairlead/internal/node/background"
	"fairlead.dev/fairlead/internal/node/report"
)

// After a restore of etcd from a backup the node's writes are lost. The node writes its
// status again, whether the watch shows the older state or had never shown a newer one.
func TestRestoredFromABackup(t *testing.T) {
	for _, shown := range []bool{true, false} {
		onTestNode(t, func(w *testNode) {
			key := w.pod("p", "u1")
			settle()
			backup := w.api.get(key)
			unmute := func() {}
			if !shown {
				unmute = w.api.mute()
			}
			w.mustAdd("c1", "p", "u1")
			time.Sleep(2 * report.AckDelay) //nolint:forbidigo // the bubble's clock
			settle()
			w.wantWrites(key, "Attached/c1")
			w.api.restore(backup)
			unmute()
			if shown {
				w.api.tell(backup)
			} else {
				time.Sleep(2*background.SweepInterval + time.Second) //nolint:forbidigo // the bubble's clock
			}
			time.Sleep(2 * report.AckDelay) //nolint:forbidigo // the bubble's clock
			settle()
			w.wantWrites(key, "Attached/c1", "Attached/c1")
			if s := w.api.get(key).Status.Sandbox; s == nil || s.ID != "c1" {
				w.t.Errorf("the API server has %+v", s)
			}
		})
	}
}

// A pod that exists again after a restore of etcd is plugged again, although Detached was
// written of it.
func TestRestoredToBeforeItsEnd(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		key := w.pod("p", "u1")
		settle()
		backup := w.api.get(key)
		w.deleteAttachment(key)
		settle()
		w.wantWrites(key, "Detached/")
		w.api.restore(backup)
		w.api.tell(backup)
		settle()
		w.mustAdd("c1", "p", "u1")
		w.wantLinks("c1/eth0")
	})
}
