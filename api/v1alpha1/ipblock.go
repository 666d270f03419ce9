package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LabelDomain and LabelNode are labels of IPBlocks, for use in kubectl.
const (
	LabelDomain = "fairlead.dev/domain"
	LabelNode   = "fairlead.dev/node"
)

// IPBlockSpec is a block of 64 consecutive addresses of a domain, with their holders.
//
// +structType=atomic
// +kubebuilder:validation:XValidation:rule="has(self.node) == has(oldSelf.node)",message="a block's node cannot be changed: delete the empty block"
type IPBlockSpec struct {
	// Domain is the address space of the block.
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a block's domain cannot be changed"
	Domain string `json:"domain"`

	// CIDR is an IPv4 /26 or an IPv6 /122, without host bits.
	// +kubebuilder:validation:MaxLength=49
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a block's CIDR cannot be changed"
	// +kubebuilder:validation:XValidation:rule="isCIDR(self) && cidr(self).prefixLength() == (cidr(self).ip().family() == 4 ? 26 : 122) && cidr(self).masked() == cidr(self)",message="a block's CIDR must be an IPv4 /26 or an IPv6 /122 without host bits"
	CIDR string `json:"cidr"`

	// Node is the node to which the whole block is routed; empty for a shared block.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a block's node cannot be changed: delete the empty block"
	Node string `json:"node,omitempty"`

	// Used is the number of slots that are not free, for kubectl.
	// +optional
	Used int32 `json:"used"`

	// Slots has one string for each slot that is or was in use; see internal/ipam for the
	// form. A slot that is not listed was never used.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=1024
	Slots []string `json:"slots,omitempty"`
}

// IPBlock is the authoritative record of 64 addresses of a domain. It is changed only by
// compare-and-swap on its resourceVersion. Blocks belong to domains, not to pools, so two
// overlapping pools use the same object. The controller writes it; do not edit it by
// hand.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=fairlead
// +kubebuilder:printcolumn:name="Domain",type=string,JSONPath=`.spec.domain`
// +kubebuilder:printcolumn:name="CIDR",type=string,JSONPath=`.spec.cidr`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.node`
// +kubebuilder:printcolumn:name="Used",type=integer,JSONPath=`.spec.used`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type IPBlock struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec IPBlockSpec `json:"spec"`
}

// IPBlockList is a list of IPBlocks.
//
// +kubebuilder:object:root=true
type IPBlockList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []IPBlock `json:"items"`
}
