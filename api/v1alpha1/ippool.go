package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LabelNetworkNamespace marks an IPPool that the controller wrote for networks (NetworkAttachmentDefinitions): its value
// is their namespace. Such a pool serves networks of that namespace only, and goes when none of them needs it and none of
// its addresses is in use.
const LabelNetworkNamespace = "fairlead.dev/network-namespace"

// Placement says how addresses of a pool are spread over nodes.
// +kubebuilder:validation:Enum=Shared;PerNode
type Placement string

const (
	// PlacementShared lets every node draw from every block: a pool with as
	// many addresses as pods works. For networks that are one link.
	PlacementShared Placement = "Shared"
	// PlacementPerNode gives each node whole blocks, which are routed to it.
	// For the routed default network.
	PlacementPerNode Placement = "PerNode"
)

// Order says which free address comes next.
// +kubebuilder:validation:Enum=Fifo;Lowest
type Order string

const (
	// OrderFifo takes, of a block of 64 addresses, those that were never used
	// first, then the one that has been free longest. Nodes spread over the
	// blocks, and use one up before they begin another.
	OrderFifo Order = "Fifo"
	// OrderLowest takes the lowest free address of the pool; with placement
	// PerNode, of the node's blocks.
	OrderLowest Order = "Lowest"
)

// Sticky says which pods get an IPClaim of their own accord.
// +kubebuilder:validation:Enum=Off;StatefulSet;VirtualMachine
type Sticky string

const (
	// StickyOff is for only those pods that name a claim.
	StickyOff Sticky = "Off"
	// StickyStatefulSet is for pods of a StatefulSet, one claim per ordinal.
	StickyStatefulSet Sticky = "StatefulSet"
	// StickyVirtualMachine is for launcher pods of KubeVirt, one claim per machine.
	StickyVirtualMachine Sticky = "VirtualMachine"
)

// UnreachablePolicy says what becomes of addresses on a node that does not
// answer and of which nothing proves that it is down.
// +kubebuilder:validation:Enum=Hold;ReclaimAfter
type UnreachablePolicy string

const (
	// UnreachableHold keeps them until the node answers or there is proof.
	UnreachableHold UnreachablePolicy = "Hold"
	// UnreachableReclaimAfter gives them back after reclaimAfter. Should the
	// node be alive, a pod on it and a new one then use one address.
	UnreachableReclaimAfter UnreachablePolicy = "ReclaimAfter"
)

// Quota bounds what others may take from a pool.
type Quota struct {
	// PerNamespace is how many addresses of each family one namespace may
	// have: its pods, and the claims that keep one; 0 sets no bound.
	// +optional
	// +kubebuilder:validation:Minimum=0
	PerNamespace int32 `json:"perNamespace,omitempty"`
}

// Condition types and reasons of an IPPool.
const (
	// ConditionConsistent is false while the controller's audit finds an address of the
	// pool with two holders, or something that nothing explains.
	ConditionConsistent = "Consistent"
	// ConditionExhausted is true when no address can be taken now.
	ConditionExhausted = "Exhausted"

	// ReasonInvalid says that the spec cannot be used; the message names the
	// field. Nothing is allocated from an invalid pool.
	ReasonInvalid = "Invalid"
	// ReasonValid says that the spec is in use.
	ReasonValid = "Valid"
)

// IPPoolSpec is a set of addresses in an address domain.
//
// +kubebuilder:validation:XValidation:rule="(has(self.unreachablePolicy) && self.unreachablePolicy == 'ReclaimAfter') == has(self.reclaimAfter)",message="reclaimAfter belongs to unreachablePolicy ReclaimAfter, and is required there"
type IPPoolSpec struct {
	// Domain is the address space that the pool is a filter over. Pools of
	// one domain may overlap and never hand out one address twice; the same
	// CIDR may be used independently in two domains.
	// +optional
	// +kubebuilder:default=default
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a pool's domain cannot be changed: make another pool"
	Domain string `json:"domain,omitempty"`

	// Ranges are CIDRs (10.0.0.0/24), first-last (10.0.0.10-10.0.0.20, with
	// the prefix length of the link after it: 10.0.0.10-10.0.0.20/24), or
	// single addresses, of either family. They may not overlap. A pod gets one
	// address of each family that the pool has.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=2
	// +kubebuilder:validation:items:MaxLength=100
	Ranges []string `json:"ranges"`

	// Excludes are never handed out: the same forms as ranges. Each must
	// lie in a range, and none may overlap another.
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

	// Routes that each pod gets beside the default route.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Routes []Route `json:"routes,omitempty"`

	// UseEdges hands out the network and the broadcast address of IPv4 CIDRs
	// and the subnet-router anycast address of IPv6 CIDRs too. In /31, /32,
	// /127 and /128 they always are. A PerNode pool is routed and has no
	// edges, so the field changes nothing there.
	// +optional
	UseEdges bool `json:"useEdges,omitempty"`

	// Cooldown is how long a released address rests before it is handed out
	// again; at least 5s, default 30s.
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

	// MaxBlocksPerNode is how many blocks of 64 addresses of each family the pool
	// routes to one node, with placement PerNode; 0 is the default of 8, enough for 250
	// pods of which all are replaced at once. A pool with as many blocks for each node
	// cannot be used up by the pods of a few.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1024
	MaxBlocksPerNode int32 `json:"maxBlocksPerNode,omitempty"`

	// NamespaceSelector, PodSelector and NodeSelector choose, by label, the
	// pods that may draw from the pool; all that are set must match. A pod that
	// does not match goes on to the next pool of its network.
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	// +optional
	PodSelector *metav1.LabelSelector `json:"podSelector,omitempty"`
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`

	// NetworkNamespaceSelector opens the pool, and with it its domain, to further
	// networks: to NetworkAttachmentDefinitions of the namespaces with these labels.
	// Without it only those of the controller's own namespace may draw from the
	// pool; an empty selector opens it to those of all namespaces.
	// +optional
	NetworkNamespaceSelector *metav1.LabelSelector `json:"networkNamespaceSelector,omitempty"`

	// Quota bounds what one namespace may take.
	// +optional
	Quota Quota `json:"quota,omitzero"`

	// Sticky says which pods get an IPClaim, and with it the same addresses
	// each time, without asking: Off (default), StatefulSet, VirtualMachine.
	// +optional
	// +kubebuilder:default=Off
	Sticky Sticky `json:"sticky,omitempty"`

	// UnreachablePolicy is Hold (default) or ReclaimAfter.
	// +optional
	// +kubebuilder:default=Hold
	UnreachablePolicy UnreachablePolicy `json:"unreachablePolicy,omitempty"`

	// ReclaimAfter is how long a node must have been unreachable for
	// unreachablePolicy ReclaimAfter; at least 1m.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m')",message="reclaimAfter must be at least 1m"
	ReclaimAfter *metav1.Duration `json:"reclaimAfter,omitempty"`
}

// IPPoolStatus says how full a pool is. Usable = free + allocated + cooling +
// held + reserved, always. Counts stop at 9223372036854775807, which an IPv6
// pool may exceed.
type IPPoolStatus struct {
	// Usable addresses: the ranges without excludes, gateways and edges.
	// +optional
	Usable int64 `json:"usable"`
	// Free addresses can be taken now.
	// +optional
	Free int64 `json:"free"`
	// Allocated addresses belong to a pod.
	// +optional
	Allocated int64 `json:"allocated"`
	// Cooling addresses were released less than cooldown ago.
	// +optional
	Cooling int64 `json:"cooling"`
	// Held addresses are kept for a claim.
	// +optional
	Held int64 `json:"held"`
	// Reserved addresses are withheld: by a reservation, or because their
	// record could not be read and must be looked at.
	// +optional
	Reserved int64 `json:"reserved"`

	// Conditions are Ready, Exhausted and Consistent.
	// +listType=map
	// +listMapKey=type
	// +optional
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// IPPool is a set of addresses that pods draw from. People write it.
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
