package node

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/netdev/kinds"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/netdev/plug/child"
	"fairlead.dev/fairlead/internal/netdev/plug/routed"
	"fairlead.dev/fairlead/internal/node/report"
	"fairlead.dev/fairlead/test/nettest"
	"fairlead.dev/fairlead/test/nodetest"
)

// stepper is a kind that calls a function before and after Make and Remove.
type stepper struct {
	plug.Kind
	at atomic.Pointer[func(ctx context.Context, step string) error]
}

func (s *stepper) step(ctx context.Context, step string) error {
	if f := s.at.Load(); f != nil {
		return (*f)(ctx, step)
	}
	return nil
}

func (s *stepper) on(f func(ctx context.Context, step string) error) { s.at.Store(&f) }

func (s *stepper) Make(ctx context.Context, ns *link.Namespace, i plug.Interface) error {
	if err := s.step(ctx, "make"); err != nil {
		return err
	}
	if err := s.Kind.Make(ctx, ns, i); err != nil {
		return err
	}
	return s.step(ctx, "made")
}

func (s *stepper) Remove(ctx context.Context, m plug.Made) error {
	if err := s.step(ctx, "remove"); err != nil {
		return err
	}
	if err := s.Kind.Remove(ctx, m); err != nil {
		return err
	}
	return s.step(ctx, "removed")
}

// finder is a stepper whose kind has links on the host.
type finder struct {
	*stepper
	plug.Finder
}

// runningNode is a node with the running pod p, whose networks change. It has eth0 on the
// default network at first. Further interfaces are macvlans on p0 or p1, or on the bridge br1.
type runningNode struct {
	*podNode
	routed, macvlan, bridge *stepper
}

func onRunningNode(t *testing.T, test func(*runningNode)) {
	t.Helper()
	n := &runningNode{podNode: newPodNode(t)}
	nettest.AddDevice(t, n.host, "p0")
	nettest.AddDevice(t, n.host, "p1")
	nettest.AddBridge(t, n.host.Namespace(), "br1", 1500)
	nettest.Steps(t, n.host, link.Raise("br1"))
	n.hostLinks = nettest.LinkNames(t, n.host.Namespace())
	n.routed, n.macvlan, n.bridge = &stepper{Kind: routed.New(n.host, nil)}, &stepper{Kind: child.Macvlan(n.host)}, &stepper{Kind: plug.Bridge(n.host)}
	table := kinds.New(n.host, kindOfFurther, map[string]plug.Kind{
		plug.KindRouted: finder{n.routed, n.routed.Kind.(plug.Finder)}, plug.KindBridge: finder{n.bridge, n.bridge.Kind.(plug.Finder)}, plug.KindMacvlan: n.macvlan,
	})
	onTestNodeWith(t, table, func(w *testNode) {
		n.serve(w, nodetest.Attachment("p", "u1"))
		test(n)
	})
}

// on returns an interface on a network whose parent or bridge has the same name.
func on(name, network, address string) v1alpha1.Interface {
	i := v1alpha1.Interface{Name: name, Network: "ns/" + network, Driver: "native", Addresses: []string{address + "/24"}}
	i.Binding.Macvlan = &v1alpha1.MacvlanBinding{Parent: network, Mode: "bridge"}
	if network == "br1" {
		i.Binding = v1alpha1.Binding{Bridge: &v1alpha1.BridgeBinding{Name: "br1"}}
	}
	return i
}

// spec changes the spec of the pod's PodAttachment as the controller does.
func (n *runningNode) spec(change func(*v1alpha1.PodAttachmentSpec)) {
	n.api.change(n.key, func(pa *v1alpha1.PodAttachment) {
		change(&pa.Spec)
		pa.Generation++
	})
}

// asks adds interfaces to the spec.
func (n *runningNode) asks(interfaces ...v1alpha1.Interface) {
	n.spec(func(s *v1alpha1.PodAttachmentSpec) { s.Interfaces = append(s.Interfaces, interfaces...) })
	settle()
}

// drops names interfaces in spec.unplug.
func (n *runningNode) drops(names ...string) {
	n.spec(func(s *v1alpha1.PodAttachmentSpec) { s.Unplug = append(s.Unplug, names...) })
	settle()
}

// forgets removes the interfaces of spec.unplug from the spec.
func (n *runningNode) forgets() {
	n.spec(func(s *v1alpha1.PodAttachmentSpec) {
		s.Interfaces = slices.DeleteFunc(slices.Clone(s.Interfaces), func(i v1alpha1.Interface) bool { return slices.Contains(s.Unplug, i.Name) })
		s.Unplug = nil
	})
	settle()
}

// retries waits until failed changes are tried again.
func retries() {
	time.Sleep(report.RetryLast) //nolint:forbidigo // the bubble's clock
	settle()
}

// wantHas checks that the pod has eth0 and these interfaces, and that nothing else is on
// the host.
func (n *runningNode) wantHas(when string, names ...string) {
	n.t.Helper()
	want := append([]string{"eth0", "lo"}, names...)
	slices.Sort(want)
	if diff := cmp.Diff(want, nettest.LinkNames(n.t, n.pod)); diff != "" {
		n.t.Errorf("%s: links of the pod (-want +got):\n%s", when, diff)
	}
	ports := []string{plug.RoutedName("c1", "eth0")}
	for _, i := range n.network.ledger.Get("c1").Interfaces() {
		if i.Made.HostLink != "" && i.Made.HostLink != ports[0] {
			ports = append(ports, i.Made.HostLink)
		}
	}
	host := append(slices.Clone(n.hostLinks), ports...)
	slices.Sort(host)
	if diff := cmp.Diff(host, nettest.LinkNames(n.t, n.host.Namespace())); diff != "" {
		n.t.Errorf("%s: links of the host (-want +got):\n%s", when, diff)
	}
}

// wantConfirmed checks that the status has these interfaces beside eth0, for the present
// spec.
func (n *runningNode) wantConfirmed(when string, names ...string) {
	n.t.Helper()
	n.wantStatus(when, n.api.get(n.key).Generation, names...)
}

func (n *runningNode) wantStatus(when string, generation int64, names ...string) {
	n.t.Helper()
	s := n.api.get(n.key).Status.Sandbox
	var links []string
	for _, l := range s.Links {
		links = append(links, l.Name)
	}
	var want []string
	if len(names) > 0 {
		want = append([]string{"eth0"}, names...)
	}
	if diff := cmp.Diff(want, links); diff != "" || s.Generation != generation || s.State != v1alpha1.SandboxAttached {
		n.t.Errorf("%s: the status has generation %d, want %d, state %s, links (-want +got):\n%s", when, s.Generation, generation, s.State, diff)
	}
}

// wantNothing checks that nothing of the pod is left.
func (n *runningNode) wantNothing(when string) {
	n.t.Helper()
	n.wantRecords()
	if diff := cmp.Diff(n.hostLinks, nettest.LinkNames(n.t, n.host.Namespace())); diff != "" {
		n.t.Errorf("%s: links of the host (-before +after):\n%s", when, diff)
	}
	if links := nettest.LinkNames(n.t, n.pod); !slices.Equal(links, []string{"lo"}) {
		n.t.Errorf("%s: the pod has %v", when, links)
	}
}

// ends sends DEL, after which nothing is left.
func (n *runningNode) ends() {
	n.t.Helper()
	nodetest.WantCode(n.t, n.del("c1"), 0)
	n.deleteAttachment(n.key)
	settle()
	n.wantNothing("DEL")
	if s := n.api.get(n.key).Status.Sandbox; s.State != v1alpha1.SandboxDetached || s.Links != nil || s.Generation != 0 {
		n.t.Errorf("the status after DEL: %+v", s)
	}
}

// Interfaces come and go while the pod runs, also one of another network under the same
// name (multus-dynamic-networks-controller#297) and a second one of the same network, and
// nothing of a removed interface is left in the pod or on the host (kubevirt#14074). The pod may
// have begun without further networks (multus-dynamic-networks-controller#43).
func TestHotPlug(t *testing.T) {
	onRunningNode(t, func(n *runningNode) {
		raw := n.plugged()
		n.wantHas("ADD")
		n.wantConfirmed("ADD")

		n.asks(on("net1", "p0", "10.9.0.5"), on("net2", "br1", "10.9.1.5"))
		n.wantHas("plug", "net1", "net2")
		n.wantConfirmed("plug", "net1", "net2")
		n.wantReady(n.key, "c1")
		n.wantWrites(n.key, "Attached/c1", "Attached/c1")
		nodetest.WantCode(n.t, n.check(raw), 0)
		if l := n.api.get(n.key).Status.Sandbox.Links[1]; l.MAC != nettest.LinkNamed(n.t, n.pod, "net1").Attrs().HardwareAddr.String() || l.MTU != 1500 {
			n.t.Errorf("the status describes net1 as %+v", l)
		}
		if again := n.plugged(); string(again) != string(raw) {
			n.t.Errorf("ADD again: %s, want %s", again, raw)
		}

		n.drops("net1")
		n.wantHas("unplug", "net2")
		n.wantConfirmed("unplug", "net2")
		n.wantReady(n.key, "c1")
		n.forgets()
		n.asks(on("net1", "p1", "10.9.2.5"), on("net3", "br1", "10.9.1.6"))
		n.wantHas("another network of the same name", "net1", "net2", "net3")
		n.wantConfirmed("another network of the same name", "net2", "net1", "net3")
		nodetest.WantCode(n.t, n.check(raw), 0)
		n.restart()
		sweeps()
		if _, err := n.handle(gcRequest(`,"cni.dev/valid-attachments":[]`)); err != nil {
			n.t.Errorf("GC: %v", err)
		}
		settle()
		n.wantHas("restart, sweep and GC", "net1", "net2", "net3")
		n.wantReady(n.key, "c1")
		n.ends()
	})
}

// An interface of the ADD is unplugged. CHECK does not miss it, although the result of the
// ADD has it, nor compares it with a later interface of its name.
func TestHotUnplugOfTheADD(t *testing.T) {
	onRunningNode(t, func(n *runningNode) {
		n.asks(on("net1", "br1", "10.9.1.5"), on("net2", "p0", "10.9.0.5"))
		raw := n.plugged()
		n.wantConfirmed("ADD", "net1", "net2")
		n.drops("net1", "net2", "eth0")
		n.wantHas("unplug")
		n.wantConfirmed("unplug")
		nodetest.WantCode(n.t, n.check(raw), 0)
		if again := n.plugged(); string(again) != string(raw) {
			n.t.Errorf("ADD again: %s, want %s", again, raw)
		}
		n.spec(func(s *v1alpha1.PodAttachmentSpec) { s.Interfaces, s.Unplug = s.Interfaces[:1], nil })
		n.asks(on("net1", "p0", "10.9.0.6"))
		n.wantHas("plug", "net1")
		nodetest.WantCode(n.t, n.check(raw), 0)
		n.ends()
	})
}

// The ADD of a new sandbox leaves the interfaces out that are to be unplugged, and thereby
// confirms it.
func TestADDWithoutWhatIsUnplugged(t *testing.T) {
	onRunningNode(t, func(n *runningNode) {
		n.asks(on("net1", "p0", "10.9.0.5"), on("net2", "p1", "10.9.2.5"))
		n.drops("net1")
		raw := n.plugged()
		n.wantHas("ADD", "net2")
		n.wantConfirmed("ADD", "net2")
		n.wantReady(n.key, "c1")
		n.wantWrites(n.key, "Attached/c1")
		nodetest.WantCode(n.t, n.check(raw), 0)
		n.ends()
	})
}

// A change that comes while the ADD makes its interfaces is applied after it, in the same
// status or in a second one.
func TestChangeDuringADD(t *testing.T) {
	onRunningNode(t, func(n *runningNode) {
		n.routed.on(func(_ context.Context, at string) error {
			if at == "make" {
				n.routed.on(func(context.Context, string) error { return nil })
				n.spec(func(s *v1alpha1.PodAttachmentSpec) { s.Interfaces = append(s.Interfaces, on("net1", "p0", "10.9.0.5")) })
				synctest.Wait()
			}
			return nil
		})
		n.plugged()
		n.wantHas("ADD", "net1")
		n.wantConfirmed("ADD", "net1")
		n.ends()
	})
}

// An ADD that waited for an earlier sandbox does not plug an interface that has been
// unplugged meanwhile: its address may be that of another pod.
func TestADDThatWaitedForItsPredecessor(t *testing.T) {
	onRunningNode(t, func(n *runningNode) {
		n.asks(on("net1", "p0", "10.9.0.5"))
		n.plugged()
		second := nettest.NewNamespace(n.t)
		var made atomic.Bool
		n.macvlan.on(func(_ context.Context, at string) error {
			if at == "make" {
				made.Store(true)
			}
			return nil
		})
		failed := make(chan error, 1)
		go func() {
			_, err := n.handle(request(cniproto.VerbAdd, "c2", second.Path(), "p", "u1"))
			failed <- err
		}()
		settle()
		n.drops("net1")
		n.wantConfirmed("unplug")
		nodetest.WantCode(n.t, n.del("c1"), 0)
		settle()
		if err := <-failed; err != nil {
			n.t.Errorf("ADD of the second sandbox: %v", err)
		}
		if links := nettest.LinkNames(n.t, second); !slices.Equal(links, []string{"eth0", "lo"}) {
			n.t.Errorf("the second sandbox has %v", links)
		}
		if made.Load() {
			n.t.Error("net1 was made in the second sandbox")
		}
		nodetest.WantCode(n.t, n.del("c2"), 0)
		settle()
		n.wantNothing("DEL")
	})
}
