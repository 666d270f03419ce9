package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PortPoolSpec has the ports of one pool. The controller writes it, all but Desired.
//
// +structType=atomic
// +kubebuilder:validation:XValidation:rule="has(self.way) == has(oldSelf.way) && has(self.host) == has(oldSelf.host) && has(self.project) == has(oldSelf.project) && has(self.network) == has(oldSelf.network) && has(self.subnets) == has(oldSelf.subnets) && has(self.securityGroups) == has(oldSelf.securityGroups) && has(self.portSecurityOff) == has(oldSelf.portSecurityOff)",message="what a pool is for cannot be changed: delete the empty pool"
type PortPoolSpec struct {
	// Node is the node of the pool's pods.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a pool's node cannot be changed"
	Node string `json:"node"`

	// Way is how the ports are made ready for the node: "trunk" if they are subports of the
	// trunk of its machine. Empty: they are bound on Host.
	// +optional
	// +kubebuilder:validation:Enum=trunk
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a pool's way cannot be changed"
	Way string `json:"way,omitempty"`

	// Host is the host of the node's Neutron agent, on which the ports are bound; empty with a
	// way.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a pool's host cannot be changed"
	Host string `json:"host,omitempty"`

	// Project is the ID of the project of the ports; empty for that of the credentials.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a pool's project cannot be changed"
	Project string `json:"project,omitempty"`

	// Network is the name or ID of the network, as the configuration has it.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a pool's network cannot be changed"
	Network string `json:"network,omitempty"`

	// Subnets are names or IDs of subnets, in order; empty lets Neutron choose.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a pool's subnets cannot be changed"
	Subnets []string `json:"subnets,omitempty"`

	// SecurityGroups are names or IDs, sorted; empty is the default group of the project.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a pool's security groups cannot be changed"
	SecurityGroups []string `json:"securityGroups,omitempty"`

	// PortSecurityOff is true for ports without port security.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a pool's port security cannot be changed"
	PortSecurityOff bool `json:"portSecurityOff,omitempty"`

	// Desired is the number of ready ports that people ask for, in place of the marks of the
	// configuration: "fairlead pool fill" and "fairlead pool drain" write it. With 0 the pool
	// is drained, and pods get ports of their own.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=64
	Desired *int32 `json:"desired,omitempty"`

	// Resolved is the network in the cloud, as it was when ports were made last.
	// +optional
	Resolved *PortPoolNetwork `json:"resolved,omitempty"`

	// Ready, Cooling and Used are the numbers of ports that wait for a pod, that rest after
	// one, and that pods have.
	// +optional
	Ready int32 `json:"ready"`
	// +optional
	Cooling int32 `json:"cooling"`
	// +optional
	Used int32 `json:"used"`

	// Ports has one string for each port; see internal/driver/neutron/pool for the form. The
	// first one that is ready is handed out next.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=1024
	Ports []string `json:"ports,omitempty"`
}

// PortPoolNetwork has what an interface needs of its network, so that a port is handed out
// without a call of the cloud.
type PortPoolNetwork struct {
	// ID of the network.
	// +kubebuilder:validation:MaxLength=255
	ID string `json:"id"`
	// MTU of the network in bytes.
	// +optional
	MTU int32 `json:"mtu,omitempty"`
	// GroupIDs are the IDs of the security groups.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=255
	GroupIDs []string `json:"groupIDs,omitempty"`
	// ParentPort and ParentMAC are the ID and the MAC of the port of the node's machine, whose
	// trunk has the ports; empty without a way.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	ParentPort string `json:"parentPort,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=17
	ParentMAC string `json:"parentMAC,omitempty"`
	// Subnets of the network.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=256
	Subnets []PortPoolSubnet `json:"subnets,omitempty"`
}

// PortPoolSubnet is a subnet in the cloud.
type PortPoolSubnet struct {
	// ID of the subnet.
	// +kubebuilder:validation:MaxLength=255
	ID string `json:"id"`
	// CIDR of the subnet.
	// +kubebuilder:validation:MaxLength=49
	CIDR string `json:"cidr"`
	// Gateway is empty if the subnet has none.
	// +optional
	// +kubebuilder:validation:MaxLength=45
	Gateway string `json:"gateway,omitempty"`
	// Routes of the subnet.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Routes []Route `json:"routes,omitempty"`
	// Nameservers of the subnet.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=45
	Nameservers []string `json:"nameservers,omitempty"`
}

// PortPoolStatus is written by the controller.
type PortPoolStatus struct {
	// Conditions has Ready: false with a reason if no ports can be made.
	// +listType=map
	// +listMapKey=type
	// +optional
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// PortPool is the authoritative record of up to 64 ports of OpenStack Neutron that are made
// before pods need them, for one node, network and set of security groups, with the pod that
// has each. It is changed only by compare-and-swap on its resourceVersion. The controller
// writes it; do not edit it by hand.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=fairlead
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.node`
// +kubebuilder:printcolumn:name="Network",type=string,JSONPath=`.spec.network`
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=`.spec.ready`
// +kubebuilder:printcolumn:name="Cooling",type=integer,JSONPath=`.spec.cooling`
// +kubebuilder:printcolumn:name="Used",type=integer,JSONPath=`.spec.used`
// +kubebuilder:printcolumn:name="Desired",type=integer,JSONPath=`.spec.desired`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type PortPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   PortPoolSpec   `json:"spec"`
	Status PortPoolStatus `json:"status,omitempty"`
}

// PortPoolList is a list of PortPools.
//
// +kubebuilder:object:root=true
type PortPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []PortPool `json:"items"`
}
