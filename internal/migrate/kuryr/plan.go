// Package kuryr plans the migration from Kuryr-Kubernetes to Fairlead: how each option of its
// configuration is served, and which of its ports, networks, load balancers and policies
// Fairlead can take over. It is pure: its input is the state of a cluster, and of OpenStack.
// Package apply beside it reads both. Every object may be broken or hostile: such an object gets its
// reason, and the others their answer.
package kuryr

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/internal/pod"
)

// State is the input of a plan.
type State struct {
	// Config of Kuryr; nil if it is not known.
	Config *Config
	// Ports, Networks, LoadBalancers and Policies are the objects of openstack.org/v1.
	Ports, Networks, LoadBalancers, Policies []Object
	// Definitions are the NetworkAttachmentDefinitions with Kuryr's annotation.
	Definitions []Definition
	// Projects are the annotations openstack.org/kuryr-project by namespace.
	Projects map[string]string
	// Pods of the cluster.
	Pods []corev1.Pod
	// Cloud is what OpenStack has; nil if it was not asked.
	Cloud *Cloud
	// Own is the namespace of fairlead-controller, whose networks may name everything.
	Own string
}

// Object is an object of Kuryr.
type Object struct {
	Namespace, Name string
	// Content is the whole object.
	Content map[string]any
}

// Definition is a NetworkAttachmentDefinition.
type Definition struct {
	Namespace, Name string
	// Kuryr is the value of the annotation openstack.org/kuryr-config.
	Kuryr string
}

// Served tells how something of Kuryr is served.
type Served string

const (
	// Yes is by Fairlead.
	Yes Served = "Yes"
	// Other is by another program.
	Other Served = "Other"
	// No is by no program that Fairlead knows.
	No Served = "No"
)

// Plan is the answer for one cluster.
type Plan struct {
	Settings []Setting
	Ports    []Port
	Things   []Thing
	// Trunks and Foreign are nil if OpenStack was not asked.
	Trunks  []Trunk
	Foreign []Foreign
	// Configuration is the part of fairlead-controller's file that follows, in YAML.
	Configuration string
}

// Setting is an option of Kuryr's configuration.
type Setting struct {
	// Name is "group.option".
	Name   string `json:"name"`
	Value  string `json:"value"`
	Served Served `json:"served"`
	// Text has the setting of Fairlead, the other program, or the reason.
	Text string `json:"text"`
}

// Thing is a network, load balancer, policy, definition or project.
type Thing struct {
	// Kind of the object, such as KuryrNetwork.
	Kind string `json:"kind"`
	Name string `json:"name"`
	// Cloud has the IDs of the resources in OpenStack.
	Cloud  string `json:"cloud"`
	Served Served `json:"served"`
	Text   string `json:"text"`
}

// Make makes a plan.
func Make(s State) (Plan, error) {
	p := Plan{Settings: s.settings(), Ports: s.ports(), Things: s.things()}
	if s.Cloud != nil {
		s.Cloud.compare(p.Ports)
		p.Trunks, p.Foreign = s.Cloud.trunks(p.Ports), s.foreign(p.Ports)
	}
	var err error
	p.Configuration, err = s.configuration(p.Ports)
	return p, err
}

// Complete reports whether Fairlead serves everything, and each port could be kept.
func (p Plan) Complete() bool {
	return !slices.ContainsFunc(p.Settings, func(s Setting) bool { return s.Served != Yes }) &&
		!slices.ContainsFunc(p.Things, func(t Thing) bool { return t.Served != Yes }) &&
		!slices.ContainsFunc(p.Ports, func(p Port) bool { return p.Outcome != Adoptable })
}

// alive returns the UIDs of the pods that may have a port, by the UID that CNI sends.
func (s State) alive() map[types.UID]*corev1.Pod {
	out := map[types.UID]*corev1.Pod{}
	for i := range s.Pods {
		if p := &s.Pods[i]; !pod.Finished(p) {
			out[p.UID] = p
			if static := p.Annotations["kubernetes.io/config.mirror"]; static != "" {
				out[types.UID(static)] = p
			}
		}
	}
	return out
}

func byName(a, b Thing) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name)) }
