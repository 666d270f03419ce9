package node

import (
	"context"
	"sync/atomic"
	"testing"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/node/fault"
	"fairlead.dev/fairlead/internal/node/nodetest"
)

// allocated plays the kubelet.
type allocated struct {
	devices map[string][]string
	err     error
	calls   atomic.Int32
}

func (a *allocated) Of(_ context.Context, namespace, name string) (map[string][]string, error) {
	a.calls.Add(1)
	if a.err != nil {
		return nil, a.err
	}
	return map[string]map[string][]string{"ns/p": a.devices}[namespace+"/"+name], nil
}

// An interface that is a device of a resource gets the device that the kubelet has
// allocated. The record has the device before it is moved, so a DEL and a later daemon need
// no kubelet.
func TestDeviceOfAResource(t *testing.T) {
	onFurtherNode(t, func(n *furtherNode) {
		t := n.t
		pa := furtherAttachment()
		pa.Spec.Interfaces[2].Binding = v1alpha1.Binding{HostDevice: &v1alpha1.HostDeviceBinding{Resource: &v1alpha1.DeviceResource{Name: "intel.com/a"}}}
		n.api.put(pa)
		settle()

		n.devices.err = fault.Errorf(fault.ErrNotReady, "the kubelet does not answer")
		_, err := n.handle(n.request(cniproto.VerbAdd))
		nodetest.WantCode(t, fault.CNI(err), cniproto.CodeTryAgainLater, "the kubelet does not answer")
		n.devices.err = nil
		_, err = n.handle(n.request(cniproto.VerbAdd))
		nodetest.WantCode(t, fault.CNI(err), cniproto.CodeInvalidConfig, "net2", "no device of resource intel.com/a")
		n.wantNothing("two ADDs that failed")

		n.devices.devices = map[string][]string{"intel.com/a": {"eth5"}}
		raw := n.plugged()
		n.wantPlugged("ADD")
		calls := n.devices.calls.Load()
		nodetest.WantCode(t, n.check(raw), 0)
		if again := n.plugged(); string(again) != string(raw) {
			t.Errorf("a repeated ADD answers %s", again)
		}
		n.devices.err = fault.Errorf(fault.ErrNotReady, "the kubelet does not answer")
		n.restart()
		n.wantPlugged("restart")
		if got := n.devices.calls.Load(); got != calls {
			t.Errorf("the kubelet was asked %d times more", got-calls)
		}
		if _, err := n.handle(n.request(cniproto.VerbDel)); err != nil {
			t.Errorf("DEL: %v", err)
		}
		settle()
		n.wantNothing("DEL")
	})
}

// A pod without such an interface does not wait for the kubelet.
func TestKubeletIsAskedForDevicesOnly(t *testing.T) {
	onFurtherNode(t, func(n *furtherNode) {
		n.devices.err = fault.Errorf(fault.ErrNotReady, "the kubelet does not answer")
		n.plugged()
		if calls := n.devices.calls.Load(); calls != 0 {
			n.t.Errorf("the kubelet was asked %d times", calls)
		}
	})
}
