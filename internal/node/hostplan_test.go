package node

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/host"
	"fairlead.dev/fairlead/internal/node/hostnet"
	"fairlead.dev/fairlead/test/nodetest"
)

func TestNodeNetworkTellsOfTheTunnel(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		w.encapsulation = hostnet.EncapsulationAuto
		w.restart()
		time.Sleep(time.Minute) //nolint:forbidigo // the bubble's clock
		nn, _ := w.own()
		if diff := cmp.Diff(&v1alpha1.Tunnel{MAC: host.TunnelMAC("n1").String()}, nn.Status.Tunnel); diff != "" {
			t.Error(diff)
		}
		w.host.set(func(h *fakeHost) { h.fail = fmt.Errorf("%w: this kernel has no VXLAN", host.ErrNoTunnel) })
		time.Sleep(time.Minute) //nolint:forbidigo // the bubble's clock
		if nn, _ = w.own(); nn.Status.Tunnel != nil {
			t.Errorf("a tunnel that is not there: %+v", nn.Status.Tunnel)
		}
		w.pod("p", "u1")
		w.mustAdd("c1", "p", "u1") // pods of this node reach each other without the tunnel
		w.host.set(func(h *fakeHost) { h.fail = nil; h.err = errors.New("no uplink") })
		time.Sleep(time.Minute) //nolint:forbidigo // the bubble's clock
		w.host.set(func(h *fakeHost) { h.err = nil })
		time.Sleep(time.Minute) //nolint:forbidigo // the bubble's clock
		if nn, _ = w.own(); nn.Status.Tunnel == nil {
			t.Error("the status has no tunnel any more")
		}
	})
}

// A change to a NodeNetwork makes the daemon read the kernel only if it changes the plan.
func TestNodeNetworkThatChangesNothing(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		w.api.putNetwork(nodetest.NodeNetwork("n2", []string{"10.244.2.0/26"}, []string{"192.168.77.12/24"}))
		time.Sleep(time.Second) //nolint:forbidigo // the bubble's clock
		before, looked := w.host.count(), w.host.looked()
		for i := range 100 {
			nn := nodetest.NodeNetwork("n2", []string{"10.244.2.0/26"}, []string{"192.168.77.12/24"})
			nn.Status.BootID = fmt.Sprint("boot-", i)
			w.api.putNetwork(nn)
			time.Sleep(2 * hostnet.Pace) //nolint:forbidigo // the bubble's clock
		}
		if n, m := w.host.count()-before, w.host.looked()-looked; n != 0 || m != 0 {
			t.Errorf("applied %d times, looked for the uplink %d times", n, m)
		}
		w.api.putNetwork(nodetest.NodeNetwork("n2", []string{"10.244.2.0/26"}, []string{"192.168.77.13/24"}))
		time.Sleep(time.Second) //nolint:forbidigo // the bubble's clock
		if n := w.host.count() - before; n != 1 {
			t.Errorf("applied %d times after a change", n)
		}
	})
}
