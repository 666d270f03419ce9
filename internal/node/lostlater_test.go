package node

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/node/background"
)

// The directory of records was lost, and no status names the sandbox. The namespaces cannot be
// read at the first look, as without a free file descriptor, which is no proof: the pod's
// PodAttachment is not acknowledged as Detached while its namespace has the addresses.
func TestLostRecordsNotReadAtOnce(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		key := w.loseUnlinked(false)
		w.start()
		began := time.Now()
		w.kernel.holds(func(context.Context, []netip.Addr) (string, error) {
			if time.Since(began) < 10*time.Second {
				return "", errors.New("too many open files")
			}
			return "/run/netns/c1", nil
		})
		settle()
		w.pass(2 * background.SweepInterval)
		w.deleteAttachment(key)
		w.pass(2 * background.SweepInterval)
		if got := w.state(key); got == v1alpha1.SandboxDetached {
			t.Errorf("it is %q while its namespace has the addresses", got)
		}
	})
}
