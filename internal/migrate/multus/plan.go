// Package multus plans the migration from Multus to Fairlead: how each network will be
// served, and which parts of Multus' configuration and of the pods' annotations have another
// effect. It is pure: its input is the state of a cluster. Package apply beside it reads the
// cluster and labels nodes.
package multus

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/fairlead/internal/pod"
)

// State is the input of a plan.
type State struct {
	// Config of Multus; nil if it is not known.
	Config *Config
	// Networks are all NetworkAttachmentDefinitions.
	Networks []Definition
	// Pods of the cluster.
	Pods []corev1.Pod
	// Own is the namespace of fairlead-controller, whose networks may use all parts of the
	// nodes.
	Own string
	// FlatFile is the content of the nodes' whereabouts.conf, and may be empty.
	FlatFile []byte
}

// Definition is a NetworkAttachmentDefinition.
type Definition struct {
	Namespace, Name string
	// Config is spec.config.
	Config string
	// Driver is the value of the annotation fairlead.dev/driver; empty if it has none.
	Driver string
	// Resource is the device plugin's resource that the network names; empty for none.
	Resource string
}

// Plan is the answer for one cluster.
type Plan struct {
	// Settings are the options of Multus that matter.
	Settings []Setting
	// Networks in the order of their names.
	Networks []Network
	// Problems are requests of pods that would fail.
	Problems []Problem
	// Configuration is the part of fairlead-controller's file that follows, in YAML.
	Configuration string
	// Pools are IPPools and IPReservations in place of host-local, in YAML; empty if no
	// network uses host-local.
	Pools string
}

// Make makes a plan.
func Make(s State) (Plan, error) {
	p := Plan{Settings: s.settings()}
	p.Networks = s.networks()
	p.Problems = s.problems(p.Networks)
	var err error
	if p.Configuration, err = s.configuration(p.Networks); err != nil {
		return Plan{}, err
	}
	p.Pools, err = s.pools(p.Networks)
	return p, err
}

// Served reports whether Fairlead serves everything: each setting, network and pod.
func (p Plan) Served() bool {
	return len(p.Problems) == 0 &&
		!slices.ContainsFunc(p.Settings, func(s Setting) bool { return !s.Served }) &&
		!slices.ContainsFunc(p.Networks, func(n Network) bool { return n.Served == No })
}

// networks judges all networks.
func (s State) networks() []Network {
	out := make([]Network, 0, len(s.Networks))
	for _, d := range s.Networks {
		out = append(out, classify(d, s.FlatFile))
	}
	slices.SortFunc(out, func(a, b Network) int { return cmp.Compare(a.Name, b.Name) })
	users := map[string]int{}
	for p := range s.alive() {
		for network := range selectedBy(p) {
			users[network]++
		}
	}
	for i := range out {
		out[i].Pods = users[out[i].Name]
	}
	return out
}

// alive yields the pods for which a runtime calls CNI, or has called it.
func (s State) alive() func(yield func(*corev1.Pod) bool) {
	return func(yield func(*corev1.Pod) bool) {
		for i := range s.Pods {
			p := &s.Pods[i]
			if p.Spec.HostNetwork || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
				continue
			}
			if !yield(p) {
				return
			}
		}
	}
}

// selectedBy returns the names of the networks that a pod selects. Annotations that cannot
// be parsed select none.
func selectedBy(p *corev1.Pod) map[string]bool {
	out := map[string]bool{}
	selected, _ := pod.Networks(p)
	for _, s := range selected {
		out[s.Network()] = true
	}
	if s, chosen, err := pod.Chosen(p); err == nil && chosen {
		out[s.Network()] = true
	}
	return out
}
