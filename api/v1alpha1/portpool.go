package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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

	// Ready is the number of ports in state Ready.
	// +optional
	Ready int32 `json:"ready"`
	// Cooling is the number of ports in state Cooling.
	// +optional
	Cooling int32 `json:"cooling"`
	// Used is the number of ports that pods have.
	// +optional
	Used int32 `json:"used"`

	// Ports of the pool. Pods get the ports in state Ready in the order of this list. A port
	// that a pod has given back or that was made goes to its end.
	// +listType=map
	// +listMapKey=slot
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Ports []PortPoolSlot `json:"ports,omitempty"`
}

// PortState is the state of a port of a pool.
// +kubebuilder:validation:Enum=Ready;Cooling;Stale;Used;Leaving
type PortState string

// States of a port.
const (
	// PortReady ports are handed out.
	PortReady PortState = "Ready"
	// PortCooling ports rest after a pod.
	PortCooling PortState = "Cooling"
	// PortStale ports have other security groups than their pool, and are changed first.
	PortStale PortState = "Stale"
	// PortUsed ports are those of pods.
	PortUsed PortState = "Used"
	// PortLeaving ports are being deleted, and stay in this state until then.
	PortLeaving PortState = "Leaving"
)

// PortPoolSlot is a port in its place.
//
// +kubebuilder:validation:XValidation:rule="(self.state == 'Used') == has(self.pod)",message="a port is Used if it has a pod, and only then"
type PortPoolSlot struct {
	// Slot is the number of the place, which is part of the identity of the port in the cloud.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=63
	Slot int32 `json:"slot"`
	// State of the port.
	State        PortState `json:"state"`
	PortPoolPort `json:",inline"`
	// Pod is the interface of a pod that has the port.
	// +optional
	Pod *PortPoolPod `json:"pod,omitempty"`
}

// PortPoolPort is a port in the cloud.
type PortPoolPort struct {
	// ID of the port.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	ID string `json:"id"`
	// MAC of the port.
	// +kubebuilder:validation:MaxLength=17
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{2}(:[0-9a-f]{2}){5}$`
	MAC string `json:"mac"`
	// Addresses with the length of the prefix of their subnet.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=49
	// +kubebuilder:validation:XValidation:rule="self.all(a, isCIDR(a))",message="each address must be in CIDR form, as 10.8.0.5/24"
	Addresses []string `json:"addresses"`
	// VLAN is the segment of the port in the node's trunk; absent for none.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4094
	VLAN int32 `json:"vlan,omitempty"`
	// Bridge that the port belongs to, as the cloud names it; absent for none.
	// +optional
	// +kubebuilder:validation:MaxLength=15
	Bridge string `json:"bridge,omitempty"`
}

// PortPoolPod is the interface of a pod that has a port.
type PortPoolPod struct {
	// UID of the pod.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9-]{1,64}$`
	UID types.UID `json:"uid"`
	// Namespace of the pod.
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// Name of the pod.
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Interface is the name of the interface in the pod.
	// +kubebuilder:validation:MaxLength=15
	Interface string `json:"interface"`
	// Network of the interface.
	// +kubebuilder:validation:MaxLength=317
	Network string `json:"network"`
	// Default is true for the pod's default interface.
	// +optional
	Default bool `json:"default,omitempty"`
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
	// ParentPort is the ID of the port of the node's machine, whose trunk has the ports;
	// empty without a way.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	ParentPort string `json:"parentPort,omitempty"`
	// ParentMAC is the MAC of that port, in lower case.
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
