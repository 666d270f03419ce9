package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ReleaseFinalizer keeps a PodAttachment until its interfaces are released. Only the
// controller removes it: after the node has confirmed that nothing is plugged any more,
// or there is proof of it, and every driver has released its interfaces.
const ReleaseFinalizer = "fairlead.dev/release"

// LabelMigratedFrom marks objects that a migration created. Its value is the name of the
// previous system. The node has no record of the sandbox of such a PodAttachment.
const LabelMigratedFrom = "fairlead.dev/migrated-from"

// DefaultNetwork is the name of the network that gives a pod its default
// interface. Every other network is "namespace/name" of a
// NetworkAttachmentDefinition.
const DefaultNetwork = "default"

// DefaultInterface is the name of the interface on the default network in every
// PodAttachment.
const DefaultInterface = "eth0"

// UnknownNetwork is the network of an interface that was recovered from its addresses
// after its pod and PodAttachment were gone, unless it is the default interface: blocks
// do not record the network.
const UnknownNetwork = "unknown"

// Condition types of a PodAttachment.
const (
	// ConditionReady of a PodAttachment is true when every interface exists: plugged by
	// the node, or made by another CNI plugin that has requested its addresses in the
	// sandbox of status.sandbox. For an IPPool and an IPReservation it is true when the
	// spec is in effect.
	ConditionReady = "Ready"
	// ConditionAttached is true while a sandbox on the node holds all or some interfaces.
	ConditionAttached = "Attached"
	// ConditionReleased is false, with a reason, while the release of the interfaces
	// fails and is retried, or waits for the node.
	ConditionReleased = "Released"
)

// ReasonWaitingForNode is the reason of Released while neither the node has confirmed
// that it holds nothing, nor there is other proof. The message describes the state of the
// node.
const ReasonWaitingForNode = "WaitingForNode"

// ReasonInterfacesMissing is the reason of Ready while a sandbox has some but not all
// interfaces. The message names the missing ones.
const ReasonInterfacesMissing = "InterfacesMissing"

// ReasonInterfacesGone is the reason of Ready when a running pod has lost interfaces that
// were plugged: another program has deleted them, or its sandbox has ended and the runtime
// makes no other. The pod has to be deleted; the message names the interfaces.
const ReasonInterfacesGone = "InterfacesGone"

// ReasonImported is the reason of Ready and Attached for a sandbox that existed before a
// migration.
const ReasonImported = "Imported"

// PodAttachmentSpec is the complete list of one pod's interfaces. The controller writes
// it when the pod is bound, and changes the list when a running pod asks for other
// networks. An interface never changes: it is unplugged, and another may be plugged under
// its name afterwards. For server-side apply spec and status are one value each: the API server would
// need a third more for each write and list to track the writers of their fields, and
// each has only one writer.
//
// +structType=atomic
// +kubebuilder:validation:XValidation:rule="self.podName == oldSelf.podName && self.podUID == oldSelf.podUID && self.nodeName == oldSelf.nodeName",message="the pod and the node of a PodAttachment never change"
// +kubebuilder:validation:XValidation:rule="has(self.apiUID) == has(oldSelf.apiUID) && (!has(self.apiUID) || self.apiUID == oldSelf.apiUID) && has(self.nodeUID) == has(oldSelf.nodeUID) && (!has(self.nodeUID) || self.nodeUID == oldSelf.nodeUID) && has(self.podNamespace) == has(oldSelf.podNamespace) && (!has(self.podNamespace) || self.podNamespace == oldSelf.podNamespace)",message="the pod and the node of a PodAttachment never change"
// +kubebuilder:validation:XValidation:rule="oldSelf.interfaces.all(o, self.interfaces.exists(i, i.name == o.name) || (has(oldSelf.unplug) && o.name in oldSelf.unplug))",message="an interface is removed only after spec.unplug named it"
// +kubebuilder:validation:XValidation:rule="self.interfaces.all(i, oldSelf.interfaces.exists(o, o.name == i.name) || (has(oldSelf.plug) && i.name in oldSelf.plug))",message="an interface is added only after spec.plug named it"
type PodAttachmentSpec struct {
	// PodName is the name of the pod, in this namespace unless PodNamespace names another.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	PodName string `json:"podName"`

	// PodUID is the UID in the runtime's CNI_ARGS for this pod. For a static pod it is
	// the value of its mirror's annotation kubernetes.io/config.mirror. Users can write
	// that annotation, so this UID does not identify the owner of the interfaces.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9-]{1,64}$`
	PodUID types.UID `json:"podUID"`

	// APIUID is the pod's own UID in the API, which no user can write; absent if it is
	// PodUID. Together with the pod's namespace and name it identifies the holder of the
	// addresses.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9-]{1,64}$`
	APIUID types.UID `json:"apiUID,omitempty"`
	// PodNamespace is the pod's namespace if it is gone, so that this object is in
	// another namespace; absent if it is this object's namespace.
	// +optional
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`
	PodNamespace string `json:"podNamespace,omitempty"`
	// NodeName is the node whose daemon plugs the interfaces.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName"`
	// NodeUID is the UID of the Node when this object was written; absent if not known.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9-]{1,64}$`
	NodeUID types.UID `json:"nodeUID,omitempty"`

	// Interfaces of the pod in the order in which they are plugged, the
	// default one first.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="self.filter(i, has(i.default) && i.default).size() <= 1",message="at most one interface may be the default"
	Interfaces []Interface `json:"interfaces"`

	// Plug are the names of the interfaces that the controller is obtaining for the running
	// pod. Each is added to interfaces when all of it is there.
	// +listType=set
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=15
	Plug []string `json:"plug,omitempty"`
	// Unplug are the names of the interfaces that the node has to unplug. Each is removed
	// from interfaces, and its addresses are released, when the node has confirmed it in
	// status.sandbox.
	// +listType=set
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=15
	Unplug []string `json:"unplug,omitempty"`

	// Summary repeats interface names and addresses in one line each, for
	// printing: a printer column shows only the first element of a list.
	Summary AttachmentSummary `json:"summary"`
}

// AttachmentSummary is the text of kubectl's columns for the interfaces.
type AttachmentSummary struct {
	// Interfaces are the names, comma separated.
	// +kubebuilder:validation:MaxLength=1024
	Interfaces string `json:"interfaces"`
	// Addresses are the addresses without prefix lengths, comma separated.
	// +kubebuilder:validation:MaxLength=4096
	Addresses string `json:"addresses"`
}

// Interface is one network interface of a pod.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="an interface never changes: unplug it, and plug another"
// +kubebuilder:validation:XValidation:rule="!has(self.binding.ovs) || has(self.mac) && size(self.mac) > 0 && has(self.mtu) && self.mtu > 0",message="an interface with binding ovs has the MAC and the MTU of its port"
// +kubebuilder:validation:XValidation:rule="!has(self.internal) || !self.internal || has(self.binding.routed) && !(has(self.default) && self.default)",message="an internal interface has the binding routed and is not the default one"
type Interface struct {
	// Name of the interface inside the pod: 1 to 15 of a-z, A-Z, 0-9, '_', '.' and '-',
	// beginning with a letter or digit.
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,14}$`
	// +kubebuilder:validation:MaxLength=15
	Name string `json:"name"`

	// Network is "default", or namespace/name of a NetworkAttachmentDefinition. A further
	// interface on "default" is on the additional pool that Pool names.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	Network string `json:"network"`

	// Driver that obtained the interface and releases it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Driver string `json:"driver"`

	// Default is true for the interface whose addresses are the pod IPs.
	// +optional
	Default bool `json:"default,omitempty"`

	// Addresses in CIDR form, at most 16.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=49
	// +kubebuilder:validation:items:XValidation:rule="isCIDR(self)",message="each address must be in CIDR form, as 10.0.0.5/24 or fd00::5/64"
	Addresses []string `json:"addresses,omitempty"`

	// Domain is the address domain of the addresses; empty for a driver whose addresses
	// come from elsewhere.
	// +optional
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?$`
	Domain string `json:"domain,omitempty"`

	// Pool is the IPPool of the addresses; empty for a driver whose addresses come from
	// elsewhere.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Pool string `json:"pool,omitempty"`

	// Claim is the "<namespace>/<name>" of the IPClaim that keeps the addresses after the
	// pod is gone. If empty, they become free for all pods.
	// +optional
	// +kubebuilder:validation:MaxLength=317
	Claim string `json:"claim,omitempty"`

	// Gateways of the default route, at most one per family. A gateway outside the
	// prefixes of the addresses is reached on-link.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=45
	// +kubebuilder:validation:items:XValidation:rule="isIP(self)",message="each gateway must be an IP address"
	Gateways []string `json:"gateways,omitempty"`

	// Routes in addition to the default route.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Routes []Route `json:"routes,omitempty"`

	// MAC of the interface inside the pod; if empty, the kernel chooses one.
	// +optional
	// +kubebuilder:validation:Pattern=`^([0-9a-f]{2}(:[0-9a-f]{2}){5})?$`
	MAC string `json:"mac,omitempty"`

	// MTU in bytes; 0 means the MTU that the node's uplink allows on the default network,
	// otherwise that of the bridge, parent or device.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	MTU int32 `json:"mtu,omitempty"`

	// DNS for the CNI result; the pod's own DNS policy takes precedence.
	// +optional
	DNS *DNS `json:"dns,omitempty"`

	// WaitForActive makes ADD wait until the interface is active in status: the driver's
	// network then carries its traffic.
	// +optional
	WaitForActive bool `json:"waitForActive,omitempty"`

	// Internal interfaces serve the node: they are not in the result of ADD, in the pod's
	// network-status or in the summary.
	// +optional
	Internal bool `json:"internal,omitempty"`

	// Binding defines how the node plugs the interface.
	Binding Binding `json:"binding"`

	// Chain are the CNI plugins that the node executes after it has plugged the
	// interface.
	// +optional
	Chain *PluginList `json:"chain,omitempty"`
}

// Route is one route inside the pod.
type Route struct {
	// Destination in CIDR form.
	// +kubebuilder:validation:MaxLength=49
	// +kubebuilder:validation:XValidation:rule="isCIDR(self)",message="a route's destination must be in CIDR form, as 10.0.0.0/8"
	Destination string `json:"destination"`
	// Gateway of the route; if empty, the destination is on the link.
	// +optional
	// +kubebuilder:validation:MaxLength=45
	Gateway string `json:"gateway,omitempty"`
}

// DNS has the DNS settings of a network.
type DNS struct {
	// Nameservers are addresses.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=253
	Nameservers []string `json:"nameservers,omitempty"`
	// Domain is the local domain.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Domain string `json:"domain,omitempty"`
	// Search is the list of domains to search.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=253
	Search []string `json:"search,omitempty"`
	// Options are passed to the resolver.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=253
	Options []string `json:"options,omitempty"`
}

// Binding defines how an interface is plugged. It is a union: exactly one member is set.
// A new kind is one member here, one file or package in internal/netdev/plug, and one line in
// internal/netdev/kinds.
//
// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:MaxProperties=1
type Binding struct {
	// Bridge plugs a veth whose host end is a port of a Linux bridge.
	// +optional
	Bridge *BridgeBinding `json:"bridge,omitempty"`
	// Routed plugs a veth whose host end is the only neighbour of the pod. The node routes the
	// pod's addresses to it.
	// +optional
	Routed *RoutedBinding `json:"routed,omitempty"`
	// OVS plugs a veth whose host end is a port of an Open vSwitch bridge.
	// +optional
	OVS *OVSBinding `json:"ovs,omitempty"`
	// Macvlan plugs a link with its own MAC on a link of the node.
	// +optional
	Macvlan *MacvlanBinding `json:"macvlan,omitempty"`
	// IPVLAN plugs a link that shares the MAC of a link of the node.
	// +optional
	IPVLAN *IPVLANBinding `json:"ipvlan,omitempty"`
	// VLAN plugs a link that carries one VLAN of a link of the node.
	// +optional
	VLAN *VLANBinding `json:"vlan,omitempty"`
	// HostDevice moves a link of the node into the pod.
	// +optional
	HostDevice *HostDeviceBinding `json:"hostDevice,omitempty"`
	// Delegate executes CNI plugins on the node, which make the interface.
	// +optional
	Delegate *PluginList `json:"delegate,omitempty"`
	// AddressOnly plugs nothing: another CNI plugin makes the interface and requests its
	// addresses through fairlead-ipam. Until then the PodAttachment is not Ready.
	// +optional
	AddressOnly *AddressOnlyBinding `json:"addressOnly,omitempty"`
}

// AddressOnlyBinding is an interface of another CNI plugin.
type AddressOnlyBinding struct{}

// Gateways of routed interfaces, the same on every node, which answers for both. They are
// link-local (RFC 3927, RFC 4291 section 2.5.6): neither takes an address from a pool.
const (
	RoutedGatewayV4 = "169.254.1.1"
	RoutedGatewayV6 = "fe80::1"
)

// RoutedBinding is a veth between the pod and the node alone.
type RoutedBinding struct {
	// Of are addresses of other interfaces of the pod that the node routes to this one. The
	// interface then needs no addresses of its own: it is the leg of a pod whose default
	// interface does not lead to the node.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=45
	// +kubebuilder:validation:items:XValidation:rule="isIP(self)",message="each must be an IP address"
	Of []string `json:"of,omitempty"`
}

// BridgeBinding is a veth on a Linux bridge of the node.
type BridgeBinding struct {
	// Name of the bridge: 1 to 15 characters. It must exist, unless Create is true.
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,14}$`
	Name string `json:"name"`
	// Create has the node create the bridge if it does not exist. The bridge stays when
	// its last port is gone.
	// +optional
	Create bool `json:"create,omitempty"`
	// Addresses are added to the bridge itself, in CIDR form.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=4
	// +kubebuilder:validation:items:MaxLength=49
	// +kubebuilder:validation:items:XValidation:rule="isCIDR(self)",message="each address must be in CIDR form, as 10.0.0.1/24"
	Addresses []string `json:"addresses,omitempty"`
	// VLAN is the VLAN of the untagged frames of the pod, 1 to 4094; 0 for none.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4094
	VLAN int32 `json:"vlan,omitempty"`
	// Trunk are the VLANs that the pod sends and receives with tags.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Trunk []VLANRange `json:"trunk,omitempty"`
	// Promiscuous sets the bridge to promiscuous mode.
	// +optional
	Promiscuous bool `json:"promiscuous,omitempty"`
	// NoHairpin keeps the bridge from sending frames back out of the port through which
	// they came in.
	// +optional
	NoHairpin bool `json:"noHairpin,omitempty"`
	// Isolated keeps the pod from exchanging frames with other isolated ports.
	// +optional
	Isolated bool `json:"isolated,omitempty"`
	// SourceCheck limits the sources of what the pod sends: to its MAC and addresses
	// (Full, the default), to its MAC (MAC), or not at all (None).
	// +optional
	// +kubebuilder:validation:Enum=Full;MAC;None
	SourceCheck SourceCheck `json:"sourceCheck,omitempty"`
}

// SourceCheck is the extent of the check of the packets that a pod sends.
type SourceCheck string

// Values of SourceCheck. The empty value is SourceFull.
const (
	SourceFull SourceCheck = "Full"
	SourceMAC  SourceCheck = "MAC"
	SourceNone SourceCheck = "None"
)

// VLANRange is a range of VLANs, both ends included.
//
// +kubebuilder:validation:XValidation:rule="self.min <= self.max",message="min must not be above max"
type VLANRange struct {
	// Min is the first VLAN, 1 to 4094.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4094
	Min int32 `json:"min"`
	// Max is the last VLAN, 1 to 4094.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4094
	Max int32 `json:"max"`
}

// OVSBinding is a veth on an Open vSwitch bridge of the node, as a port of OpenStack
// Neutron. The interface has the MAC and the MTU of the port. Neutron checks the sources of
// its packets (port security).
type OVSBinding struct {
	// Bridge is the name of the bridge: 1 to 15 characters; empty is br-int.
	// +optional
	// +kubebuilder:validation:Pattern=`^([a-zA-Z0-9][a-zA-Z0-9_.-]{0,14})?$`
	Bridge string `json:"bridge,omitempty"`
	// PortID is the ID of the port in Neutron: the port of the bridge has it as iface-id.
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`
	PortID string `json:"portID"`
}

// MacvlanBinding is a macvlan on a link of the node, which is named by its name or its
// MAC.
//
// +kubebuilder:validation:XValidation:rule="has(self.parent) != has(self.parentMAC)",message="must have exactly one of parent and parentMAC"
type MacvlanBinding struct {
	// Parent is the name of the link on the node: 1 to 15 characters.
	// +optional
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,14}$`
	Parent string `json:"parent,omitempty"`
	// ParentMAC is the MAC of the link, in lower case.
	// +optional
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{2}(:[0-9a-f]{2}){5}$`
	ParentMAC string `json:"parentMAC,omitempty"`
	// PortID is the ID of the interface's port in OpenStack Neutron; empty without one.
	// +optional
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`
	PortID string `json:"portID,omitempty"`
	// Mode is bridge, private, vepa or passthru (ip-link(8)).
	// +kubebuilder:validation:Enum=bridge;private;vepa;passthru
	Mode string `json:"mode"`
}

// IPVLANBinding is an ipvlan on a link of the node.
type IPVLANBinding struct {
	// Parent is the name of the link on the node: 1 to 15 characters.
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,14}$`
	Parent string `json:"parent"`
	// Mode is l2, l3 or l3s (ip-link(8)).
	// +kubebuilder:validation:Enum=l2;l3;l3s
	Mode string `json:"mode"`
}

// VLANBinding is a VLAN of a link of the node, which is named by its name or its
// MAC.
//
// +kubebuilder:validation:XValidation:rule="has(self.parent) != has(self.parentMAC)",message="must have exactly one of parent and parentMAC"
type VLANBinding struct {
	// Parent is the name of the link on the node: 1 to 15 characters.
	// +optional
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,14}$`
	Parent string `json:"parent,omitempty"`
	// ParentMAC is the MAC of the link, in lower case.
	// +optional
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{2}(:[0-9a-f]{2}){5}$`
	ParentMAC string `json:"parentMAC,omitempty"`
	// PortID is the ID of the interface's port in OpenStack Neutron; empty without one.
	// +optional
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`
	PortID string `json:"portID,omitempty"`
	// ID of the VLAN, 1 to 4094.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4094
	ID int32 `json:"id"`
}

// HostDeviceBinding names a link of the node in one way: exactly one of name, mac,
// kernelPath, pciAddress and resource is set.
//
// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:MaxProperties=2
// +kubebuilder:validation:XValidation:rule="[has(self.name), has(self.mac), has(self.kernelPath), has(self.pciAddress), has(self.resource)].filter(set, set).size() == 1",message="must have exactly one of name, mac, kernelPath, pciAddress and resource"
// +kubebuilder:validation:XValidation:rule="!has(self.vf) || has(self.pciAddress) || has(self.resource)",message="vf needs pciAddress or resource"
type HostDeviceBinding struct {
	// Name of the link.
	// +optional
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,14}$`
	Name string `json:"name,omitempty"`
	// MAC of the link, in lower case.
	// +optional
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{2}(:[0-9a-f]{2}){5}$`
	MAC string `json:"mac,omitempty"`
	// KernelPath is the path of the device below /sys/devices.
	// +optional
	// +kubebuilder:validation:Pattern=`^/sys/devices/[a-zA-Z0-9_.:/-]{1,240}$`
	KernelPath string `json:"kernelPath,omitempty"`
	// PCIAddress of the device, as 0000:3b:00.1.
	// +optional
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`
	PCIAddress string `json:"pciAddress,omitempty"`
	// Resource is the resource of a device plugin: the link is a device of it that the
	// kubelet has allocated to the pod.
	// +optional
	Resource *DeviceResource `json:"resource,omitempty"`
	// VF marks the device as a virtual function of SR-IOV and has its settings. The MAC of
	// the interface is one of them.
	// +optional
	VF *VFSettings `json:"vf,omitempty"`
}

// VFSettings are settings of a virtual function, which the node makes at its physical
// function. The virtual function keeps its own setting where one is absent.
type VFSettings struct {
	// VLAN of the frames.
	// +optional
	VLAN *VFVLAN `json:"vlan,omitempty"`
	// SpoofCheck drops frames from other MACs than that of the function.
	// +optional
	SpoofCheck *bool `json:"spoofCheck,omitempty"`
	// Trust lets the pod change its MAC and receive the frames of others.
	// +optional
	Trust *bool `json:"trust,omitempty"`
	// LinkState is that of the physical function (Auto), always up (Enable) or always down
	// (Disable).
	// +optional
	// +kubebuilder:validation:Enum=Auto;Enable;Disable
	LinkState VFLinkState `json:"linkState,omitempty"`
	// Rate limits the bandwidth of what the pod sends.
	// +optional
	Rate *VFRate `json:"rate,omitempty"`
}

// VFLinkState is the link of a virtual function.
type VFLinkState string

// Values of VFLinkState.
const (
	VFLinkAuto    VFLinkState = "Auto"
	VFLinkEnable  VFLinkState = "Enable"
	VFLinkDisable VFLinkState = "Disable"
)

// VFVLAN is the VLAN of a virtual function.
//
// +kubebuilder:validation:XValidation:rule="self.id > 0 || !has(self.qos) && !has(self.protocol)",message="qos and protocol need a VLAN"
type VFVLAN struct {
	// ID of the VLAN, 1 to 4094; 0 for none.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4094
	ID int32 `json:"id"`
	// QoS is the priority of the frames, 0 to 7.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=7
	QoS int32 `json:"qos,omitempty"`
	// Protocol of the tag, 802.1Q or 802.1ad; 802.1Q if it is empty.
	// +optional
	// +kubebuilder:validation:Enum="802.1Q";"802.1ad"
	Protocol string `json:"protocol,omitempty"`
}

// VFRate is the bandwidth of a virtual function in Mbit/s; 0 for no limit.
//
// +kubebuilder:validation:XValidation:rule="!has(self.max) || !has(self.min) || self.min <= self.max",message="min must not be above max"
type VFRate struct {
	// Min is guaranteed.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Min int32 `json:"min,omitempty"`
	// Max is the limit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Max int32 `json:"max,omitempty"`
}

// DeviceResource selects a device that the kubelet has allocated to the pod.
type DeviceResource struct {
	// Name of the resource, as intel.com/sriov_a.
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/[a-zA-Z0-9]([a-zA-Z0-9_.-]{0,61}[a-zA-Z0-9])?$`
	Name string `json:"name"`
	// Device is the ID of the device; empty for the first, in the order of the IDs, that no
	// other interface of the pod has.
	// +optional
	// +kubebuilder:validation:Pattern=`^([a-zA-Z0-9][a-zA-Z0-9_.:-]{0,127})?$`
	Device string `json:"device,omitempty"`
}

// PluginList is a network configuration of the CNI. The node executes its plugins in
// order.
type PluginList struct {
	// Name of the network configuration.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// CNIVersion of the network configuration, 0.3.1 to 1.1.0.
	// +kubebuilder:validation:Enum="0.3.1";"0.4.0";"1.0.0";"1.1.0"
	CNIVersion string `json:"cniVersion"`
	// Plugins are the configurations of the plugins, each a JSON object with a type.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=16384
	Plugins []string `json:"plugins"`
	// RuntimeConfig is a JSON object with the arguments of capabilities. A plugin gets
	// those that its configuration declares.
	// +optional
	// +kubebuilder:validation:MaxLength=16384
	RuntimeConfig string `json:"runtimeConfig,omitempty"`
	// Args is a JSON object: the value of args.cni in the configuration of each plugin.
	// +optional
	// +kubebuilder:validation:MaxLength=16384
	Args string `json:"args,omitempty"`
}

// SandboxState is the last operation of the node on a PodAttachment.
// +kubebuilder:validation:Enum=Attached;Detached
type SandboxState string

const (
	// SandboxAttached means that a live sandbox holds the interfaces.
	SandboxAttached SandboxState = "Attached"
	// SandboxDetached means that nothing on the node holds the interfaces: they were
	// unplugged and are gone from the kernel, or were never plugged.
	SandboxDetached SandboxState = "Detached"
)

// Sandbox is the node's report about the pod's sandbox. It is the evidence on which the
// controller releases addresses.
type Sandbox struct {
	// ID is the runtime's container ID; empty if the pod was never plugged on the node.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ID string `json:"id,omitempty"`
	// BootID of the node's kernel at the time (/proc/sys/kernel/random/boot_id).
	// +optional
	// +kubebuilder:validation:MaxLength=64
	BootID string `json:"bootID,omitempty"`
	// State is Attached or Detached.
	State SandboxState `json:"state"`
	// AttachedAt is the time at which ADD succeeded.
	// +optional
	AttachedAt *metav1.MicroTime `json:"attachedAt,omitempty"`
	// DetachedAt is the time at which the last interface was gone from the kernel.
	// +optional
	DetachedAt *metav1.MicroTime `json:"detachedAt,omitempty"`
	// Generation is the metadata.generation whose spec the node has applied to the running
	// sandbox; 0 if it was never changed. An interface of spec.unplug that is not among
	// Links is unplugged if Generation is not older than the change.
	// +optional
	Generation int64 `json:"generation,omitempty"`
	// Links are the interfaces as the node has plugged them, if the pod has or had further
	// interfaces beside the default one.
	// +listType=map
	// +listMapKey=name
	// +optional
	// +kubebuilder:validation:MaxItems=32
	Links []SandboxLink `json:"links,omitempty"`
}

// SandboxLink is one interface as the node has plugged it.
type SandboxLink struct {
	// Name of the interface inside the pod.
	// +kubebuilder:validation:MaxLength=15
	Name string `json:"name"`
	// MAC of the interface.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	MAC string `json:"mac,omitempty"`
	// MTU in bytes; 0 if it is not known.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	MTU int32 `json:"mtu,omitempty"`
	// PCIAddress of the device, if the interface is one.
	// +optional
	// +kubebuilder:validation:MaxLength=16
	PCIAddress string `json:"pciAddress,omitempty"`
	// Addresses in CIDR form that a plugin on the node has chosen; empty if they are those
	// of spec.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=49
	Addresses []string `json:"addresses,omitempty"`
}

// InterfaceStatus is the state of one interface in the driver's network.
type InterfaceStatus struct {
	// Name of the interface in spec.
	Name string `json:"name"`
	// Active is true when the network carries the interface's traffic.
	Active bool `json:"active"`
	// Message is the driver's reason why the interface is not active yet.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// PodAttachmentStatus is the state of a PodAttachment.
//
// +structType=atomic
type PodAttachmentStatus struct {
	// Interfaces by name. The controller writes an entry for each interface that must
	// become active.
	// +listType=map
	// +listMapKey=name
	// +optional
	// +kubebuilder:validation:MaxItems=32
	Interfaces []InterfaceStatus `json:"interfaces,omitempty"`

	// Sandbox is written only by the node.
	// +optional
	Sandbox *Sandbox `json:"sandbox,omitempty"`

	// Conditions are Ready (every interface exists), Attached (a sandbox holds
	// interfaces), and Released (false while the release fails or waits for the node).
	// +listType=map
	// +listMapKey=type
	// +optional
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// PodAttachment is the network of one pod. It is named <pod>-<first 8 of the pod's UID>
// and owned by the pod. The controller writes it, and the node plugs its interfaces.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=pa,categories=fairlead
// +kubebuilder:selectablefield:JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="Interfaces",type=string,JSONPath=`.spec.summary.interfaces`
// +kubebuilder:printcolumn:name="Addresses",type=string,JSONPath=`.spec.summary.addresses`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.sandbox.state`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type PodAttachment struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   PodAttachmentSpec   `json:"spec"`
	Status PodAttachmentStatus `json:"status,omitempty"`
}

// PodAttachmentList is a list of PodAttachments.
//
// +kubebuilder:object:root=true
type PodAttachmentList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []PodAttachment `json:"items"`
}
