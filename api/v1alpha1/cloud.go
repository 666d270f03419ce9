package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Conditions of a Cloud.
const (
	// ConditionConnected is true while OpenStack answers.
	ConditionConnected = "Connected"
	// ConditionQuotaLeft is true if the quotas of the project have room.
	ConditionQuotaLeft = "QuotaLeft"
	// ConditionExplained is true if a pod explains each port of the cluster.
	ConditionExplained = "Explained"

	// ConditionBindHost is true if the credentials may bind ports to a host.
	ConditionBindHost = "BindHost"
	// ConditionSetPairs is true if the credentials may set allowed address pairs.
	ConditionSetPairs = "SetPairs"
	// ConditionTagInCreate is true if a new port has its tags at once. Otherwise Fairlead puts
	// them afterwards.
	ConditionTagInCreate = "TagInCreate"
)

// CloudCount is a number of things by name.
type CloudCount struct {
	// Name that the things share, such as ACTIVE.
	// +kubebuilder:validation:MaxLength=64
	Name string `json:"name"`
	// Count of the things.
	Count int64 `json:"count"`
}

// CloudQuota is a quota of the project.
type CloudQuota struct {
	// Resource as OpenStack names it, such as "port".
	// +kubebuilder:validation:MaxLength=64
	Resource string `json:"resource"`
	// Limit of the project; -1 for none.
	Limit int64 `json:"limit"`
	// Used is how many of the resource the project has.
	Used int64 `json:"used"`
}

// CloudLeft is a thing in OpenStack that no record explains.
type CloudLeft struct {
	// ID of the port.
	// +kubebuilder:validation:MaxLength=64
	ID string `json:"id"`
	// Name of the port.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	Name string `json:"name,omitempty"`
	// Collected is true if the next pass of garbage collection releases it, unless a record
	// explains it by then.
	Collected bool `json:"collected"`
	// Reason in words.
	// +kubebuilder:validation:MaxLength=512
	Reason string `json:"reason"`
}

// CloudStatus is written by the controller.
//
// +structType=atomic
type CloudStatus struct {
	// CheckedAt is the time at which the controller last compared the cloud with its records.
	// +optional
	CheckedAt *metav1.Time `json:"checkedAt,omitempty"`
	// Project is the ID of the project of the credentials.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Project string `json:"project,omitempty"`
	// Ports of this cluster by status in Neutron, such as ACTIVE.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=16
	Ports []CloudCount `json:"ports,omitempty"`
	// Summary repeats the ports in one line, for kubectl.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Summary string `json:"summary,omitempty"`
	// Quotas of the resources that Fairlead uses.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=16
	Quotas []CloudQuota `json:"quotas,omitempty"`
	// Left are the first of the ports of this cluster that no record explains.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=100
	Left []CloudLeft `json:"left,omitempty"`
	// LeftCount is the number of all ports that no record explains.
	// +optional
	LeftCount int64 `json:"leftCount,omitempty"`

	// Conditions are Connected, QuotaLeft, Explained, BindHost, SetPairs and TagInCreate.
	// +listType=map
	// +listMapKey=type
	// +optional
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Cloud shows how OpenStack serves the cluster. Its name is that of the cluster in the cloud
// (openstack.cluster). The controller writes it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster
// +kubebuilder:printcolumn:name="Connected",type=string,JSONPath=`.status.conditions[?(@.type=="Connected")].status`
// +kubebuilder:printcolumn:name="Ports",type=string,JSONPath=`.status.summary`
// +kubebuilder:printcolumn:name="Left",type=integer,JSONPath=`.status.leftCount`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Cloud struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Status CloudStatus `json:"status,omitempty"`
}

// CloudList is a list of Clouds.
//
// +kubebuilder:object:root=true
type CloudList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Cloud `json:"items"`
}
