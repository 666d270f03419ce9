package node

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/node/answer"
	"fairlead.dev/fairlead/test/nettest"
	"fairlead.dev/fairlead/test/nodetest"
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
		nodetest.WantCode(t, answer.CNI(err), cniproto.CodeTryAgainLater, "the kubelet does not answer")
		n.devices.err = nil
		_, err = n.handle(n.request(cniproto.VerbAdd))
		nodetest.WantCode(t, answer.CNI(err), cniproto.CodeInvalidConfig, "net2", "no device of resource intel.com/a")
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

// A running pod gets an interface that is no device without a question to the kubelet, and
// one that is a device of the pod which no interface has. More devices than the kubelet has
// allocated are refused.
func TestHotPlugOfADevice(t *testing.T) {
	onFurtherNode(t, func(n *furtherNode) {
		t := n.t
		device := v1alpha1.Binding{HostDevice: &v1alpha1.HostDeviceBinding{Resource: &v1alpha1.DeviceResource{Name: "intel.com/a"}}}
		asks := func(name string, b v1alpha1.Binding) {
			n.api.change(n.key, func(pa *v1alpha1.PodAttachment) {
				pa.Spec.Interfaces = append(pa.Spec.Interfaces, v1alpha1.Interface{Name: name, Network: "ns/" + name, Driver: "native", Binding: b})
				pa.Generation++
			})
			settle()
		}
		wantLinks := func(when string, want ...string) {
			t.Helper()
			if diff := cmp.Diff(want, nettest.LinkNames(t, n.pod)); diff != "" {
				t.Errorf("%s: links of the pod (-want +got):\n%s", when, diff)
			}
		}
		nettest.AddDevice(t, n.host, "eth6")
		n.hostLinks = nettest.LinkNames(t, n.host.Namespace())
		pa := furtherAttachment()
		pa.Spec.Interfaces[2].Binding = device
		n.api.put(pa)
		settle()
		n.devices.devices = map[string][]string{"intel.com/a": {"eth5", "eth6"}}
		n.plugged()
		calls := n.devices.calls.Load()
		n.devices.err = fault.Errorf(fault.ErrNotReady, "the kubelet does not answer")
		asks("net3", v1alpha1.Binding{Macvlan: &v1alpha1.MacvlanBinding{Parent: "p0", Mode: "bridge"}})
		wantLinks("no device", "eth0", "lo", "net1", "net2", "net3")
		if got := n.devices.calls.Load(); got != calls {
			t.Errorf("the kubelet was asked %d times for no device", got-calls)
		}
		n.devices.err = nil
		asks("net4", device)
		wantLinks("a device", "eth0", "lo", "net1", "net2", "net3", "net4")
		if alias := nettest.LinkNamed(t, n.pod, "net4").Attrs().Alias; !strings.Contains(alias, " eth6 ") {
			t.Errorf("net4 is marked %q, want it to be eth6", alias)
		}
		asks("net5", device)
		wantLinks("more devices than there are", "eth0", "lo", "net1", "net2", "net3", "net4")
		n.wantReady(n.key, "c1", "net5")
		if m := meta.FindStatusCondition(n.api.get(n.key).Status.Conditions, v1alpha1.ConditionReady).Message; !strings.Contains(m, "its other interfaces have them") {
			t.Errorf("the condition says %q", m)
		}
		nodetest.WantCode(t, n.del("c1"), 0)
		n.deleteAttachment(n.key)
		settle()
		n.wantNothing("DEL")
	})
}
