// Package nad parses NetworkAttachmentDefinitions (NPWG multi-network specification 1.3):
// the addresses that Fairlead gives, the interface that Fairlead plugs itself, and the
// plugins that a node executes. Pure functions; no I/O.
package nad

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/whereabouts"
)

// Kind is the kind of NetworkAttachmentDefinitions in the API.
var Kind = schema.GroupVersionKind{Group: "k8s.cni.cncf.io", Version: "v1", Kind: "NetworkAttachmentDefinition"}

// Values of ipam.type, in addition to whereabouts.Type.
const (
	// Type is the ipam.type of Fairlead.
	Type = "fairlead-ipam"
	// StaticType is the ipam.type of addresses that stand in the configuration.
	StaticType = "static"
)

// Network is a parsed NetworkAttachmentDefinition.
type Network struct {
	// Name of the configuration; empty if it has none. The caller then sets the name of
	// the object.
	Name string
	// CNIVersion is the highest version of the configuration that Fairlead knows.
	CNIVersion string
	// Type of the first plugin.
	Type string

	// IPAM is the ipam.type: Type, whereabouts.Type, StaticType, or the type of another
	// plugin; empty if there is none.
	IPAM string
	// Pools of fairlead-ipam, in order: the first pool that serves an interface gives its
	// addresses. Empty means the pools of the default network.
	Pools []string
	// Routes of fairlead-ipam, in addition to those of the pools. They are set only with a
	// Binding: otherwise the plugin of the network adds them.
	Routes []v1alpha1.Route
	// Whereabouts is the configuration of whereabouts, in which an interface gets an
	// address of each range; nil for other types.
	Whereabouts *whereabouts.Config
	// Static are the addresses of the configuration; nil for other types, and without a
	// Binding.
	Static *Static

	// Binding is how the node plugs an interface, if Fairlead serves the first plugin in
	// process; nil if it does not.
	Binding *v1alpha1.Binding
	// MTU in bytes that the first plugin names; 0 for none.
	MTU int32
	// DNS of the first plugin, or else of fairlead-ipam; nil means the DNS of the
	// addresses. It is set only with a Binding.
	DNS *v1alpha1.DNS
	// Chain are the configurations of the plugins after the first, as compact JSON, that
	// the node executes after it has plugged the interface. It is set only with a Binding.
	Chain []string
	// Plugins are the configurations of all plugins, as compact JSON, of a delegated
	// network.
	Plugins []string

	// Refused is the reason why Fairlead does not attach pods to the network, neither in
	// process nor by executing plugins: an option that is not served, or a wrong value.
	// Binding and Plugins are then empty. The addresses do not depend on it, because
	// another program may attach the pods.
	Refused error
	// Warnings describe the options of the addresses that Fairlead treats differently.
	Warnings []string
	// Ignored describe the options that have no effect if Fairlead attaches the pods.
	Ignored []string

	capabilities map[string]bool
	needs        []Need
}

// Served reports whether Fairlead gives the network's addresses.
func (n Network) Served() bool { return n.IPAM == Type || n.IPAM == whereabouts.Type }

// Delegated reports whether executed plugins make the interfaces of the network.
func (n Network) Delegated() bool { return len(n.Plugins) > 0 }

// Capabilities returns the capabilities for which a pod can have arguments. The first
// plugin has mac (not ipvlan, whose interfaces have the MAC of their parent) and ips (with
// addresses of Fairlead or static ones) if Fairlead serves it in process. An executed
// plugin has those that its configuration declares.
func (n Network) Capabilities() map[string]bool { return maps.Clone(n.capabilities) }

// Parse parses spec.config. Options that a configuration of whereabouts does not set come
// from flat, the content of its flat file, which may be empty. An error is about the JSON
// or the addresses, and names the field, the value and the accepted form. Any other error
// is in Refused. Network is empty if spec.config is empty, because the configuration is
// then a file on the nodes.
func Parse(config string, flat []byte) (Network, error) { return ParseWithResource(config, flat, "") }

// ParseWithResource is Parse for a network with the annotation AnnotationResource, which
// names the resource of its devices; empty for none.
func ParseWithResource(config string, flat []byte, resource string) (Network, error) {
	if len(config) > maxConfig {
		return Network{}, fmt.Errorf("network configuration: %d bytes: at most %d", len(config), maxConfig)
	}
	section, err := Section([]byte(config))
	if err != nil || strings.TrimSpace(config) == "" {
		return Network{}, err
	}
	n, err := addresses(section, flat)
	if err != nil {
		return Network{}, err
	}
	if refused := n.attach(config, section, resource); refused != nil {
		return Network{
			Name: n.Name, CNIVersion: n.CNIVersion, Type: n.Type, IPAM: n.IPAM, Pools: n.Pools, Whereabouts: n.Whereabouts,
			Refused: fmt.Errorf("network configuration: %w", refused), Warnings: n.Warnings, Ignored: n.Ignored,
		}, nil
	}
	return n, nil
}

// attach sets how pods are attached. An error names each wrong option.
func (n *Network) attach(config string, section []byte, resource string) error {
	l, err := readList([]byte(config))
	n.Name, n.CNIVersion = l.name, l.version
	if len(l.plugins) > 0 {
		n.Type = l.plugins[0].kind
	}
	if err != nil {
		return err
	}
	n.Ignored = l.ignored
	n.capabilities = map[string]bool{}
	executed := l.plugins
	k, ok := kinds[n.Type]
	ok = ok && n.inProcess(l.plugins[0], section)
	if err := n.checkResource(resource, ok && k.device); err != nil {
		return err
	}
	if ok {
		if err := n.serve(k, l.plugins[0], resource); err != nil {
			return err
		}
		executed = l.plugins[1:]
	}
	texts, err := n.execute(executed)
	if err != nil {
		return err
	}
	if n.Binding != nil {
		n.Chain = texts
	} else {
		n.Plugins = texts
	}
	n.needs = sorted(n.needs)
	return nil
}

// inProcess reports whether the addresses of the first plugin are those of Fairlead,
// static, or none. If only a later plugin has an ipam section, its addresses are those of
// the network, so all plugins have to be executed.
func (n *Network) inProcess(first plugin, section []byte) bool {
	return section == nil || string(first.ipam) == string(section) && n.fixed()
}

// fixed reports whether the addresses are known before a plugin is executed.
func (n *Network) fixed() bool { return n.Served() || n.IPAM == StaticType }

// serve reads the options of the first plugin as Fairlead serves them.
func (n *Network) serve(k kind, first plugin, resource string) error {
	r := &reader{plugin: first, resource: resource}
	n.Ignored = append(n.Ignored, r.unknown("", first.text, slices.Concat(k.options, commonOptions))...)
	r.reserved(k.device)
	n.Ignored = append(n.Ignored, r.readIPAM(n)...)
	if !r.ok() {
		return r.err()
	}
	binding := k.read(r, n)
	r.resolve(n)
	if !r.ok() {
		return r.err()
	}
	n.Binding, n.needs = &binding, bindingNeeds(binding)
	if !k.parentsMAC {
		n.capabilities["mac"] = true
	}
	if n.fixed() {
		n.capabilities["ips"] = true
	}
	return nil
}

// execute returns the texts of plugins that a node executes.
func (n *Network) execute(plugins []plugin) ([]string, error) {
	var texts []string
	for _, p := range plugins {
		r := &reader{plugin: p}
		r.reserved(false)
		if !r.ok() {
			return nil, r.err()
		}
		texts = append(texts, string(p.text))
		for name, declared := range p.capabilities {
			if declared {
				n.capabilities[name] = true
			}
		}
		n.needs = append(n.needs, executedNeeds(p)...)
	}
	return texts, nil
}
