package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Annotations of pods that ask for certain addresses.
const (
	// AnnotationAddresses asks for certain addresses on the default network,
	// at most one per family, separated by commas: "10.0.0.7,fd00::7". It is
	// refused, by an event that names the holder, while another has one.
	AnnotationAddresses = "fairlead.dev/addresses"
	// AnnotationClaim names the IPClaim, in the pod's namespace, whose
	// addresses the pod gets. One that does not exist is made. A text that is
	// no name stands for the claim "text-" and the first 16 hexadecimal digits
	// of its SHA-256.
	AnnotationClaim = "fairlead.dev/claim"
	// AnnotationPools names the IPPools that the pod draws from on the default
	// network, in order and separated by commas, instead of those that the
	// network names: "web,overflow". At most 16.
	AnnotationPools = "fairlead.dev/pools"
	// AnnotationDriver names, on a NetworkAttachmentDefinition, the driver that pods have
	// their interfaces on that network from. Without it the ipam.type names it.
	AnnotationDriver = "fairlead.dev/driver"
)

// IPClaimSpec says whose the addresses are and for how long they are kept.
type IPClaimSpec struct {
	// Addresses that are wanted, at most one per family; the other families
	// of the pool get any. Empty takes any and keeps what it got.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self.all(a, isIP(a))",message="each address must be an IP address, as 10.0.0.7"
	Addresses []string `json:"addresses,omitempty"`

	// Text by which pods call the claim, where that is no name: the controller
	// writes it into the claims that it makes for such pods. For people only.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Text string `json:"text,omitempty"`

	// HoldTime is how long the addresses are kept while no pod has them;
	// default 24h, and 0s keeps them until the claim is deleted.
	// +optional
	// +kubebuilder:default="24h"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="holdTime must not be negative"
	HoldTime *metav1.Duration `json:"holdTime,omitempty"`
}

// IPClaimStatus says what the claim has.
type IPClaimStatus struct {
	// Addresses that are the claim's.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=2
	Addresses []string `json:"addresses,omitempty"`

	// Pool and Domain that the addresses are of.
	// +optional
	Pool string `json:"pool,omitempty"`
	// +optional
	Domain string `json:"domain,omitempty"`

	// Pod that has the addresses now; empty while they are held.
	// +optional
	Pod string `json:"pod,omitempty"`

	// HeldSince is when the last pod gave them back.
	// +optional
	HeldSince *metav1.Time `json:"heldSince,omitempty"`
}

// IPClaim keeps addresses for whoever comes again under one name: an ordinal of
// a StatefulSet, a virtual machine, any text. People write it, or the controller
// for the pods of a sticky pool.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=fairlead
// +kubebuilder:printcolumn:name="Text",type=string,JSONPath=`.spec.text`
// +kubebuilder:printcolumn:name="Address",type=string,JSONPath=`.status.addresses[0]`
// +kubebuilder:printcolumn:name="Second",type=string,JSONPath=`.status.addresses[1]`
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.status.pool`
// +kubebuilder:printcolumn:name="Pod",type=string,JSONPath=`.status.pod`
// +kubebuilder:printcolumn:name="Hold",type=string,JSONPath=`.spec.holdTime`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type IPClaim struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   IPClaimSpec   `json:"spec,omitempty"`
	Status IPClaimStatus `json:"status,omitempty"`
}

// IPClaimList is a list of IPClaims.
//
// +kubebuilder:object:root=true
type IPClaimList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []IPClaim `json:"items"`
}
