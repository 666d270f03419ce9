package node

import (
	"context"
	"errors"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/node/apiserver"
	"fairlead.dev/fairlead/internal/node/report"
	"fairlead.dev/fairlead/test/nodetest"
)

// A sandbox from before a migration has no record here. It is not reported as gone while
// its namespace has the addresses, as after kubectl delete --force, nor while that is
// unknown.
func TestMigratedIsAcknowledgedWhenItsNamespaceIsGone(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		type answer struct {
			path string
			err  error
		}
		var holding atomic.Pointer[answer]
		holding.Store(&answer{path: "/run/netns/before"})
		w.kernel.holds(func(context.Context, []netip.Addr) (string, error) {
			a := holding.Load()
			return a.path, a.err
		})
		pa := nodetest.Attachment("p", "u1")
		pa.Labels = map[string]string{v1alpha1.LabelMigratedFrom: "whereabouts"}
		pa.Status.Sandbox = &v1alpha1.Sandbox{ID: "before", BootID: w.network.ledger.BootID, State: v1alpha1.SandboxAttached}
		key := apiserver.KeyOf(w.api.put(pa))
		settle()
		w.deleteAttachment(key)
		time.Sleep(time.Minute) //nolint:forbidigo // the bubble's clock
		w.wantWrites(key)
		holding.Store(&answer{err: errors.New("mount is hidden")})
		time.Sleep(time.Minute) //nolint:forbidigo // the bubble's clock
		w.wantWrites(key)
		holding.Store(&answer{})
		time.Sleep(report.RetryLast) //nolint:forbidigo // the bubble's clock
		settle()
		w.wantWrites(key, "Detached/before")
		if _, err := w.add("c1", "p", "u1"); err == nil {
			t.Error("plugged after it was said that nothing is")
		}
	})
}

// After its sandbox is made anew, a migrated pod changes by its record.
func TestMigratedSandboxIsRestarted(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		w.kernel.holds(func(context.Context, []netip.Addr) (string, error) {
			if len(w.kernel.names()) > 0 {
				t.Error("looked for the namespace of a sandbox that has a record")
			}
			return "", nil
		})
		pa := nodetest.Attachment("p", "u1")
		pa.Labels = map[string]string{v1alpha1.LabelMigratedFrom: "whereabouts"}
		pa.Status.Sandbox = &v1alpha1.Sandbox{ID: "before", State: v1alpha1.SandboxAttached}
		key := apiserver.KeyOf(w.api.put(pa))
		w.mustAdd("c1", "p", "u1")
		w.deleteAttachment(key)
		settle()
		w.wantWrites(key, "Attached/c1")
		w.mustDel("c1")
		settle()
		w.wantWrites(key, "Attached/c1", "Detached/c1")
	})
}
