package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ConditionRouted of a NodeNetwork is true when the node's bridge and the
// routes to every other node's blocks are in place.
const ConditionRouted = "Routed"

// ConditionAnnounced of a NodeNetwork is true when the node's container runtime has
// Fairlead's network configuration and finds no other configuration before it. It is
// absent if the default network is another plugin's.
const ConditionAnnounced = "Announced"

// ConditionConfirmed of a NodeNetwork is true when the controller has confirmed an
// address that the node reports of itself: other nodes use confirmed addresses only. It
// is absent while the controller has a version that confirms no addresses.
const ConditionConfirmed = "Confirmed"

// ConditionForwardPolicy of a NodeNetwork is true when no forward chain of nftables on the
// node has policy drop, and unknown otherwise: rules of such a chain may accept packets of
// pods.
const ConditionForwardPolicy = "ForwardPolicy"

// ConditionDirect of a NodeNetwork is true when packets of the node's pods reach other
// nodes without encapsulation, as far as they were probed. It is false if the network
// between the nodes drops them, for example by the port security of a cloud. It is absent
// while no other node is probed.
const ConditionDirect = "Direct"

// DroppedToAll is the element of NodeNetworkStatus.Dropped that stands for all nodes.
const DroppedToAll = "*"

// DroppedToRouted is the element of NodeNetworkStatus.Dropped that stands for all nodes in
// other subnets.
const DroppedToRouted = "*routed"

// ConditionFabricReady of Fabric is true when the cloud lets the node's pods send and
// receive packets with their own addresses.
const ConditionFabricReady = "Ready"

// FabricFinalizer keeps the NodeNetwork of a deleted node until the controller has removed
// its entries from the cloud.
const FabricFinalizer = "fairlead.dev/fabric"

// DefaultNetworkOther means that another plugin provides the default network.
const DefaultNetworkOther = "Other"

// NodeNetworkSpec is written by the controller.
type NodeNetworkSpec struct {
	// Blocks are the CIDRs routed to this node, sorted.
	// +listType=set
	// +optional
	// +kubebuilder:validation:MaxItems=1024
	// +kubebuilder:validation:items:MaxLength=49
	// +kubebuilder:validation:XValidation:rule="self.all(c, isCIDR(c))",message="each block must be in CIDR form"
	Blocks []string `json:"blocks,omitempty"`

	// Underlay are the networks of the node's own addresses, in CIDR form, sorted: the
	// addresses of its Node object, each as a network of one address, and the networks of
	// the controller's configuration (underlayCIDRs). Other nodes use an address in
	// status only if one of these networks contains it. Absent if the controller has a
	// version that does not write it: then other nodes use the addresses in status.
	// +listType=set
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=49
	// +kubebuilder:validation:XValidation:rule="self.all(c, isCIDR(c))",message="each network must be in CIDR form"
	Underlay []string `json:"underlay,omitzero"`

	// NodeAddresses are the internal and external addresses of the Node object, sorted. The node's
	// pods have host ports there.
	// +listType=set
	// +optional
	// +kubebuilder:validation:MaxItems=40
	// +kubebuilder:validation:items:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self.all(a, isIP(a))",message="each address must be an IP address"
	NodeAddresses []string `json:"nodeAddresses,omitempty"`

	// Summary repeats the blocks in one line, for kubectl.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Summary string `json:"summary,omitempty"`

	// DefaultNetwork is "Other" if the default network of the node's pods is another
	// plugin's: then only pods that request further networks have a PodAttachment. It is
	// NAMESPACE/NAME of a NetworkAttachmentDefinition if its plugins make the default
	// interface of pods that choose no other. Empty if Fairlead makes that interface.
	// +optional
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^(|Other|[a-z0-9-]+/[a-z0-9.-]+)$`
	DefaultNetwork string `json:"defaultNetwork,omitempty"`

	// Fabric is the controller's part in the cloud's network for this node; absent
	// without a cloud.
	// +optional
	Fabric *Fabric `json:"fabric,omitempty"`
}

// Fabric records the entries that the controller made in the cloud for a node. An entry is
// recorded before it is made. Only recorded entries are ever removed.
type Fabric struct {
	// Port is the ID of the node's port.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Port string `json:"port,omitempty"`
	// Pairs are the prefixes of the allowed address pairs that the port got.
	// +listType=set
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=49
	Pairs []string `json:"pairs,omitempty"`
	// Group is the ID of the security group that the port got.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Group string `json:"group,omitempty"`
	// Router is the ID of the router that got Routes.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Router string `json:"router,omitempty"`
	// Routes are the extra routes that the router got, to the node's blocks.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Routes []FabricRoute `json:"routes,omitempty"`
	// Routed are prefixes of the node's blocks to which the router has routes. While the
	// condition Ready is true, nodes in other subnets reach these blocks by their default
	// gateway.
	// +listType=set
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=49
	Routed []string `json:"routed,omitempty"`
	// Conditions is Ready.
	// +listType=map
	// +listMapKey=type
	// +optional
	// +kubebuilder:validation:MaxItems=4
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// InEffect returns the prefixes to which nodes in other subnets send by the router: Routed
// while the entries of the node are complete. Otherwise packets would pass in one direction
// only.
func (f *Fabric) InEffect() []string {
	if f == nil || !meta.IsStatusConditionTrue(f.Conditions, ConditionFabricReady) {
		return nil
	}
	return f.Routed
}

// FabricRoute is an extra route of a router.
type FabricRoute struct {
	// Destination in CIDR form.
	// +kubebuilder:validation:MaxLength=49
	Destination string `json:"destination"`
	// NextHop is the address of the node.
	// +kubebuilder:validation:MaxLength=45
	NextHop string `json:"nextHop"`
}

// NodeNetworkStatus is written by the node.
type NodeNetworkStatus struct {
	// Uplink is the interface that leads to the other nodes.
	// +optional
	// +kubebuilder:validation:MaxLength=15
	Uplink string `json:"uplink,omitempty"`
	// Addresses of the node on its uplink in CIDR form, at most one per family. The
	// prefix shows which other nodes share the link. Other nodes use the addresses that
	// spec.underlay confirms.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=49
	Addresses []string `json:"addresses,omitempty"`
	// MTU of the uplink in bytes.
	// +optional
	MTU int32 `json:"mtu,omitempty"`
	// Tunnel is the node's endpoint for encapsulated packets to its blocks; absent if the
	// node receives none.
	// +optional
	Tunnel *Tunnel `json:"tunnel,omitempty"`
	// BootID of the node's kernel (/proc/sys/kernel/random/boot_id). A change proves that
	// no sandbox of the previous boot is left.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	BootID string `json:"bootID,omitempty"`
	// Dropped are the names of the nodes to which packets of this node's pods are dropped
	// unless they are encapsulated; "*" stands for all nodes, "*routed" for all nodes in
	// other subnets. With encapsulation "auto" both sides then use the tunnel.
	// +listType=set
	// +optional
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=253
	Dropped []string `json:"dropped,omitempty"`
	// Conditions are Routed, Announced, Confirmed, ForwardPolicy and Direct.
	// +listType=map
	// +listMapKey=type
	// +optional
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Tunnel is the VXLAN endpoint (RFC 7348) of a node. Its underlay addresses are the
// addresses of the node.
type Tunnel struct {
	// MAC of the node's tunnel interface. Other nodes use it in their neighbour entries
	// for the node, so that no packet is flooded.
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{2}(:[0-9a-f]{2}){5}$`
	MAC string `json:"mac"`
}

// NodeNetwork has the data of a node that other nodes need. It has the node's name and is
// owned by the Node. Nodes watch NodeNetworks, never IPBlocks, because they change
// rarely.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=nn,categories=fairlead
// +kubebuilder:printcolumn:name="Address",type=string,JSONPath=`.status.addresses[0]`
// +kubebuilder:printcolumn:name="Second",type=string,JSONPath=`.status.addresses[1]`
// +kubebuilder:printcolumn:name="Blocks",type=string,JSONPath=`.spec.summary`
// +kubebuilder:printcolumn:name="MTU",type=integer,JSONPath=`.status.mtu`
// +kubebuilder:printcolumn:name="Routed",type=string,JSONPath=`.status.conditions[?(@.type=="Routed")].status`
// +kubebuilder:printcolumn:name="Direct",type=string,JSONPath=`.status.conditions[?(@.type=="Direct")].status`
// +kubebuilder:printcolumn:name="Fabric",type=string,priority=1,JSONPath=`.spec.fabric.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NodeNetwork struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   NodeNetworkSpec   `json:"spec,omitempty"`
	Status NodeNetworkStatus `json:"status,omitempty"`
}

// NodeNetworkList is a list of NodeNetworks.
//
// +kubebuilder:object:root=true
type NodeNetworkList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NodeNetwork `json:"items"`
}
