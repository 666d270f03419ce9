package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LabelDomain and LabelNode are the labels of IPBlocks, for people who list them.
const (
	LabelDomain = "fairlead.dev/domain"
	LabelNode   = "fairlead.dev/node"
)

// AnnotationAllowDeletion with the value "true" lets an IPBlock be deleted although
// addresses in it are in use; deploy/rights keeps people from doing so by a slip.
const AnnotationAllowDeletion = "fairlead.dev/allow-deletion"

// IPBlockSpec is 64 neighbouring addresses of a domain and who holds them.
//
// +structType=atomic
// +kubebuilder:validation:XValidation:rule="has(self.node) == has(oldSelf.node)",message="a block's node cannot be changed: delete the empty block"
type IPBlockSpec struct {
	// Domain is the address space that the block is a piece of.
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a block's domain cannot be changed"
	Domain string `json:"domain"`

	// CIDR is an IPv4 /26 or an IPv6 /122, without host bits.
	// +kubebuilder:validation:MaxLength=49
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a block's CIDR cannot be changed"
	// +kubebuilder:validation:XValidation:rule="isCIDR(self) && cidr(self).prefixLength() == (cidr(self).ip().family() == 4 ? 26 : 122) && cidr(self).masked() == cidr(self)",message="a block's CIDR must be an IPv4 /26 or an IPv6 /122 without host bits"
	CIDR string `json:"cidr"`

	// Node to which the whole block is routed; empty for a shared block.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a block's node cannot be changed: delete the empty block"
	Node string `json:"node,omitempty"`

	// Used counts the slots that are not free, for printing.
	// +optional
	Used int32 `json:"used"`

	// Slots that are or were in use, one string each; see internal/ipam for
	// the form. A slot that is not listed was never used.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=1024
	Slots []string `json:"slots,omitempty"`
}

// IPBlock is the truth about 64 addresses of a domain: whoever changes it does
// so by compare-and-swap on its resourceVersion. Blocks belong to domains, not
// to pools, so that two pools that overlap meet in the same object. The
// controller writes it; do not edit it by hand.
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
