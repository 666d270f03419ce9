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

// Rules are the operator's rules for the interfaces of pods.
type Rules struct {
	// Default is true if Fairlead obtains the default interface or its addresses;
	// AddressOnly is true if another CNI plugin makes that interface.
	Default, AddressOnly bool
	// Network is the network of the default interfaces that Fairlead attaches, without a
	// Name if they are on pools.
	Network Selection
	// Chosen returns the interfaces for the network that a pod chooses for its default
	// interface. Nil if networks are not read.
	Chosen func(p *corev1.Pod, s Selection) ([]Interface, error)
	// Attaches reports whether Fairlead makes the interfaces of a pod on further networks.
	// Nil: another program makes them.
	Attaches func(p *corev1.Pod) bool
	// Sources of further interfaces, in order.
	Sources []Source
}

// Interfaces returns the interfaces that a pod asks for.
func (r Rules) Interfaces(p *corev1.Pod) ([]Interface, error) {
	every, err := r.every(p)
	if err != nil {
		return nil, err
	}
	all, err := Interfaces(p, every, r.Sources)
	if err == nil && len(all) > 0 {
		err = labelsKept(p)
	}
	if err != nil {
		return nil, err
	}
	return all, nil
}

// every returns the interface that every pod gets: the default one; none if
// another plugin obtains it. A pod may choose another network for it, by the annotation of
// Multus, where Fairlead attaches the pod or another plugin makes the interface.
func (r Rules) every(p *corev1.Pod) ([]Interface, error) {
	if !r.Default {
		return nil, r.chosenOfOthers(p)
	}
	s, chosen, err := Chosen(p)
	switch {
	case err == nil && !chosen && r.Network.Name != "" && r.Attached(p):
		return r.choose(p, r.Network, "defaultNetwork.network")
	case err == nil && !chosen:
		return []Interface{Default(r.AddressOnly)}, nil
	case !r.AddressOnly && !r.Attached(p):
		return nil, fmt.Errorf("annotation %s: %q chooses the network of the default interface, which Fairlead makes here and Multus would make again: remove the annotation, and ask for that network by %s",
			AnnotationDefaultNetwork, p.Annotations[AnnotationDefaultNetwork], AnnotationNetworks)
	case err != nil:
		return nil, err
	case r.Chosen == nil:
		return nil, fmt.Errorf("annotation %s: %q is not read, and the pod would get an address of another network: put npwg into the controller's multiVIFSources",
			AnnotationDefaultNetwork, p.Annotations[AnnotationDefaultNetwork])
	}
	for _, a := range []string{v1alpha1.AnnotationPools, v1alpha1.AnnotationAddresses, v1alpha1.AnnotationClaim} {
		if _, ok := p.Annotations[a]; ok {
			return nil, fmt.Errorf("annotation %s is for the cluster's default network, and %s chooses %s: name pools in that network, and ask for addresses with \"ips\"",
				a, AnnotationDefaultNetwork, s.Network())
		}
	}
	return r.choose(p, s, "annotation "+AnnotationDefaultNetwork)
}

// choose returns the interfaces for the network of the default interface. by names the
// origin of the choice.
func (r Rules) choose(p *corev1.Pod, s Selection, by string) ([]Interface, error) {
	chosen, err := r.Chosen(p, s)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", by, err)
	}
	return chosen, nil
}

// Attached reports whether Fairlead makes the interfaces of a pod on further networks.
func (r Rules) Attached(p *corev1.Pod) bool { return r.Attaches != nil && r.Attaches(p) }

// chosenOfOthers fails if a pod chooses a network for its default interface whose
// addresses are Fairlead's, in a cluster whose default interface Fairlead does not serve.
// All other choices are left to Multus.
func (r Rules) chosenOfOthers(p *corev1.Pod) error {
	s, chosen, err := Chosen(p)
	if err != nil || !chosen || r.Chosen == nil {
		return nil //nolint:nilerr // Multus reads it too and reports the error
	}
	got, err := r.Chosen(p, s)
	if err != nil || len(got) == 0 || got[0].Network == v1alpha1.DefaultNetwork {
		return nil //nolint:nilerr // Multus reports a network that does not exist
	}
	return fmt.Errorf("annotation %s: network %s has its addresses from Fairlead, which serves no default interface here: choose another network, or have the operator set defaultNetwork.binding: addressOnly",
		AnnotationDefaultNetwork, s.Network())
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
