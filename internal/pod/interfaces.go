package pod

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// Interface is an interface that a pod requests.
type Interface struct {
	// Name is the name inside the pod. If a source leaves it empty, it becomes net1,
	// net2, ... by its place among the further interfaces; if another interface has this
	// name, the next free one.
	Name string
	// Network is "default", or namespace/name of a NetworkAttachmentDefinition.
	Network string
	// Driver is the driver that the network names; empty means the driver of the default
	// network.
	Driver string
	// Default is true for the interface whose addresses are the pod IPs.
	Default bool
	// AddressOnly is true if another CNI plugin makes the interface.
	AddressOnly bool
	// Pools are the pools of its addresses: the first pool that serves it gives them, or
	// with EachPool every pool gives one. Empty means the pools of the default network.
	Pools    []string
	EachPool bool
	// Addresses and MAC that the pod requests.
	Addresses []netip.Addr
	MAC       string
	// Fixed are addresses that the network names itself, each with its prefix length.
	Fixed []netip.Prefix
	// ClaimReference names the IPAMClaim whose addresses the pod requests; empty for none.
	ClaimReference string
	// Gateways of the network; if empty, the gateways of the pools apply, unless
	// OwnGateways is true: then the interface has no others.
	Gateways    []string
	OwnGateways bool
	// DefaultRoute is true for a further interface that has the pod's default route: the
	// other interfaces have none.
	DefaultRoute bool
	// Routes and DNS of the network, in addition to those of the pools.
	Routes []v1alpha1.Route
	DNS    *v1alpha1.DNS
	// Binding is how the network has the interface plugged; nil is the driver's choice.
	Binding *v1alpha1.Binding
	// Chain are the CNI plugins that the node executes after it has plugged the
	// interface; nil for none.
	Chain *v1alpha1.PluginList
	// MTU in bytes that the network names; 0 for none.
	MTU int32
	// Settings are the settings of a network that its driver alone reads; nil for any other
	// network.
	Settings *Settings
}

// Settings are the settings of a network for its driver. A tenant may have written them.
type Settings struct {
	// Type of the network's plugin; empty if the network has no configuration.
	Type string
	// Plugin is the configuration of the plugin, as compact JSON.
	Plugin string
	// Annotations of the network.
	Annotations map[string]string
}

// Default returns the interface on the default network. If addressOnly is true another
// CNI plugin makes it. It has the name that every runtime uses; the node plugs it under
// the name in CNI_IFNAME.
func Default(addressOnly bool) Interface {
	return Interface{Name: v1alpha1.DefaultInterface, Network: v1alpha1.DefaultNetwork, Default: true, AddressOnly: addressOnly}
}

// Annotated reports whether the annotations of the pod about its pools, addresses and
// claim concern the interface: it is the default interface, on the default network.
func (i *Interface) Annotated() bool { return i.Default && i.Network == v1alpha1.DefaultNetwork }

// Source returns the further interfaces that a pod requests in one particular way; none
// if the pod does not use this way.
type Source func(p *corev1.Pod) ([]Interface, error)

var interfaceName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,14}$`)

// kernelNames are the loopback interface, and the names in net.ipv4.conf that stand for
// every interface.
var kernelNames = []string{"lo", "all", "default"}

// Interfaces returns the interfaces of a pod: the interfaces that every pod gets, then
// those of each source, in order. It returns an error if a name is invalid or not unique,
// or if a source fails.
func Interfaces(p *corev1.Pod, every []Interface, sources []Source) ([]Interface, error) {
	all := slices.Clone(every)
	for _, source := range sources {
		more, err := source(p)
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
	}
	if err := nameAll(all, len(every)); err != nil {
		return nil, err
	}
	if slices.ContainsFunc(all, func(i Interface) bool { return i.DefaultRoute }) {
		for n := range all {
			if i := &all[n]; !i.DefaultRoute && !i.AddressOnly {
				i.Gateways, i.OwnGateways = nil, true
			}
		}
	}
	return all, nil
}

// nameAll checks the names of interfaces, and gives names to the others. The first ones,
// as many as every, are those that every pod gets.
func nameAll(all []Interface, every int) error {
	taken := map[string]bool{}
	for i := range all {
		name := all[i].Name
		if name == "" {
			continue
		}
		if !interfaceName.MatchString(name) {
			return fmt.Errorf("interface %q for network %q: a name has 1 to 15 of a-z, A-Z, 0-9, '_', '.', '-', and begins with a letter or digit", name, all[i].Network)
		}
		if taken[name] {
			return fmt.Errorf("interface %q for network %q: another interface of the pod has this name", name, all[i].Network)
		}
		taken[name] = true
	}
	for i := range all {
		if all[i].Name != "" {
			continue
		}
		for place := i + 1 - every; all[i].Name == "" || taken[all[i].Name]; place++ {
			all[i].Name = fmt.Sprintf("net%d", place)
		}
		taken[all[i].Name] = true
	}
	return nil
}
