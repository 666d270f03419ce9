package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ReleaseFinalizer keeps a PodAttachment until its interfaces are given back.
// It is the controller's alone: it is dropped when the node has acknowledged
// that nothing is plugged any more, and every driver has released.
const ReleaseFinalizer = "fairlead.dev/release"

// LabelMigratedFrom marks what a migration made, with the name of the system
// that it took over from. The sandbox of such a PodAttachment is one that the
// node has no record of.
const LabelMigratedFrom = "fairlead.dev/migrated-from"

// DefaultNetwork is the name of the network that gives a pod its default
// interface. Every other network is "namespace/name" of a
// NetworkAttachmentDefinition.
const DefaultNetwork = "default"

// DefaultInterface is what the interface on the default network is called in
// every PodAttachment.
const DefaultInterface = "eth0"

// UnknownNetwork stands for the network of an interface that was found again by
// its addresses when its pod and its PodAttachment were gone, and that is not the
// default one: blocks do not say which network it was.
const UnknownNetwork = "unknown"

// Condition types of a PodAttachment.
const (
	// ConditionReady of a PodAttachment is true when every interface is there: plugged
	// by the node, or made by another CNI plugin that has asked for its addresses in
	// the sandbox that status.sandbox names. Of an IPPool and an IPReservation it is
	// true when what they say is in effect.
	ConditionReady = "Ready"
	// ConditionAttached is true while a sandbox on the node holds interfaces, be it
	// all or some.
	ConditionAttached = "Attached"
	// ConditionReleased is false, with a reason, while giving the interfaces
	// back fails and is being retried, or waits for the node.
	ConditionReleased = "Released"
)

// ReasonWaitingForNode is the reason of Released while neither the node has
// said that it holds nothing, nor anything else proves it. The message says what
// is known of the node.
const ReasonWaitingForNode = "WaitingForNode"

// ReasonInterfacesMissing is the reason of Ready while a sandbox has some of the
// interfaces and not all. The message names those that it lacks.
const ReasonInterfacesMissing = "InterfacesMissing"

// ReasonImported is the reason of Ready and Attached of a sandbox that a migration
// found.
const ReasonImported = "Imported"

// PodAttachmentSpec is what one pod gets: every interface, complete. It is
// written once, by the controller. For server-side apply it is one value, as is the
// status: to keep who wrote which of their fields would cost the API server a
// third more for each write and list, and there is one writer of each.
//
// +structType=atomic
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a PodAttachment is written once: delete it and let the controller write another"
type PodAttachmentSpec struct {
	// PodName is the name of the pod, in this object's namespace unless
	// PodNamespace names another.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	PodName string `json:"podName"`

	// PodUID is the UID under which CNI will ask for this pod: for a static pod
	// the one in its mirror's kubernetes.io/config.mirror annotation. Users can
	// write that annotation, so this UID says nothing about whose the interfaces
	// are.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9-]{1,64}$`
	PodUID types.UID `json:"podUID"`

	// APIUID is the pod's own UID in the API, which no user can write; absent
	// where it is PodUID. It identifies, together with the pod's namespace and
	// name, who has the addresses.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9-]{1,64}$`
	APIUID types.UID `json:"apiUID,omitempty"`
	// PodNamespace is the pod's namespace where this object could not be written
	// there, because the namespace is gone; absent where it is this object's.
	// +optional
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`
	PodNamespace string `json:"podNamespace,omitempty"`
	// NodeName is the node whose daemon plugs the interfaces.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName"`
	// NodeUID is the UID of the Node of that name when this was written, by which a
	// later one of the same name is another; absent where none was known.
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

	// Summary repeats interface names and addresses in one line each, for
	// printing: a printer column shows only the first element of a list.
	Summary AttachmentSummary `json:"summary"`
}

// AttachmentSummary is what kubectl prints of the interfaces.
type AttachmentSummary struct {
	// Interfaces are the names, comma separated.
	// +kubebuilder:validation:MaxLength=1024
	Interfaces string `json:"interfaces"`
	// Addresses are the addresses without prefix lengths, comma separated.
	// +kubebuilder:validation:MaxLength=4096
	Addresses string `json:"addresses"`
}

// Interface is one network interface of a pod.
type Interface struct {
	// Name of the interface inside the pod: 1 to 15 characters, without
	// '/', ':' and white space (CNI specification 1.1.0).
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,14}$`
	Name string `json:"name"`

	// Network is "default", or namespace/name of a NetworkAttachmentDefinition.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	Network string `json:"network"`

	// Driver that obtained the interface and takes it back.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Driver string `json:"driver"`

	// Default is true for the interface whose addresses are the pod's.
	// +optional
	Default bool `json:"default,omitempty"`

	// Addresses in CIDR form, at most a few per family.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=49
	// +kubebuilder:validation:XValidation:rule="self.all(a, isCIDR(a))",message="each address must be in CIDR form, as 10.0.0.5/24 or fd00::5/64"
	Addresses []string `json:"addresses,omitempty"`

	// Domain is the address domain that the addresses were taken from; empty
	// for a driver whose addresses come from elsewhere.
	// +optional
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?$`
	Domain string `json:"domain,omitempty"`

	// Pool is the IPPool that the addresses were taken from; empty for a driver
	// whose addresses come from elsewhere.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Pool string `json:"pool,omitempty"`

	// Claim is the key under which the addresses are kept when the pod goes:
	// "<namespace>/<name>" of an IPClaim. Empty gives them back for anybody.
	// +optional
	// +kubebuilder:validation:MaxLength=317
	Claim string `json:"claim,omitempty"`

	// Gateways of the default route, at most one per family. A gateway need
	// not be on the link of an address: it is then reached on-link.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self.all(a, isIP(a))",message="each gateway must be an IP address"
	Gateways []string `json:"gateways,omitempty"`

	// Routes beside the default route.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Routes []Route `json:"routes,omitempty"`

	// MAC of the interface inside the pod; empty lets the kernel choose.
	// +optional
	// +kubebuilder:validation:Pattern=`^([0-9a-f]{2}(:[0-9a-f]{2}){5})?$`
	MAC string `json:"mac,omitempty"`

	// MTU in bytes; 0 takes the one that the node's uplink allows.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	MTU int32 `json:"mtu,omitempty"`

	// DNS for the CNI result; the pod's own DNS policy comes before it.
	// +optional
	DNS *DNS `json:"dns,omitempty"`

	// WaitForActive makes ADD wait until status says that the driver's
	// network carries the interface's traffic.
	// +optional
	WaitForActive bool `json:"waitForActive,omitempty"`

	// Binding says how the node plugs the interface.
	Binding Binding `json:"binding"`
}

// Route is one route inside the pod.
type Route struct {
	// Destination in CIDR form.
	// +kubebuilder:validation:MaxLength=49
	// +kubebuilder:validation:XValidation:rule="isCIDR(self)",message="a route's destination must be in CIDR form, as 10.0.0.0/8"
	Destination string `json:"destination"`
	// Gateway of the route; empty means that the destination is on the link.
	// +optional
	// +kubebuilder:validation:MaxLength=45
	Gateway string `json:"gateway,omitempty"`
}

// DNS settings of a network.
type DNS struct {
	// Nameservers are addresses.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=8
	Nameservers []string `json:"nameservers,omitempty"`
	// Domain is the local domain.
	// +optional
	Domain string `json:"domain,omitempty"`
	// Search is the list of domains to search.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=32
	Search []string `json:"search,omitempty"`
	// Options are passed to the resolver.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=32
	Options []string `json:"options,omitempty"`
}

// Binding is a union: exactly one member is set, and says how an interface is
// plugged. A new kind is one member here and one file in internal/netdev/plug.
//
// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:MaxProperties=1
type Binding struct {
	// Bridge plugs a veth whose host end is a port of a Linux bridge.
	// +optional
	Bridge *BridgeBinding `json:"bridge,omitempty"`
	// AddressOnly plugs nothing: another CNI plugin makes the interface and
	// asks for its addresses through fairlead-ipam. Until it has, the
	// PodAttachment is not Ready.
	// +optional
	AddressOnly *AddressOnlyBinding `json:"addressOnly,omitempty"`
}

// AddressOnlyBinding is an interface of another CNI plugin.
type AddressOnlyBinding struct{}

// BridgeBinding is a veth on a Linux bridge of the node.
type BridgeBinding struct {
	// Name of the bridge: 1 to 15 characters. The node makes the bridge of
	// the default network itself; any other must exist.
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,14}$`
	Name string `json:"name"`
}

// SandboxState is what the node last did for a PodAttachment.
// +kubebuilder:validation:Enum=Attached;Detached
type SandboxState string

const (
	// SandboxAttached says that a live sandbox holds the interfaces.
	SandboxAttached SandboxState = "Attached"
	// SandboxDetached says that nothing on the node holds them: they were
	// unplugged and are gone from the kernel, or were never plugged.
	SandboxDetached SandboxState = "Detached"
)

// Sandbox is the node's account of the pod's sandbox. It is the evidence on
// which the controller releases addresses.
type Sandbox struct {
	// ID is the container ID that the runtime gave; empty when the pod was
	// never plugged here.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ID string `json:"id,omitempty"`
	// BootID of the node's kernel at the time (/proc/sys/kernel/random/boot_id).
	// +optional
	// +kubebuilder:validation:MaxLength=64
	BootID string `json:"bootID,omitempty"`
	// State is Attached or Detached.
	State SandboxState `json:"state"`
	// AttachedAt is when ADD succeeded.
	// +optional
	AttachedAt *metav1.MicroTime `json:"attachedAt,omitempty"`
	// DetachedAt is when the last interface was gone from the kernel.
	// +optional
	DetachedAt *metav1.MicroTime `json:"detachedAt,omitempty"`
}

// InterfaceStatus is what the driver's network says of one interface.
type InterfaceStatus struct {
	// Name of the interface in spec.
	Name string `json:"name"`
	// Active is true when the network carries its traffic.
	Active bool `json:"active"`
	// Message says why it is not active yet, in the driver's words.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// PodAttachmentStatus is what happened to a PodAttachment.
//
// +structType=atomic
type PodAttachmentStatus struct {
	// Interfaces, by name; written by the controller for those that wait
	// to become active.
	// +listType=map
	// +listMapKey=name
	// +optional
	// +kubebuilder:validation:MaxItems=32
	Interfaces []InterfaceStatus `json:"interfaces,omitempty"`

	// Sandbox is written by the node alone.
	// +optional
	Sandbox *Sandbox `json:"sandbox,omitempty"`

	// Conditions are Ready, every interface is there; Attached, a sandbox holds
	// some; and Released, false while giving them back fails or waits for the node.
	// +listType=map
	// +listMapKey=type
	// +optional
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// PodAttachment is the network of one pod: named <pod>-<first 8 of the pod's
// UID>, owned by the pod, written by the controller and plugged by the node.
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
