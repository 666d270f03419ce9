package multus

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/fairlead/internal/pod"
)

// Switch is the answer for one node.
type Switch struct {
	// Obstacles are the reasons why the node cannot be switched now.
	Obstacles []string
	// Left are pods that run, and whose end leaves something on the node under containerd.
	Left []Left
}

// Left is a pod that Multus has attached.
type Left struct {
	// Pod and Network are namespace/name.
	Pod     string `json:"pod"`
	Network string `json:"network"`
	// Plugins leave something, as Network.Leaves.
	Plugins []string `json:"plugins"`
}

// Switch examines whether Fairlead can attach the pods of a node from now on. daemon is
// true if fairlead-node serves it.
func (p Plan) Switch(s State, node *corev1.Node, daemon bool) Switch {
	var out Switch
	bar := func(format string, args ...any) { out.Obstacles = append(out.Obstacles, fmt.Sprintf(format, args...)) }
	if !daemon {
		bar("fairlead-node does not serve it: there is no NodeNetwork %s", node.Name)
	}
	if !node.Spec.Unschedulable {
		bar("new pods may start on it meanwhile: run kubectl cordon %s first", node.Name)
	}
	for _, setting := range p.Settings {
		if !setting.Served {
			bar("%s of Multus, %q: %s", setting.Name, setting.Value, setting.Text)
		}
	}
	on := podsOn(s, node.Name)
	if len(on.starting) > 0 {
		bar("pods on it are being started: %s: try again when they run", few(on.starting))
	}
	for _, n := range p.Networks {
		pods := on.users[n.Name]
		if n.Served == No && len(pods) > 0 {
			bar("network %s of %s is not served: %s", n.Name, few(pods), n.Reason)
		}
		for _, name := range pods {
			if len(n.Leaves) > 0 {
				out.Left = append(out.Left, Left{Pod: name, Network: n.Name, Plugins: n.Leaves})
			}
		}
	}
	for _, problem := range p.Problems {
		pods := slices.DeleteFunc(slices.Clone(problem.Pods), func(name string) bool { return !on.names[name] })
		if len(pods) > 0 {
			bar("%s: %s", few(pods), problem.Text)
		}
	}
	return out
}

// nodePods are the pods of a node, by namespace/name.
type nodePods struct {
	names map[string]bool
	// users of each network, and pods with networks that are being started; both in order.
	users    map[string][]string
	starting []string
}

func podsOn(s State, node string) nodePods {
	out := nodePods{names: map[string]bool{}, users: map[string][]string{}}
	for p := range s.alive() {
		if p.Spec.NodeName != node {
			continue
		}
		name := p.Namespace + "/" + p.Name
		out.names[name] = true
		selected := selectedBy(p)
		for network := range selected {
			out.users[network] = append(out.users[network], name)
		}
		if len(selected) > 0 && len(p.Status.PodIPs) == 0 && pod.Wants(p) {
			out.starting = append(out.starting, name)
		}
	}
	for _, names := range out.users {
		slices.Sort(names)
	}
	slices.Sort(out.starting)
	return out
}

// maxNamed is the number of pods that an obstacle names.
const maxNamed = 3

// few joins names, and counts those beyond the first ones.
func few(names []string) string {
	if more := len(names) - maxNamed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamed], ", "), more)
	}
	return strings.Join(names, ", ")
}
