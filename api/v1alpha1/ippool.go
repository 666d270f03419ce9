package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LabelNetworkNamespace marks an IPPool that the controller created for networks
// (NetworkAttachmentDefinitions). Its value is their namespace. Such a pool serves only
// networks of the same namespace. The controller deletes it when no network needs it and
// none of its addresses is in use.
const LabelNetworkNamespace = "fairlead.dev/network-namespace"

// Placement is the distribution of a pool's addresses over nodes.
// +kubebuilder:validation:Enum=Shared;PerNode
type Placement string

const (
	// PlacementShared lets every node use every block, so a pool needs no more addresses
	// than there are pods. It is for networks that are one link.
	PlacementShared Placement = "Shared"
	// PlacementPerNode gives each node whole blocks, which are routed to it. It is for
	// the routed default network.
	PlacementPerNode Placement = "PerNode"
)

// Order is the order in which free addresses are handed out.
// +kubebuilder:validation:Enum=Fifo;Lowest
type Order string

const (
	// OrderFifo first takes the addresses of a block of 64 that were never used, then the
	// address that has been free longest. Different nodes start with different blocks,
	// and a node uses up a block before it begins another.
	OrderFifo Order = "Fifo"
	// OrderLowest takes the lowest free address of the pool, or with placement PerNode of
	// the node's blocks.
	OrderLowest Order = "Lowest"
)

// Sticky selects the pods that get an IPClaim without a request.
// +kubebuilder:validation:Enum=Off;StatefulSet;VirtualMachine
type Sticky string

const (
	// StickyOff gives no claim to pods that name none.
	StickyOff Sticky = "Off"
	// StickyStatefulSet gives pods of a StatefulSet one claim per ordinal.
	StickyStatefulSet Sticky = "StatefulSet"
	// StickyVirtualMachine gives launcher pods of KubeVirt one claim per machine.
	StickyVirtualMachine Sticky = "VirtualMachine"
)

// UnreachablePolicy is the treatment of addresses on a node that does not answer, while
// there is no proof that it is down.
// +kubebuilder:validation:Enum=Hold;ReclaimAfter
type UnreachablePolicy string

const (
	// UnreachableHold keeps the addresses until the node answers or there is proof.
	UnreachableHold UnreachablePolicy = "Hold"
	// UnreachableReclaimAfter releases the addresses after reclaimAfter. If the node is
	// alive, a pod on it and a new pod then use the same address.
	UnreachableReclaimAfter UnreachablePolicy = "ReclaimAfter"
)

// Quota bounds the use of a pool.
type Quota struct {
	// PerNamespace is the number of addresses of each family that a namespace may have,
	// counting its pods and the claims that keep an address; 0 means no bound.
	// +optional
	// +kubebuilder:validation:Minimum=0
	PerNamespace int32 `json:"perNamespace,omitempty"`
}

// Condition types and reasons of an IPPool.
const (
	// ConditionConsistent is false while the controller's audit finds an address of the
	// pool with two holders, or an unexplained slot or count.
	ConditionConsistent = "Consistent"
	// ConditionExhausted is true while no address can be taken.
	ConditionExhausted = "Exhausted"

	// ReasonInvalid means that the spec is invalid; the message names the field. An
	// invalid pool allocates no addresses.
	ReasonInvalid = "Invalid"
	// ReasonValid means that the spec is in effect.
	ReasonValid = "Valid"
)

// IPPoolSpec is a set of addresses in an address domain.
//
// +kubebuilder:validation:XValidation:rule="(has(self.unreachablePolicy) && self.unreachablePolicy == 'ReclaimAfter') == has(self.reclaimAfter)",message="reclaimAfter belongs to unreachablePolicy ReclaimAfter, and is required there"
type IPPoolSpec struct {
	// Domain is the address space of the pool. Pools of one domain may overlap: they
	// never hand out an address twice. Two domains may use the same CIDR independently.
	// +optional
	// +kubebuilder:default=default
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a pool's domain cannot be changed: make another pool"
	Domain string `json:"domain,omitempty"`

	// Ranges are CIDRs (10.0.0.0/24), first-last (10.0.0.10-10.0.0.20, with the prefix
	// length of the link after it: 10.0.0.10-10.0.0.20/24), or single addresses, of
	// either family. They must not overlap. A pod gets one address of each family of the
	// pool.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=2
	// +kubebuilder:validation:items:MaxLength=100
	Ranges []string `json:"ranges"`

	// Excludes are never handed out. They have the same forms as ranges. Each must lie in
	// a range, and they must not overlap each other.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=2
	// +kubebuilder:validation:items:MaxLength=100
	Excludes []string `json:"excludes,omitempty"`

	// Gateways, at most one per family, each on the link of a range. They
	// are never handed out.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self.all(a, isIP(a))",message="each gateway must be an IP address, as 10.0.0.1"
	Gateways []string `json:"gateways,omitempty"`

	// Routes that each pod gets in addition to the default route.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Routes []Route `json:"routes,omitempty"`

	// UseEdges also hands out the network and the broadcast address of IPv4 CIDRs and the
	// subnet-router anycast address of IPv6 CIDRs. In a /31, /32, /127 or /128 they are
	// always handed out. A PerNode pool is routed and has no edges, so the field has no
	// effect.
	// +optional
	UseEdges bool `json:"useEdges,omitempty"`

	// Cooldown is how long a released address rests before it is handed out
	// again: 5s to 24h, default 30s.
	// +optional
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('5s') && duration(self) <= duration('24h')",message="cooldown must be between 5s and 24h"
	Cooldown *metav1.Duration `json:"cooldown,omitempty"`

	// Order is Fifo (default) or Lowest.
	// +optional
	// +kubebuilder:default=Fifo
	Order Order `json:"order,omitempty"`

	// Placement is Shared (default) or PerNode.
	// +optional
	// +kubebuilder:default=Shared
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a pool's placement cannot be changed: make another pool"
	Placement Placement `json:"placement,omitempty"`

	// MaxBlocksPerNode is the number of blocks of 64 addresses of each family that the
	// pool routes to one node, with placement PerNode. 0 means the default of 8, which is
	// enough for 250 pods that are all replaced at once. If a pool has this number of
	// blocks for every node, the pods of a few nodes cannot use it up.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1024
	MaxBlocksPerNode int32 `json:"maxBlocksPerNode,omitempty"`

	// NamespaceSelector selects, by label, the namespaces whose pods may use the pool. Each
	// selector that is set must match. A pod that does not match gets its addresses from the
	// next pool of its network.
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	// PodSelector selects, by label, the pods that may use the pool.
	// +optional
	PodSelector *metav1.LabelSelector `json:"podSelector,omitempty"`
	// NodeSelector selects, by label, the nodes whose pods may use the pool.
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`

	// NetworkNamespaceSelector opens the pool, and with it its domain, to further
	// networks: the NetworkAttachmentDefinitions of the namespaces with these labels. If
	// it is not set, only NetworkAttachmentDefinitions of the controller's own namespace
	// may use the pool. An empty selector selects all namespaces.
	// +optional
	NetworkNamespaceSelector *metav1.LabelSelector `json:"networkNamespaceSelector,omitempty"`

	// Quota bounds the addresses of one namespace.
	// +optional
	Quota Quota `json:"quota,omitzero"`

	// Sticky selects the pods that get an IPClaim, and with it the same addresses each
	// time, without a request: Off (default), StatefulSet or VirtualMachine.
	// +optional
	// +kubebuilder:default=Off
	Sticky Sticky `json:"sticky,omitempty"`

	// UnreachablePolicy is Hold (default) or ReclaimAfter.
	// +optional
	// +kubebuilder:default=Hold
	UnreachablePolicy UnreachablePolicy `json:"unreachablePolicy,omitempty"`

	// ReclaimAfter is the time for which a node must have been unreachable, with
	// unreachablePolicy ReclaimAfter; at least 1m.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m')",message="reclaimAfter must be at least 1m"
	ReclaimAfter *metav1.Duration `json:"reclaimAfter,omitempty"`
}

// IPPoolStatus is the state of a pool. Usable = free + allocated + cooling + held +
// reserved, always. Counts stop at 9223372036854775807, which an IPv6 pool may exceed.
type IPPoolStatus struct {
	// Usable addresses: the ranges without excludes, gateways and edges.
	// +optional
	Usable int64 `json:"usable"`
	// Free addresses can be taken now.
	// +optional
	Free int64 `json:"free"`
	// Allocated addresses have a pod.
	// +optional
	Allocated int64 `json:"allocated"`
	// Cooling addresses were released less than cooldown ago.
	// +optional
	Cooling int64 `json:"cooling"`
	// Held addresses are kept for a claim.
	// +optional
	Held int64 `json:"held"`
	// Reserved addresses are withheld: by a reservation, or because their record cannot
	// be parsed and a person must inspect it.
	// +optional
	Reserved int64 `json:"reserved"`

	// Conditions are Ready, Exhausted and Consistent.
	// +listType=map
	// +listMapKey=type
	// +optional
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// IPPool is a set of addresses for pods. People create it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=pool,categories=fairlead
// +kubebuilder:printcolumn:name="Domain",type=string,JSONPath=`.spec.domain`
// +kubebuilder:printcolumn:name="Placement",type=string,JSONPath=`.spec.placement`
// +kubebuilder:printcolumn:name="Usable",type=integer,JSONPath=`.status.usable`
// +kubebuilder:printcolumn:name="Free",type=integer,JSONPath=`.status.free`
// +kubebuilder:printcolumn:name="Allocated",type=integer,JSONPath=`.status.allocated`
// +kubebuilder:printcolumn:name="Cooling",type=integer,JSONPath=`.status.cooling`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type IPPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   IPPoolSpec   `json:"spec"`
	Status IPPoolStatus `json:"status,omitempty"`
}

// IPPoolList is a list of IPPools.
//
// +kubebuilder:object:root=true
type IPPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []IPPool `json:"items"`
}
