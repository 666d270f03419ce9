package multus

import (
	"encoding/json"
	"slices"
	"strings"
	"unicode"

	"fairlead.dev/fairlead/internal/nad"
)

// Ways in which Fairlead serves a network.
const (
	// InProcess means that the node daemon makes the interface itself.
	InProcess = "InProcess"
	// Executed means that the node daemon executes the network's plugins.
	Executed = "Executed"
	// Driver means that a driver of the controller provides the interface.
	Driver = "Driver"
	// No means that pods with the network do not start.
	No = "No"
)

// hostLocal is the ipam.type of addresses in files of a node.
const hostLocal = "host-local"

// Network is a network and how it will be served.
type Network struct {
	// Name is namespace/name.
	Name string `json:"name"`
	// Type of the first plugin, and its ipam.type.
	Type string `json:"type"`
	IPAM string `json:"ipam"`
	// Served is one of the constants above.
	Served string `json:"served"`
	// Plugins are the types of plugins that nodes execute: they must be on the nodes.
	Plugins []string `json:"plugins"`
	// Reason why it is not served; empty if it is.
	Reason string `json:"reason,omitempty"`
	// Remarks are options that have another effect, or none.
	Remarks []string `json:"remarks"`
	// Leaves are the plugins that leave something on the node if the runtime does not call
	// Multus for the end of a pod, as containerd after the switch.
	Leaves []string `json:"leaves"`
	// Pods counts the pods that select it.
	Pods int `json:"pods"`

	namespace, config string
	driver            string
	parsed            nad.Network
}

// classify classifies one network.
func classify(d Definition, flat []byte) Network {
	out := Network{
		Name: d.Namespace + "/" + d.Name, Served: No, Plugins: []string{}, Remarks: []string{}, Leaves: []string{},
		namespace: d.Namespace, config: d.Config, driver: d.Driver,
	}
	n, err := nad.ParseWithResource(d.Config, flat, d.Resource)
	out.parsed, out.Type, out.IPAM = n, printable(n.Type), printable(n.IPAM)
	for _, remark := range slices.Concat(n.Warnings, n.Ignored) {
		out.Remarks = append(out.Remarks, printable(remark))
	}
	for _, plugin := range leaves(d.Config) {
		out.Leaves = append(out.Leaves, printable(plugin))
	}
	byDriver := err == nil && n.Type == "" && d.Driver != ""
	if err == nil && !byDriver {
		err = n.Attachable(nad.Selected{})
	}
	switch {
	case byDriver:
		out.Served = Driver
	case err != nil:
		out.Reason = printable(err.Error())
	case slices.Contains(n.Reach(), nad.Need{Kind: nad.NeedParent}):
		out.Reason = "master: not set: the plugin would use the link of the node's default route: name the link"
	case n.Binding != nil:
		out.Served, out.Plugins = InProcess, executed(n)
	default:
		out.Served, out.Plugins = Executed, executed(n)
	}
	return out
}

// printable returns a text of a tenant as one line that a terminal can show.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, strings.ReplaceAll(text, "\n", "; "))
}

// executed returns the types of the plugins that nodes execute for a network. A network that
// is served in process may need its own type opened.
func executed(n nad.Network) []string {
	out := []string{}
	for _, need := range n.Reach() {
		if need.Kind == nad.NeedPlugin && (n.Binding == nil || need.Name != n.Type) {
			out = append(out, need.Name)
		}
	}
	return out
}

// lasting are the reference plugins that leave nothing when a network namespace ends, and
// the plugins whose addresses Fairlead takes back by itself.
var lasting = []string{"bridge", "macvlan", "ipvlan", "vlan", "host-device", "dummy", "static", "tuning", "sbr", "vrf", nad.Type, "whereabouts"}

// leaves returns the plugins of a configuration that leave something on the node without a
// DEL: files of addresses, rules of the packet filter, settings of a device.
func leaves(config string) []string {
	type plugin struct {
		Type   string `json:"type"`
		IPMasq any    `json:"ipMasq"`
		IPAM   struct {
			Type string `json:"type"`
		} `json:"ipam"`
	}
	var o struct {
		plugin
		Plugins []plugin `json:"plugins"`
	}
	var out []string
	if json.Unmarshal([]byte(config), &o) != nil {
		return nil // it is not served either
	}
	for _, p := range append(o.Plugins, o.plugin) {
		if p.Type != "" && (!slices.Contains(lasting, p.Type) || p.IPMasq == true) {
			out = append(out, p.Type)
		}
		if p.IPAM.Type != "" && !slices.Contains(lasting, p.IPAM.Type) {
			out = append(out, p.IPAM.Type)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
