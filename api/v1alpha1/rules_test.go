package v1alpha1_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/cluster"
)

// attachment returns a PodAttachment that the API server accepts, with change applied.
func attachment(change func(s *v1alpha1.PodAttachmentSpec)) *v1alpha1.PodAttachment {
	o := &v1alpha1.PodAttachment{Spec: v1alpha1.PodAttachmentSpec{
		PodName: "web", PodUID: "7d0f3a52-0000-4000-8000-000000000001", NodeName: "node-x",
		Interfaces: []v1alpha1.Interface{
			{
				Name: "eth0", Network: v1alpha1.DefaultNetwork, Driver: "native", Default: true, Addresses: []string{"10.1.0.7/32", "fd00::7/128"},
				Binding: v1alpha1.Binding{Routed: &v1alpha1.RoutedBinding{}},
			},
			{
				Name: "net1", Network: "default/blue", Driver: "native", Addresses: []string{"10.2.0.7/24"},
				Binding: v1alpha1.Binding{AddressOnly: &v1alpha1.AddressOnlyBinding{}},
			},
		},
		Summary: v1alpha1.AttachmentSummary{Interfaces: "eth0,net1", Addresses: "10.1.0.7,fd00::7,10.2.0.7"},
	}}
	if change != nil {
		change(&o.Spec)
	}
	return o
}

// internal returns the change of a spec whose second interface is internal.
func internal(first bool, b v1alpha1.Binding) func(s *v1alpha1.PodAttachmentSpec) {
	return func(s *v1alpha1.PodAttachmentSpec) {
		i := &s.Interfaces[1]
		i.Internal, i.Default, i.Binding = true, first, b
		s.Interfaces[0].Default = !first
	}
}

// device returns the change of a spec whose second interface is a device.
func device(b v1alpha1.HostDeviceBinding) func(s *v1alpha1.PodAttachmentSpec) {
	return func(s *v1alpha1.PodAttachmentSpec) { s.Interfaces[1].Binding = v1alpha1.Binding{HostDevice: &b} }
}

// onPort makes the first interface a port of Neutron, with change applied.
func onPort(change func(i *v1alpha1.Interface)) func(s *v1alpha1.PodAttachmentSpec) {
	return func(s *v1alpha1.PodAttachmentSpec) {
		i := &s.Interfaces[0]
		i.MAC, i.MTU, i.Binding = "fa:16:3e:00:00:01", 1442, v1alpha1.Binding{OVS: &v1alpha1.OVSBinding{PortID: "3f1c2d4e-0000-4000-8000-0123456789ab"}}
		if change != nil {
			change(i)
		}
	}
}

func namespaceNetwork() v1alpha1.NamespaceNetworkSpec {
	return v1alpha1.NamespaceNetworkSpec{Namespace: "blue", NamespaceUID: "1a2b3c4d-0000-4000-8000-000000000001", SubnetPools: []string{"v4", "v6"}, Router: "gateway"}
}

// TestNamespaceNetworkNeverChanges checks what the API server refuses of a NamespaceNetwork.
func TestNamespaceNetworkNeverChanges(t *testing.T) {
	c := cluster.New(t)
	for want, change := range map[string]func(s *v1alpha1.NamespaceNetworkSpec){
		"spec.namespace":    func(s *v1alpha1.NamespaceNetworkSpec) { s.Namespace = "" },
		"spec.namespaceUID": func(s *v1alpha1.NamespaceNetworkSpec) { s.NamespaceUID = "" },
		"spec.router":       func(s *v1alpha1.NamespaceNetworkSpec) { s.Router = "" },
		"spec.subnetPools":  func(s *v1alpha1.NamespaceNetworkSpec) { s.SubnetPools = []string{} },
	} {
		o := &v1alpha1.NamespaceNetwork{Spec: namespaceNetwork()}
		change(&o.Spec)
		refused(t, create(t, c, o), want)
	}
	o := &v1alpha1.NamespaceNetwork{Spec: namespaceNetwork()}
	refused(t, create(t, c, o), "")
	o.Spec.Router = "another"
	refused(t, c.Client.Update(t.Context(), o), "the network of a namespace does not change")
}

func pool(change func(s *v1alpha1.IPPoolSpec)) *v1alpha1.IPPool {
	o := &v1alpha1.IPPool{Spec: v1alpha1.IPPoolSpec{Domain: "one", Ranges: []string{"10.1.0.0/24"}}}
	if change != nil {
		change(&o.Spec)
	}
	return o
}

func block(change func(s *v1alpha1.IPBlockSpec)) *v1alpha1.IPBlock {
	o := &v1alpha1.IPBlock{Spec: v1alpha1.IPBlockSpec{Domain: "one", CIDR: "10.1.0.64/26", Node: "node-x"}}
	if change != nil {
		change(&o.Spec)
	}
	return o
}

// ofSlots returns so many ports of a pool, with the longest texts.
func ofSlots(n int) (out []v1alpha1.PortPoolSlot) {
	for i := range n {
		out = append(out, v1alpha1.PortPoolSlot{
			Slot: int32(i), State: v1alpha1.PortUsed,
			PortPoolPort: v1alpha1.PortPoolPort{
				ID: strings.Repeat("a", 36), MAC: "fa:16:3e:00:00:01", Addresses: slices.Repeat([]string{"2001:db8:ffff:ffff:ffff:ffff:ffff:ffff/128"}, 16), VLAN: 4094, Bridge: strings.Repeat("b", 15),
			},
			Pod: &v1alpha1.PortPoolPod{
				UID: types.UID(strings.Repeat("u", 64)), Namespace: strings.Repeat("n", 63), Name: strings.Repeat("p", 253), Interface: strings.Repeat("i", 15),
				Network: strings.Repeat("w", 317), Default: true,
			},
		})
	}
	return out
}

// ofOneSlot changes the only port of a pool.
func ofOneSlot(change func(s *v1alpha1.PortPoolSlot)) func(s *v1alpha1.PortPoolSpec) {
	return func(s *v1alpha1.PortPoolSpec) {
		s.Ports = ofSlots(1)
		change(&s.Ports[0])
	}
}

func portPool(change func(s *v1alpha1.PortPoolSpec)) *v1alpha1.PortPool {
	o := &v1alpha1.PortPool{Spec: v1alpha1.PortPoolSpec{Node: "node-x", Host: "node-x", Network: "pods", SecurityGroups: []string{"web"}}}
	if change != nil {
		change(&o.Spec)
	}
	return o
}

// TestCreate creates objects; want is a part of the API server's error, empty if it
// accepts the object.
func TestCreate(t *testing.T) {
	c := cluster.New(t)
	cases := []struct {
		name   string
		object client.Object
		want   string
	}{
		{"a PodAttachment", attachment(nil), ""},
		{"two default interfaces", attachment(func(s *v1alpha1.PodAttachmentSpec) { s.Interfaces[1].Default = true }), "at most one interface may be the default"},
		{"two interfaces of one name", attachment(func(s *v1alpha1.PodAttachmentSpec) { s.Interfaces[1].Name = "eth0" }), "spec.interfaces[1]: Duplicate value"},
		{"no interface", attachment(func(s *v1alpha1.PodAttachmentSpec) { s.Interfaces = nil }), "spec.interfaces"},
		{"no binding", attachment(func(s *v1alpha1.PodAttachmentSpec) { s.Interfaces[0].Binding = v1alpha1.Binding{} }), "spec.interfaces[0].binding"},
		{"an internal interface", attachment(internal(false, v1alpha1.Binding{Routed: &v1alpha1.RoutedBinding{Of: []string{"10.1.0.7"}}})), ""},
		{"an internal default interface", attachment(internal(true, v1alpha1.Binding{Routed: &v1alpha1.RoutedBinding{}})), "an internal interface has the binding routed and is not the default one"},
		{"an internal interface of another kind", attachment(internal(false, v1alpha1.Binding{AddressOnly: &v1alpha1.AddressOnlyBinding{}})), "an internal interface has the binding routed"},
		{"two bindings", attachment(func(s *v1alpha1.PodAttachmentSpec) {
			s.Interfaces[0].Binding.AddressOnly = &v1alpha1.AddressOnlyBinding{}
		}), "spec.interfaces[0].binding"},
		{"an interface's name", attachment(func(s *v1alpha1.PodAttachmentSpec) { s.Interfaces[0].Name = "eth/0" }), "spec.interfaces[0].name"},
		{"an address without a length", attachment(func(s *v1alpha1.PodAttachmentSpec) { s.Interfaces[0].Addresses[1] = "fd00::7" }), "each address must be in CIDR form"},
		{"a gateway", attachment(func(s *v1alpha1.PodAttachmentSpec) { s.Interfaces[0].Gateways = []string{"router"} }), "each gateway must be an IP address"},
		{"a route", attachment(func(s *v1alpha1.PodAttachmentSpec) {
			s.Interfaces[0].Routes = []v1alpha1.Route{{Destination: "10.9.0.0"}}
		}), "a route's destination must be in CIDR form"},
		{"a virtual function", attachment(device(v1alpha1.HostDeviceBinding{PCIAddress: "0000:3b:02.1", VF: &v1alpha1.VFSettings{
			VLAN: &v1alpha1.VFVLAN{ID: 100, QoS: 3, Protocol: "802.1ad"}, Trust: new(false), LinkState: v1alpha1.VFLinkEnable, Rate: &v1alpha1.VFRate{Min: 10},
		}})), ""},
		{"a virtual function of a resource", attachment(device(v1alpha1.HostDeviceBinding{Resource: &v1alpha1.DeviceResource{Name: "intel.com/a"}, VF: &v1alpha1.VFSettings{}})), ""},
		{"a virtual function by its name", attachment(device(v1alpha1.HostDeviceBinding{Name: "ens1", VF: &v1alpha1.VFSettings{}})), "vf needs pciAddress or resource"},
		{"a device in two ways", attachment(device(v1alpha1.HostDeviceBinding{Name: "ens1", MAC: "02:23:45:67:89:ab"})), "must have exactly one of name"},
		{"a priority without a VLAN", attachment(device(v1alpha1.HostDeviceBinding{PCIAddress: "0000:3b:02.1", VF: &v1alpha1.VFSettings{VLAN: &v1alpha1.VFVLAN{QoS: 3}}})), "qos and protocol need a VLAN"},
		{"rates the wrong way round", attachment(device(v1alpha1.HostDeviceBinding{PCIAddress: "0000:3b:02.1", VF: &v1alpha1.VFSettings{Rate: &v1alpha1.VFRate{Min: 2, Max: 1}}})), "min must not be above max"},
		{"a MAC", attachment(func(s *v1alpha1.PodAttachmentSpec) { s.Interfaces[0].MAC = "02:00:00:00:00:0G" }), "spec.interfaces[0].mac"},
		{"a port", attachment(onPort(nil)), ""},
		{"a port without its MAC", attachment(onPort(func(i *v1alpha1.Interface) { i.MAC = "" })), "has the MAC and the MTU of its port"},
		{"a port without its MTU", attachment(onPort(func(i *v1alpha1.Interface) { i.MTU = 0 })), "has the MAC and the MTU of its port"},
		{"a port's ID", attachment(onPort(func(i *v1alpha1.Interface) { i.Binding.OVS.PortID = "port-1" })), "binding.ovs.portID"},
		{"a port's bridge", attachment(onPort(func(i *v1alpha1.Interface) { i.Binding.OVS.Bridge = "br int" })), "binding.ovs.bridge"},

		{"a pool of ports", portPool(nil), ""},
		{"a pool of ports that is to have too many", portPool(func(s *v1alpha1.PortPoolSpec) { s.Desired = new(int32(65)) }), "spec.desired"},
		{"a pool of ports with too many", portPool(func(s *v1alpha1.PortPoolSpec) { s.Ports = ofSlots(65) }), "spec.ports"},
		{"a pool with two ports in one place", portPool(func(s *v1alpha1.PortPoolSpec) { s.Ports = append(ofSlots(1), ofSlots(1)...) }), "spec.ports[1]"},
		{"a place of a port beyond the last", portPool(ofOneSlot(func(s *v1alpha1.PortPoolSlot) { s.Slot = 64 })), "spec.ports[0].slot"},
		{"a port in an unknown state", portPool(ofOneSlot(func(s *v1alpha1.PortPoolSlot) { s.State = "Free" })), "spec.ports[0].state"},
		{"a used port without a pod", portPool(ofOneSlot(func(s *v1alpha1.PortPoolSlot) { s.Pod = nil })), "a port is Used if it has a pod"},
		{"a ready port with a pod", portPool(ofOneSlot(func(s *v1alpha1.PortPoolSlot) { s.State = v1alpha1.PortReady })), "a port is Used if it has a pod"},
		{"a port without an ID", portPool(ofOneSlot(func(s *v1alpha1.PortPoolSlot) { s.ID = "" })), "spec.ports[0].id"},
		{"a port with half a MAC", portPool(ofOneSlot(func(s *v1alpha1.PortPoolSlot) { s.MAC = "fa:16" })), "spec.ports[0].mac"},
		{"a port whose address has no prefix", portPool(ofOneSlot(func(s *v1alpha1.PortPoolSlot) { s.Addresses = []string{"10.8.0.5"} })), "each address must be in CIDR form"},
		{"a port beyond the last VLAN", portPool(ofOneSlot(func(s *v1alpha1.PortPoolSlot) { s.VLAN = 4095 })), "spec.ports[0].vlan"},
		{"a port on a bridge with a long name", portPool(ofOneSlot(func(s *v1alpha1.PortPoolSlot) { s.Bridge = strings.Repeat("b", 16) })), "spec.ports[0].bridge"},
		{"a port of a pod without a UID", portPool(ofOneSlot(func(s *v1alpha1.PortPoolSlot) { s.Pod.UID = "" })), "spec.ports[0].pod.uid"},
		{"a pool of ports of no node", portPool(func(s *v1alpha1.PortPoolSpec) { s.Node = "" }), "spec.node"},

		{"a pool", pool(nil), ""},
		{"a pool that reclaims", pool(func(s *v1alpha1.IPPoolSpec) {
			s.UnreachablePolicy, s.ReclaimAfter = v1alpha1.UnreachableReclaimAfter, &metav1.Duration{Duration: time.Hour}
		}), ""},
		{"a pool that reclaims at no time", pool(func(s *v1alpha1.IPPoolSpec) { s.UnreachablePolicy = v1alpha1.UnreachableReclaimAfter }), "reclaimAfter belongs to unreachablePolicy ReclaimAfter"},
		{"a pool that reclaims at once", pool(func(s *v1alpha1.IPPoolSpec) {
			s.UnreachablePolicy, s.ReclaimAfter = v1alpha1.UnreachableReclaimAfter, &metav1.Duration{Duration: time.Second}
		}), "reclaimAfter must be at least 1m"},
		{"a pool's cooldown", pool(func(s *v1alpha1.IPPoolSpec) { s.Cooldown = &metav1.Duration{Duration: 4 * time.Second} }), "cooldown must be between 5s and 24h"},
		{"a pool's domain", pool(func(s *v1alpha1.IPPoolSpec) { s.Domain = "One.Two" }), "spec.domain"},
		{"a pool's order", pool(func(s *v1alpha1.IPPoolSpec) { s.Order = "Random" }), "spec.order"},
		{"a pool without ranges", pool(func(s *v1alpha1.IPPoolSpec) { s.Ranges = nil }), "spec.ranges"},

		{"a block", block(nil), ""},
		{"a block of IPv6", block(func(s *v1alpha1.IPBlockSpec) { s.CIDR = "fd00::40/122" }), ""},
		{"a block of another size", block(func(s *v1alpha1.IPBlockSpec) { s.CIDR = "10.1.0.0/25" }), "must be an IPv4 /26 or an IPv6 /122"},
		{"a block with host bits", block(func(s *v1alpha1.IPBlockSpec) { s.CIDR = "10.1.0.65/26" }), "must be an IPv4 /26 or an IPv6 /122"},

		{"a claim", &v1alpha1.IPClaim{}, ""},
		{"a claim of a name", &v1alpha1.IPClaim{Spec: v1alpha1.IPClaimSpec{Addresses: []string{"ten"}}}, "each address must be an IP address"},
		{"a claim with a MAC", &v1alpha1.IPClaim{Spec: v1alpha1.IPClaimSpec{MAC: "0a:58:0a:f4:00:05"}}, ""},
		{"a claim with a multicast MAC", &v1alpha1.IPClaim{Spec: v1alpha1.IPClaimSpec{MAC: "0b:58:0a:f4:00:05"}}, "spec.mac"},
		{"a claim with half a MAC", &v1alpha1.IPClaim{Spec: v1alpha1.IPClaimSpec{MAC: "0a:58:0a"}}, "spec.mac"},
		{"a claim that ended", &v1alpha1.IPClaim{Spec: v1alpha1.IPClaimSpec{HoldTime: &metav1.Duration{Duration: -time.Second}}}, "holdTime must not be negative"},
		{"a reservation of nothing", &v1alpha1.IPReservation{}, "spec.ranges"},
		{"a NodeNetwork's block", &v1alpha1.NodeNetwork{Spec: v1alpha1.NodeNetworkSpec{Blocks: []string{"10.1.0.0"}}}, "each block must be in CIDR form"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			err := create(t, c, tc.object)
			refused(t, err, tc.want)
		})
	}
}

// TestUpdate changes existing objects; want is a part of the API server's error, empty if
// it accepts the change.
func TestUpdate(t *testing.T) {
	c := cluster.New(t)
	shared := func(s *v1alpha1.IPBlockSpec) { s.Node = "" }
	of := func(change func(s *v1alpha1.PodAttachmentSpec)) func(client.Object) {
		return func(o client.Object) { change(&o.(*v1alpha1.PodAttachment).Spec) }
	}
	ofPool := func(change func(s *v1alpha1.IPPoolSpec)) func(client.Object) {
		return func(o client.Object) { change(&o.(*v1alpha1.IPPool).Spec) }
	}
	ofPorts := func(change func(s *v1alpha1.PortPoolSpec)) func(client.Object) {
		return func(o client.Object) { change(&o.(*v1alpha1.PortPool).Spec) }
	}
	ofBlock := func(change func(s *v1alpha1.IPBlockSpec)) func(client.Object) {
		return func(o client.Object) { change(&o.(*v1alpha1.IPBlock).Spec) }
	}
	cases := []struct {
		name   string
		object client.Object
		change func(o client.Object)
		want   string
	}{
		{"an attachment's finalizer", attachment(nil), func(o client.Object) { o.SetFinalizers([]string{v1alpha1.ReleaseFinalizer}) }, ""},
		{"an attachment's node", attachment(nil), of(func(s *v1alpha1.PodAttachmentSpec) { s.NodeName = "node-y" }), "the pod and the node of a PodAttachment never change"},
		{"an attachment's Node", attachment(nil), of(func(s *v1alpha1.PodAttachmentSpec) { s.NodeUID = "b" }), "the pod and the node of a PodAttachment never change"},
		{"an attachment's address", attachment(nil), of(func(s *v1alpha1.PodAttachmentSpec) { s.Interfaces[0].Addresses[0] = "10.1.0.8/32" }), "an interface never changes"},
		{"an attachment's interface", attachment(nil), of(func(s *v1alpha1.PodAttachmentSpec) { s.Interfaces = s.Interfaces[:1] }), "an interface is removed only after spec.unplug named it"},
		{"an attachment's further interface", attachment(nil), of(func(s *v1alpha1.PodAttachmentSpec) {
			s.Interfaces = append(s.Interfaces, s.Interfaces[1])
			s.Interfaces[2].Name = "net2"
		}), "an interface is added only after spec.plug named it"},
		{"an interface that was announced", attachment(func(s *v1alpha1.PodAttachmentSpec) { s.Plug = []string{"net2"} }), of(func(s *v1alpha1.PodAttachmentSpec) {
			s.Interfaces, s.Plug = append(s.Interfaces, s.Interfaces[1]), nil
			s.Interfaces[2].Name = "net2"
		}), ""},
		{"an interface that was unplugged", attachment(func(s *v1alpha1.PodAttachmentSpec) { s.Unplug = []string{"net1"} }), of(func(s *v1alpha1.PodAttachmentSpec) {
			s.Interfaces, s.Unplug = s.Interfaces[:1], nil
		}), ""},
		{"another interface in place of one that was unplugged", attachment(func(s *v1alpha1.PodAttachmentSpec) { s.Unplug = []string{"net1"} }), of(func(s *v1alpha1.PodAttachmentSpec) {
			s.Interfaces[1].Network = "blue/other"
		}), "an interface never changes"},
		{"an attachment's claim", attachment(nil), of(func(s *v1alpha1.PodAttachmentSpec) { s.Interfaces[0].Claim = "default/web" }), "an interface never changes"},

		{"a pool's ports", portPool(nil), ofPorts(func(s *v1alpha1.PortPoolSpec) { s.Ports, s.Desired = ofSlots(64), new(int32(3)) }), ""},
		{"the node of a pool of ports", portPool(nil), ofPorts(func(s *v1alpha1.PortPoolSpec) { s.Node = "node-y" }), "a pool's node cannot be changed"},
		{"the network of a pool of ports", portPool(nil), ofPorts(func(s *v1alpha1.PortPoolSpec) { s.Network = "" }), "what a pool is for cannot be changed"},
		{"the groups of a pool of ports", portPool(nil), ofPorts(func(s *v1alpha1.PortPoolSpec) { s.SecurityGroups = []string{"db"} }), "a pool's security groups cannot be changed"},

		{"a pool's ranges", pool(nil), ofPool(func(s *v1alpha1.IPPoolSpec) { s.Ranges = append(s.Ranges, "10.2.0.0/24") }), ""},
		{"a pool's domain", pool(nil), ofPool(func(s *v1alpha1.IPPoolSpec) { s.Domain = "two" }), "a pool's domain cannot be changed"},
		{"a pool's domain, to the default", pool(nil), ofPool(func(s *v1alpha1.IPPoolSpec) { s.Domain = "" }), "a pool's domain cannot be changed"},
		{"a pool's placement", pool(nil), ofPool(func(s *v1alpha1.IPPoolSpec) { s.Placement = v1alpha1.PlacementPerNode }), "a pool's placement cannot be changed"},

		{"a block's slots", block(nil), ofBlock(func(s *v1alpha1.IPBlockSpec) { s.Slots = []string{"1 F 2 1700000000000"} }), ""},
		{"a shared block's slots", block(shared), ofBlock(func(s *v1alpha1.IPBlockSpec) { s.Slots = []string{"1 F 2 1700000000000"} }), ""},
		{"a block's CIDR", block(nil), ofBlock(func(s *v1alpha1.IPBlockSpec) { s.CIDR = "10.1.0.0/26" }), "a block's CIDR cannot be changed"},
		{"a block's domain", block(nil), ofBlock(func(s *v1alpha1.IPBlockSpec) { s.Domain = "two" }), "a block's domain cannot be changed"},
		{"a block's node", block(nil), ofBlock(func(s *v1alpha1.IPBlockSpec) { s.Node = "node-y" }), "a block's node cannot be changed"},
		{"a block that is shared from now on", block(nil), ofBlock(shared), "a block's node cannot be changed"},
		{"a shared block that is a node's from now on", block(shared), ofBlock(func(s *v1alpha1.IPBlockSpec) { s.Node = "node-x" }), "a block's node cannot be changed"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			if err := create(t, c, tc.object); err != nil {
				t.Fatal(err)
			}
			tc.change(tc.object)
			refused(t, c.Client.Update(t.Context(), tc.object), tc.want)
		})
	}
}

// create creates an object with a unique name, and deletes it at the end of the test.
func create(t *testing.T, c *cluster.Cluster, o client.Object) error {
	t.Helper()
	o.SetGenerateName(c.Namespace + "-")
	if namespaced, err := c.Client.IsObjectNamespaced(o); err != nil {
		t.Fatal(err)
	} else if namespaced {
		o.SetNamespace(c.Namespace)
	}
	err := c.Client.Create(t.Context(), o)
	if err == nil {
		t.Cleanup(func() {
			o.SetFinalizers(nil)
			if err := client.IgnoreNotFound(c.Client.Delete(context.WithoutCancel(t.Context()), o)); err != nil {
				t.Error(err)
			}
		})
	}
	return err
}

func refused(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("it is refused: %v", err)
	case want != "" && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), want)):
		t.Errorf("the answer is %v, want one that says %q", err, want)
	}
}

// TestFieldsAreNotTracked checks that the API server does not track the writers of the
// fields of objects that are written for every pod: that is most of the cost of such a
// write.
func TestFieldsAreNotTracked(t *testing.T) {
	c := cluster.New(t)
	a, b := attachment(nil), block(nil)
	for _, o := range []client.Object{a, b} {
		if err := create(t, c, o); err != nil {
			t.Fatal(err)
		}
	}
	a.Status.Sandbox = &v1alpha1.Sandbox{ID: "c0ffee", State: v1alpha1.SandboxAttached}
	meta.SetStatusCondition(&a.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Attached"})
	if err := c.Client.Status().Update(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		object client.Object
		want   []string
	}{
		{a, []string{`{"f:metadata":{"f:generateName":{}},"f:spec":{}}`, `{"f:status":{}}`}},
		{b, []string{`{"f:metadata":{"f:generateName":{}},"f:spec":{}}`}},
	} {
		var got []string
		for _, entry := range tc.object.GetManagedFields() {
			got = append(got, entry.FieldsV1.GetRawString())
		}
		slices.Sort(got)
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("fields that are tracked of %T (-want +got):\n%s", tc.object, diff)
		}
	}
}

// TestColumns checks kubectl's columns.
func TestColumns(t *testing.T) {
	c := cluster.New(t)
	a := attachment(nil)
	if err := create(t, c, a); err != nil {
		t.Fatal(err)
	}
	a.Status.Sandbox = &v1alpha1.Sandbox{ID: "c0ffee", State: v1alpha1.SandboxAttached}
	meta.SetStatusCondition(&a.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Attached"})
	p, b := pool(nil), block(nil)
	claim := &v1alpha1.IPClaim{Spec: v1alpha1.IPClaimSpec{Text: "Rack 4"}}
	reservation := &v1alpha1.IPReservation{Spec: v1alpha1.IPReservationSpec{Ranges: []string{"10.1.0.9"}, Reason: "printer"}}
	network := &v1alpha1.NodeNetwork{Spec: v1alpha1.NodeNetworkSpec{Blocks: []string{"10.1.0.0/26", "fd00::/122"}, Summary: "10.1.0.0/26,fd00::/122"}}
	own := &v1alpha1.NamespaceNetwork{Spec: namespaceNetwork()}
	for _, o := range []client.Object{p, b, claim, reservation, network, own} {
		if err := create(t, c, o); err != nil {
			t.Fatal(err)
		}
	}
	p.Status = v1alpha1.IPPoolStatus{Usable: 254, Free: 200, Allocated: 50, Cooling: 4}
	meta.SetStatusCondition(&p.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonValid})
	claim.Status = v1alpha1.IPClaimStatus{Addresses: []string{"10.1.0.7"}, Pool: "web", Pod: "web-0"}
	reservation.Status.Summary = "10.1.0.9"
	network.Status = v1alpha1.NodeNetworkStatus{Addresses: []string{"192.0.2.7/24", "fd00:7::7/64"}, MTU: 1500}
	meta.SetStatusCondition(&network.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionRouted, Status: metav1.ConditionTrue, Reason: "Routed"})
	meta.SetStatusCondition(&network.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionDirect, Status: metav1.ConditionFalse, Reason: "Dropped"})
	own.Status = v1alpha1.NamespaceNetworkStatus{Network: "3f1c2d4e-0000-4000-8000-0123456789ab", Summary: "10.64.0.0/24,fd64::/64"}
	meta.SetStatusCondition(&own.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionNetworkReady, Status: metav1.ConditionTrue, Reason: "Made"})
	meta.SetStatusCondition(&own.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionNetworkFull, Status: metav1.ConditionFalse, Reason: "AddressesLeft"})
	for _, o := range []client.Object{a, p, claim, reservation, network, own} {
		if err := c.Client.Status().Update(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	cases := []struct {
		kind   string
		object client.Object
		want   [2]string // header and row, without name and age
	}{
		{"podattachments", a, [2]string{"NODE INTERFACES ADDRESSES READY", "node-x eth0,net1 10.1.0.7,fd00::7,10.2.0.7 True"}},
		{"ippools", p, [2]string{"DOMAIN PLACEMENT USABLE FREE ALLOCATED COOLING READY", "one Shared 254 200 50 4 True"}},
		{"ipblocks", b, [2]string{"DOMAIN CIDR NODE USED", "one 10.1.0.64/26 node-x 0"}},
		{"ipclaims", claim, [2]string{"TEXT ADDRESS SECOND POOL POD HOLD", "Rack 4 10.1.0.7 web web-0 24h"}},
		{"ipreservations", reservation, [2]string{"DOMAIN RANGES READY REASON", "default 10.1.0.9 printer"}},
		{"nodenetworks", network, [2]string{"ADDRESS SECOND BLOCKS MTU ROUTED DIRECT", "192.0.2.7/24 fd00:7::7/64 10.1.0.0/26,fd00::/122 1500 True False"}},
		{"namespacenetworks", own, [2]string{"NAMESPACE NETWORK SUBNETS READY FULL", "blue 3f1c2d4e-0000-4000-8000-0123456789ab 10.64.0.0/24,fd64::/64 True False"}},
	}
	for _, tc := range cases {
		lines := strings.Split(strings.TrimSpace(c.Kubectl("get", tc.kind, tc.object.GetName(), "--namespace", c.Namespace)), "\n")
		if len(lines) != 2 {
			t.Errorf("%s: %q", tc.kind, lines)
			continue
		}
		var got [2]string
		for i, line := range lines {
			fields := strings.Fields(line)
			got[i] = strings.Join(fields[1:len(fields)-1], " ")
		}
		if diff := cmp.Diff(tc.want, got); diff != "" || !strings.HasPrefix(lines[0], "NAME") || !strings.HasSuffix(lines[0], "AGE") {
			t.Errorf("kubectl get %s (-want +got):\n%s\n%q", tc.kind, diff, lines)
		}
	}
}

// The API server, with its own CEL, accepts the attachments that are valid, and no others
// (TestValidIsAccepted checks many more against the schema).
func TestValidIsAcceptedByTheServer(t *testing.T) {
	c := cluster.New(t)
	accepted, refused := 0, 0
	for n := uint64(0); accepted < 150 || refused < 150; n++ {
		o := v1alpha1.Generated(n)
		err := o.Spec.Validate()
		if err == nil {
			accepted++
		} else {
			refused++
		}
		o.ObjectMeta = metav1.ObjectMeta{Namespace: c.Namespace, GenerateName: "web-"}
		if is := c.Client.Create(t.Context(), o, client.DryRunAll); (is == nil) != (err == nil) {
			t.Errorf("number %d: Validate says %v, the API server %v\n%+v", n, err, is, o.Spec)
		}
	}
}
