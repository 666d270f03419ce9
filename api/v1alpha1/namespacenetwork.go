package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LabelNetwork of a Namespace asks for a network of its own in OpenStack, if it has the
// value NetworkOwn and the operator lets the namespace ask.
const (
	LabelNetwork = "fairlead.dev/network"
	NetworkOwn   = "own"
)

// NamespaceNetworkFinalizer keeps a NamespaceNetwork until nothing of it is left in the
// cloud.
const NamespaceNetworkFinalizer = "fairlead.dev/namespace-network"

// Conditions of a NamespaceNetwork.
const (
	// ConditionNetworkReady is true when pods can have ports in the network.
	ConditionNetworkReady = "Ready"
	// ConditionNetworkFull is true while no subnet of a family has an address left.
	ConditionNetworkFull = "Full"
)

// NamespaceNetworkSpec is written by the controller with the object, and never changes.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="the network of a namespace does not change: delete the NamespaceNetwork, and the next pod has another one made"
type NamespaceNetworkSpec struct {
	// Namespace that has the network.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:MinLength=1
	Namespace string `json:"namespace"`
	// NamespaceUID distinguishes the namespace from a later one of the same name.
	// +kubebuilder:validation:MaxLength=36
	// +kubebuilder:validation:MinLength=1
	NamespaceUID string `json:"namespaceUID"`
	// Project is the ID of the project of the network; empty for that of the controller's
	// credentials.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Project string `json:"project,omitempty"`
	// SubnetPools are the IDs or names of the subnet pools of its subnets, one per family.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=255
	SubnetPools []string `json:"subnetPools"`
	// Router is the ID or name of the router that gets an interface in each subnet.
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:MinLength=1
	Router string `json:"router"`
}

// NamespaceNetworkStatus is written by the controller. It has an object of the cloud as soon
// as it exists, and a router before it gets an interface.
type NamespaceNetworkStatus struct {
	// Network is the ID of the network.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Network string `json:"network,omitempty"`
	// Router is the ID of the router.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Router string `json:"router,omitempty"`
	// Subnets in which the router has an interface, in the order of their names.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=256
	Subnets []NamespaceSubnet `json:"subnets,omitempty"`
	// Summary repeats the CIDRs in one line, for kubectl.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Summary string `json:"summary,omitempty"`
	// Conditions are Ready and Full.
	// +listType=map
	// +listMapKey=type
	// +optional
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// NamespaceSubnet is a subnet of a NamespaceNetwork.
type NamespaceSubnet struct {
	// ID of the subnet.
	// +kubebuilder:validation:MaxLength=64
	ID string `json:"id"`
	// CIDR of the subnet.
	// +kubebuilder:validation:MaxLength=49
	CIDR string `json:"cidr"`
}

// NamespaceNetwork is the own network of a namespace in OpenStack. It is made for the first
// pod that needs it, and removed when its namespace is gone. It is named after the namespace
// and the beginning of the namespace's UID. Only the controller writes it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=nsnet,categories=fairlead
// +kubebuilder:printcolumn:name="Namespace",type=string,JSONPath=`.spec.namespace`
// +kubebuilder:printcolumn:name="Network",type=string,JSONPath=`.status.network`
// +kubebuilder:printcolumn:name="Subnets",type=string,JSONPath=`.status.summary`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Full",type=string,JSONPath=`.status.conditions[?(@.type=="Full")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NamespaceNetwork struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   NamespaceNetworkSpec   `json:"spec"`
	Status NamespaceNetworkStatus `json:"status,omitempty"`
}

// NamespaceNetworkList is a list of NamespaceNetworks.
//
// +kubebuilder:object:root=true
type NamespaceNetworkList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NamespaceNetwork `json:"items"`
}
