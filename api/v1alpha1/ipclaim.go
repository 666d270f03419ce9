package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Annotations by which pods request certain addresses.
const (
	// AnnotationAddresses requests certain addresses on the default network, at most one
	// per family, separated by commas: "10.0.0.7,fd00::7". While another pod or claim has
	// such an address the request is refused with an event, which names the holder if it
	// is in the pod's namespace.
	AnnotationAddresses = "fairlead.dev/addresses"
	// AnnotationClaim names the IPClaim, in the pod's namespace, whose addresses the pod
	// gets. The controller creates the claim if it does not exist. A text that is not a
	// valid name stands for the claim "text-" and the first 16 hexadecimal digits of its
	// SHA-256.
	AnnotationClaim = "fairlead.dev/claim"
	// AnnotationPools names the IPPools of the pod on the default network, at most 16, in
	// order and separated by commas: "web,overflow". They replace the pools that the
	// network names.
	AnnotationPools = "fairlead.dev/pools"
	// AnnotationAdditionalPools names IPPools, at most 16, separated by commas or as a JSON
	// list. The pod gets one further interface on the default network for each, with an
	// address of that pool.
	AnnotationAdditionalPools = "fairlead.dev/additional-pools"
	// LabelNeutronPort of a Node chooses how ports of OpenStack are made ready on it: host,
	// trunk or macvlan.
	LabelNeutronPort = "fairlead.dev/neutron-port"
	// AnnotationSecurityGroups names security groups of OpenStack by ID or name, separated by
	// commas: on a pod those of its default interface, on a namespace those of the default
	// interfaces of its pods. The operator opens groups to namespaces.
	AnnotationSecurityGroups = "fairlead.dev/security-groups"
	// AnnotationDriver names, on a NetworkAttachmentDefinition, the driver that pods have
	// their interfaces on that network from. Without it the ipam.type names it.
	AnnotationDriver = "fairlead.dev/driver"
	// LabelAttachedBy of a Node names the program that attaches its pods to the networks of
	// NetworkAttachmentDefinitions: Fairlead or Multus. Without it the configuration of the
	// controller does (networks.attachedBy). On a PodAttachment it is Fairlead if Fairlead
	// attaches that pod, from the pod's start to its end. Without it another program does.
	LabelAttachedBy = "fairlead.dev/networks-attached-by"
	// AttachedByFairlead and AttachedByMultus are the values of this label.
	AttachedByFairlead = "Fairlead"
	AttachedByMultus   = "Multus"
)

// IPClaimSpec defines which addresses are kept, and for how long.
type IPClaimSpec struct {
	// Addresses are the requested addresses, at most one per family. For other families
	// of the pool the claim gets any address, and keeps it.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self.all(a, isIP(a))",message="each address must be an IP address, as 10.0.0.7"
	Addresses []string `json:"addresses,omitempty"`

	// MAC of the pods' interfaces, as 02:23:45:67:89:ab; a unicast address. Without it the
	// controller chooses one for the claim. It applies to interfaces that have a MAC of
	// their own: of the kinds routed, bridge and macvlan.
	// +optional
	// +kubebuilder:validation:Pattern=`^[0-9a-f][02468ace](:[0-9a-f]{2}){5}$`
	MAC string `json:"mac,omitempty"`

	// Text is the pods' text for the claim, if that is not a valid name. The controller
	// sets it in the claims that it creates for such pods. It is for people only.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Text string `json:"text,omitempty"`

	// HoldTime is how long the addresses are kept while no pod has them; default 24h. 0s
	// keeps them until the claim is deleted.
	// +optional
	// +kubebuilder:default="24h"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="holdTime must not be negative"
	HoldTime *metav1.Duration `json:"holdTime,omitempty"`
}

// IPClaimStatus is the state of a claim.
type IPClaimStatus struct {
	// Addresses of the claim.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=2
	Addresses []string `json:"addresses,omitempty"`

	// MAC of the claim. It is the same for all pods of the claim.
	// +optional
	MAC string `json:"mac,omitempty"`

	// Pool is the IPPool of the addresses.
	// +optional
	Pool string `json:"pool,omitempty"`
	// Domain of the addresses.
	// +optional
	Domain string `json:"domain,omitempty"`

	// Pod is the pod that has the addresses now; empty while they are held.
	// +optional
	Pod string `json:"pod,omitempty"`

	// HeldSince is the time at which the last pod released the addresses.
	// +optional
	HeldSince *metav1.Time `json:"heldSince,omitempty"`
}

// IPClaim keeps addresses for successive pods with one name: an ordinal of a StatefulSet,
// a virtual machine, any text. People create it, or the controller for the pods of a
// sticky pool.
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
