package node

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/test/nodetest"
)

// TestFlowsThatBeganTooEarly: pods may send to a block or a node before this node knows
// it. Such flows are looked for when the packet filter has the block or node, again after
// a failure, and never for the blocks and nodes that were known when the daemon began.
func TestFlowsThatBeganTooEarly(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		w.api.putNetwork(nodetest.NodeNetwork("n2", []string{"10.244.2.0/26"}, []string{"192.168.77.12/24"}))
		filtered()
		w.restart()
		filtered()
		want := func(flows ...string) {
			t.Helper()
			w.filter.mu.Lock()
			defer w.filter.mu.Unlock()
			if diff := cmp.Diff(flows, w.filter.unmasked); diff != "" {
				t.Errorf("flows that were forgotten (-want +got):\n%s", diff)
			}
			w.filter.unmasked = nil
		}
		w.filter.mu.Lock()
		w.filter.unmasked = nil
		w.filter.mu.Unlock()
		w.api.putNetwork(nodetest.NodeNetwork("n2", []string{"10.244.2.0/26"}, []string{"192.168.77.12/24"}))
		filtered()
		want()

		failed := 0
		w.filter.setHook(func(_ context.Context, step, _ string) error {
			if step != "forget masqueraded" || failed > 0 {
				return nil
			}
			failed++
			w.filter.want(t, "cluster4", "10.244.1.0/26", "10.244.2.0/25", "192.168.77.11/32", "192.168.77.12/32")
			return errors.New("the dump was interrupted")
		})
		w.api.putNetwork(nodetest.NodeNetwork("n2", []string{"10.244.2.0/26", "10.244.2.64/26"}, []string{"192.168.77.12/24"}))
		filtered()
		filtered()
		if failed != 1 {
			t.Errorf("%d looks failed, want 1", failed)
		}
		want("[10.244.1.0/26] to [10.244.2.64/26]")

		// A block is outside of the cluster while it is gone.
		w.api.putNetwork(nodetest.NodeNetwork("n2", []string{"10.244.2.0/26"}, []string{"192.168.77.12/24"}))
		filtered()
		w.api.putNetwork(nodetest.NodeNetwork("n3", []string{"10.244.2.64/26"}, []string{"192.168.77.13/24"}))
		filtered()
		want("[10.244.1.0/26] to [10.244.2.64/26 192.168.77.13/32]")
	})
}
