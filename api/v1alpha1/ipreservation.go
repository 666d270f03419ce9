package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// IPReservationSpec names addresses that are not handed out.
type IPReservationSpec struct {
	// Domain of the addresses.
	// +optional
	// +kubebuilder:default=default
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`
	Domain string `json:"domain,omitempty"`

	// Ranges in the forms of an IPPool's: CIDRs, first-last, single addresses.
	// They need not lie in any pool.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=2
	// +kubebuilder:validation:items:MaxLength=100
	Ranges []string `json:"ranges"`

	// Reason is for people.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Reason string `json:"reason,omitempty"`
}

// IPReservationStatus is the state of a reservation.
type IPReservationStatus struct {
	// InUse lists at most 32 addresses of the reservation that pods had before. The pods
	// keep them. After that they are not handed out again.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=32
	InUse []string `json:"inUse,omitempty"`

	// Summary repeats the ranges in one line, for kubectl.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Summary string `json:"summary,omitempty"`

	// Conditions: Ready is true when no address of the ranges is handed out any more.
	// +listType=map
	// +listMapKey=type
	// +optional
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// IPReservation withholds addresses of a domain from all its pools. People create it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=fairlead
// +kubebuilder:printcolumn:name="Domain",type=string,JSONPath=`.spec.domain`
// +kubebuilder:printcolumn:name="Ranges",type=string,JSONPath=`.status.summary`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.spec.reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type IPReservation struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   IPReservationSpec   `json:"spec"`
	Status IPReservationStatus `json:"status,omitempty"`
}

// IPReservationList is a list of IPReservations.
//
// +kubebuilder:object:root=true
type IPReservationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []IPReservation `json:"items"`
}
