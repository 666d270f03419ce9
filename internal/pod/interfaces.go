package pod

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// Interface is one interface that a pod asks for.
type Interface struct {
	// Name inside the pod. A source may leave it empty: then it becomes
	// net1, net2, ... by its place among the further interfaces.
	Name string
	// Network is "default", or namespace/name of a NetworkAttachmentDefinition.
	Network string
	// Driver that the network names; empty for that of the default network.
	Driver string
	// Default is true for the interface whose addresses are the pod's.
	Default bool
	// AddressOnly is true when another CNI plugin makes the interface.
	AddressOnly bool
	// Pools that it draws from: from the first that serves it, or with EachPool
	// from all of them. Empty takes those of the default network.
	Pools    []string
	EachPool bool
	// Addresses and MAC that the pod asks for.
	Addresses []netip.Addr
	MAC       string
	// Gateways of the network, where it names its own; else those of the pools.
	Gateways []string
	// Routes and DNS of the network, beside those of the pools.
	Routes []v1alpha1.Route
	DNS    *v1alpha1.DNS
}

// Default is the interface on the default network. With addressOnly another CNI
// plugin makes it. It is named as every runtime names it; the node plugs it under
// the name that the runtime says (CNI_IFNAME).
func Default(addressOnly bool) Interface {
	return Interface{Name: v1alpha1.DefaultInterface, Network: v1alpha1.DefaultNetwork, Default: true, AddressOnly: addressOnly}
}

// Source finds further interfaces in a pod: one way of asking for them. It
// returns none for a pod that does not ask in its way.
type Source func(p *corev1.Pod) ([]Interface, error)

var interfaceName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,14}$`)

// Interfaces lists what a pod asks for: what every pod gets, then what each
// source finds, in order.
func Interfaces(p *corev1.Pod, every []Interface, sources []Source) ([]Interface, error) {
	all := slices.Clone(every)
	for _, source := range sources {
		more, err := source(p)
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
	}
	taken := map[string]bool{}
	for i := range all {
		if all[i].Name == "" {
			all[i].Name = fmt.Sprintf("net%d", i+1-len(every))
		}
		name := all[i].Name
		if !interfaceName.MatchString(name) {
			return nil, fmt.Errorf("interface %q for network %q: a name has 1 to 15 of a-z, A-Z, 0-9, '_', '.', '-', and begins with a letter or digit", name, all[i].Network)
		}
		if taken[name] {
			return nil, fmt.Errorf("interface %q for network %q: another interface of the pod has this name", name, all[i].Network)
		}
		taken[name] = true
	}
	return all, nil
}
