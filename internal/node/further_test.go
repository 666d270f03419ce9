package node

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/netdev/kinds"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/netdev/plug/child"
	"fairlead.dev/fairlead/internal/netdev/plug/hostdevice"
	"fairlead.dev/fairlead/internal/netdev/plug/routed"
	"fairlead.dev/fairlead/internal/node/answer"
	"fairlead.dev/fairlead/internal/node/report"
	"fairlead.dev/fairlead/test/nettest"
	"fairlead.dev/fairlead/test/nodetest"
)

// furtherNode is a node with pod p, which has eth0 on the default network, net1 as a macvlan on p0,
// and net2, which is the device eth5 of the node.
type furtherNode struct {
	*podNode
	macvlan, device *faulty
}

// faultyDevice is a faulty kind with the other methods of plug.HostDevice.
type faultyDevice struct {
	*faulty
	plug.Resolver
	plug.Borrower
	plug.Finder
}

// kindOfFurther returns the kind of a binding of furtherNode.
func kindOfFurther(b v1alpha1.Binding) string {
	switch {
	case b.Macvlan != nil:
		return plug.KindMacvlan
	case b.HostDevice != nil:
		return plug.KindHostDevice
	case b.Bridge != nil:
		return plug.KindBridge
	}
	return plug.KindRouted
}

func onFurtherNode(t *testing.T, test func(*furtherNode)) {
	t.Helper()
	onFurtherNodeWith(t, furtherAttachment(), test)
}

// onFurtherNodeWith is onFurtherNode with another PodAttachment of pod p.
func onFurtherNodeWith(t *testing.T, pa *v1alpha1.PodAttachment, test func(*furtherNode)) {
	t.Helper()
	n := &furtherNode{podNode: newPodNode(t)}
	nettest.AddDevice(t, n.host, "p0")
	nettest.AddDevice(t, n.host, "eth5")
	n.hostLinks = nettest.LinkNames(t, n.host.Namespace())
	n.macvlan, n.device = &faulty{Kind: child.Macvlan(n.host)}, &faulty{Kind: hostdevice.New(n.host)}
	device := faultyDevice{n.device, n.device.Kind.(plug.Resolver), n.device.Kind.(plug.Borrower), n.device.Kind.(plug.Finder)}
	table := kinds.New(n.host, kindOfFurther, map[string]plug.Kind{
		plug.KindRouted: routed.New(n.host, nil), plug.KindMacvlan: n.macvlan, plug.KindHostDevice: device,
	})
	onTestNodeWith(t, table, func(w *testNode) {
		n.serve(w, pa)
		test(n)
	})
}

// furtherAttachment is the PodAttachment of pod p.
func furtherAttachment() *v1alpha1.PodAttachment {
	pa := nodetest.Attachment("p", "u1", "eth0", "net1", "net2")
	further := pa.Spec.Interfaces[1:]
	for n, b := range []v1alpha1.Binding{
		{Macvlan: &v1alpha1.MacvlanBinding{Parent: "p0", Mode: "bridge"}},
		{HostDevice: &v1alpha1.HostDeviceBinding{Name: "eth5"}},
	} {
		further[n].Network, further[n].Binding, further[n].MAC = "ns/further", b, ""
	}
	further[1].Addresses = nil
	return pa
}

func (n *furtherNode) wantPlugged(when string) {
	n.t.Helper()
	if links := nettest.LinkNames(n.t, n.pod); !slices.Equal(links, []string{"eth0", "lo", "net1", "net2"}) {
		n.t.Errorf("%s: the pod has %v", when, links)
	}
	n.wantRecords("c1")
}

// wantNothing checks that nothing of the pod is left, and that the device is back.
func (n *furtherNode) wantNothing(when string) {
	n.t.Helper()
	n.wantRecords()
	if diff := cmp.Diff(n.hostLinks, nettest.LinkNames(n.t, n.host.Namespace())); diff != "" {
		n.t.Errorf("%s: links of the host (-before +after):\n%s", when, diff)
	}
	if links := nettest.LinkNames(n.t, n.pod); !slices.Equal(links, []string{"lo"}) {
		n.t.Errorf("%s: the pod has %v", when, links)
	}
	if alias := nettest.LinkNamed(n.t, n.host.Namespace(), "eth5").Attrs().Alias; alias != "" {
		n.t.Errorf("%s: the device is marked %q", when, alias)
	}
}

// A pod with interfaces of three kinds lives from its ADD to its DEL.
func TestFurtherInterfacesLive(t *testing.T) {
	onFurtherNode(t, func(n *furtherNode) {
		t := n.t
		device := nettest.LinkNamed(t, n.host.Namespace(), "eth5").Attrs()
		raw := n.plugged()
		n.wantPlugged("ADD")
		res, err := types100.NewResult(raw)
		if err != nil {
			t.Fatal(err)
		}
		result, err := types100.GetResult(res)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, i := range result.Interfaces {
			if i.Sandbox != "" {
				names = append(names, i.Name)
			}
			if i.Name == "net2" && (i.Mac != device.HardwareAddr.String() || i.Mtu != device.MTU) {
				t.Errorf("the answer has MAC %s and MTU %d of the device", i.Mac, i.Mtu)
			}
		}
		if !slices.Equal(names, []string{"eth0", "net1", "net2"}) {
			t.Errorf("ADD answers with %v", names)
		}
		links := n.api.get(n.key).Status.Sandbox.Links
		macvlan := nettest.LinkNamed(t, n.pod, "net1").Attrs().HardwareAddr.String()
		want := []v1alpha1.SandboxLink{
			{Name: "eth0", MAC: "0a:58:0a:f4:00:05", MTU: 1500},
			{Name: "net1", MAC: macvlan, MTU: 1500},
			{Name: "net2", MAC: device.HardwareAddr.String(), MTU: 1500},
		}
		if diff := cmp.Diff(want, links); diff != "" {
			t.Errorf("links in the status (-want +got):\n%s", diff)
		}
		nodetest.WantCode(t, n.check(raw), 0)
		sweeps()
		if _, err := n.handle(gcRequest(`,"cni.dev/valid-attachments":[]`)); err != nil {
			t.Errorf("GC: %v", err)
		}
		n.restart()
		n.wantPlugged("sweep, GC and restart")
		if again := n.plugged(); string(again) != string(raw) {
			t.Errorf("ADD again: %s, want %s", again, raw)
		}
		nodetest.WantCode(t, n.check(raw), 0)
		n.wantWrites(n.key, "Attached/c1")

		nettest.Steps(t, n.host, link.Lower("p0"))
		err = n.check(raw)
		nodetest.WantCode(t, err, answer.CodeDiffers)
		if e := cniproto.AsError(err); !strings.Contains(e.Details, "parent p0 of net1 is down") {
			t.Errorf("CHECK without the parent: %s", e.Details)
		}
		nettest.Steps(t, n.host, link.Raise("p0"))

		nodetest.WantCode(t, n.del("c1"), 0)
		n.deleteAttachment(n.key)
		settle()
		n.wantNothing("DEL")
		n.wantWrites(n.key, "Attached/c1", "Detached/c1")
		if got := n.api.get(n.key).Status.Sandbox.Links; got != nil {
			t.Errorf("links in the status after DEL: %+v", got)
		}
	})
}

// A daemon that is killed after it made an interface leaves nothing, and the next ADD
// succeeds.
func TestFurtherInterfacesKilled(t *testing.T) {
	for name, at := range map[string]func(*furtherNode) *faulty{
		"after net1": func(n *furtherNode) *faulty { return n.macvlan },
		"after net2": func(n *furtherNode) *faulty { return n.device },
	} {
		t.Run(name, func(t *testing.T) {
			onFurtherNode(t, func(n *furtherNode) {
				kind := at(n)
				kind.killed.Store(true)
				go func() { _, _ = n.handle(n.request(cniproto.VerbAdd)) }()
				settle()
				kind.killed.Store(false)
				if links := nettest.LinkNames(n.t, n.pod); !slices.Contains(links, "net1") {
					n.t.Errorf("the ADD that was killed has made %v", links)
				}
				n.restart()
				n.wantNothing("a restart")
				raw := n.plugged()
				n.wantPlugged("ADD again")
				nodetest.WantCode(n.t, n.check(raw), 0)
				nodetest.WantCode(n.t, n.del("c1"), 0)
				settle()
				n.wantNothing("DEL")
			})
		})
	}
}

// The addresses of a pod are not released while its device is still in the sandbox.
func TestDeviceThatDoesNotComeBack(t *testing.T) {
	onFurtherNode(t, func(n *furtherNode) {
		n.plugged()
		n.device.stuck.Store(true)
		nodetest.WantCode(n.t, n.del("c1"), 0)
		n.deleteAttachment(n.key)
		settle()
		n.wantWrites(n.key, "Attached/c1")
		n.device.stuck.Store(false)
		time.Sleep(report.RetryLast) //nolint:forbidigo // the bubble's clock
		settle()
		n.wantNothing("DEL")
		n.wantWrites(n.key, "Attached/c1", "Detached/c1")
	})
}

// A DEL answers when the device is back. The runtime ends the namespace after the answer, and
// the kernel deletes a device without hardware with its namespace: a VLAN link, a bond.
func TestDeviceIsBackBeforeTheAnswer(t *testing.T) {
	onFurtherNode(t, func(n *furtherNode) {
		n.plugged()
		nodetest.WantCode(n.t, n.del("c1"), 0)
		if links := nettest.LinkNames(n.t, n.host.Namespace()); !slices.Contains(links, "eth5") {
			n.t.Errorf("DEL answered while the host has %v", links)
		}
		settle()
		n.wantNothing("DEL")
	})
}

// A device that the kernel returned to the host, when the namespace of its pod ended, gets
// its name back by the sweep, also without a record.
func TestDeviceComesBackBySweep(t *testing.T) {
	onFurtherNode(t, func(n *furtherNode) {
		// The device as the kernel returns it: down, under the name that it had in the pod.
		h := nettest.OpenHandle(n.t, n.host.Namespace())
		dev := nettest.LinkNamed(n.t, n.host.Namespace(), "eth5")
		alias := "fairlead c9 net1 - eth5 1500 - up"
		if err := errors.Join(h.LinkSetDown(dev), h.LinkSetName(dev, "net1"), h.LinkSetAlias(dev, alias)); err != nil {
			n.t.Fatal(err)
		}
		sweeps()
		n.wantNothing("a sweep")
		if err := errors.Join(h.LinkSetDown(dev), h.LinkSetName(dev, "dev7"), h.LinkSetAlias(dev, alias)); err != nil {
			n.t.Fatal(err)
		}
		n.restart()
		n.wantNothing("a restart")
	})
}

// Only an ADD with an interface of the default network waits for this network.
func TestOnlyPodsOfTheDefaultNetworkWaitForIt(t *testing.T) {
	onFurtherNode(t, func(n *furtherNode) {
		n.testNode.host.set(func(h *fakeHost) { h.err = errors.New("no uplink") })
		n.restart()
		_, err := n.handle(n.request(cniproto.VerbAdd))
		nodetest.WantCode(n.t, err, cniproto.CodeTryAgainLater, "the default network is not there yet")

		pa := furtherAttachment()
		pa.Name, pa.UID, pa.Spec.PodName, pa.Spec.PodUID = "q-u2", "pa-u2", "q", "u2"
		pa.Spec.Interfaces = pa.Spec.Interfaces[1:2]
		pa.Spec.Interfaces[0].Default = true
		n.api.putPod("q", "u2")
		n.api.put(pa)
		settle()
		start := time.Now()
		if _, err := n.handle(request(cniproto.VerbAdd, "c2", n.pod.Path(), "q", "u2")); err != nil {
			n.t.Fatalf("ADD of a pod that is not on the default network: %v", err)
		}
		if waited := time.Since(start); waited > 0 {
			n.t.Errorf("it waited %s", waited)
		}
		nodetest.WantCode(n.t, n.del("c2"), 0)
		settle()
		n.wantNothing("DEL")
	})
}

// The interfaces of a pod whose namespace ended without a DEL are released.
func TestFurtherInterfacesOfANamespaceThatEnded(t *testing.T) {
	onFurtherNode(t, func(n *furtherNode) {
		n.plugged()
		// Stand-ins end with their namespace: the kernel returns real devices.
		if err := errors.Join(n.device.Kind.Remove(n.t.Context(), plug.Made{Kind: plug.KindHostDevice, ContainerID: "c1", Name: "net2", Namespace: n.pod.Place()}), n.pod.Close()); err != nil {
			n.t.Fatal(err)
		}
		nettest.DropPath(n.t, n.pod.Path())
		if err := os.Remove(n.pod.Path()); err != nil {
			n.t.Fatal(err)
		}
		sweeps()
		n.wantRecords()
		n.deleteAttachment(n.key)
		settle()
		n.wantWrites(n.key, "Attached/c1", "Detached/c1")
		if diff := cmp.Diff(n.hostLinks, nettest.LinkNames(n.t, n.host.Namespace())); diff != "" {
			n.t.Errorf("links of the host (-before +after):\n%s", diff)
		}
	})
}
