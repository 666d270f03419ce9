// Package choice combines the settings of a network, the annotations of a pod and its namespace, and
// the configuration into the settings of a port of Neutron. The operator opens the things that
// tenants may name.
package choice

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/pod"
)

// Kinds of things in OpenStack that an operator opens to namespaces.
const (
	KindNetwork = "network"
	KindSubnet  = "subnet"
	KindGroup   = "security group"
	KindQoS     = "QoS policy"
	KindProject = "project"
	// KindNoSecurity is a port without port security. It has no name.
	KindNoSecurity = "port security off"
)

// Opening opens things in OpenStack to some namespaces. Names may be patterns (path.Match),
// and are compared with the name or the ID that a tenant writes.
type Opening struct {
	// Namespaces selects the namespaces by label.
	Namespaces labels.Selector
	// Names by kind.
	Names map[string][]string
	// NoSecurity opens KindNoSecurity.
	NoSecurity bool
}

func (o Opening) opens(namespace map[string]string, n need) bool {
	if !o.Namespaces.Matches(labels.Set(namespace)) {
		return false
	}
	if n.kind == KindNoSecurity {
		return o.NoSecurity
	}
	return slices.ContainsFunc(o.Names[n.kind], func(pattern string) bool {
		ok, err := path.Match(pattern, n.name)
		return err == nil && ok
	})
}

// NodeSubnets are subnets, in names or IDs, for the pods of some nodes in place of those of
// the default network.
type NodeSubnets struct {
	// Nodes selects the nodes by label.
	Nodes   labels.Selector
	Subnets []string
}

// Config has what the operator chooses.
type Config struct {
	// Namespace of the controller. Its networks may use all of the cloud.
	Namespace string
	// Default are the settings of the default network.
	Default Settings
	// NodeSubnets are the subnets of the default network for the pods of some nodes.
	NodeSubnets []NodeSubnets
	// Project of the ports; empty for that of the credentials.
	Project string
	// Open lists what tenants may name.
	Open []Opening
}

// subnetsOf returns the subnets of the default network for the pods of a node: those of the
// first entry that selects it. Errors: fault.ErrUnavailable while its labels are not known.
func (c Config) subnetsOf(r *driver.Request) ([]string, error) {
	if len(c.NodeSubnets) > 0 && r.NodeLabels == nil {
		return nil, fmt.Errorf("%w: the labels of Node %s are not known yet", fault.ErrUnavailable, r.NodeName)
	}
	for _, n := range c.NodeSubnets {
		if n.Nodes.Matches(labels.Set(r.NodeLabels)) {
			return n.Subnets, nil
		}
	}
	return c.Default.Subnets, nil
}

// need is a thing in OpenStack that a tenant names in a field.
type need struct{ kind, field, name string }

// permit returns nil if a namespace may use everything that it names. named describes
// the namespace for people: "networks of namespace blue". known are the namespace's labels; nil while
// they are not known. Errors: fault.ErrInvalid, fault.ErrUnavailable.
func permit(open []Opening, named string, known map[string]string, needs []need) error {
	if len(needs) > 0 && known == nil {
		return fmt.Errorf("%w: the labels for %s are not known yet", fault.ErrUnavailable, named)
	}
	var missing []string
	for _, n := range needs {
		if !slices.ContainsFunc(open, func(o Opening) bool { return o.opens(known, n) }) {
			missing = append(missing, fmt.Sprintf("%s: %s %q", n.field, n.kind, n.name))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s may not use %s: ask the operator to open it (openstack.open of fairlead-controller)", fault.ErrInvalid, named, strings.Join(missing, ", "))
}

// Asks has the wishes of a pod and its network (driver.Networks.Read).
type Asks struct {
	Settings
	// PodGroups are those of the pod's annotation; nil without one.
	PodGroups []string
	// Machine is set for an interface that a virtual machine has to itself: its port stays
	// with the machine in a live migration.
	Machine *pod.Launcher
}

// Read is driver.Networks.Read: it returns Asks. Errors: fault.ErrInvalid.
func (c Config) Read(p *corev1.Pod, i *pod.Interface) (any, error) {
	var (
		a   Asks
		err error
	)
	switch {
	case i.Binding != nil || i.AddressOnly:
		return nil, fmt.Errorf("%w: network %s: another plugin makes its interfaces: driver neutron makes its own, from ports of Neutron: write the network as type %s", fault.ErrInvalid, i.Network, Type)
	case i.Settings != nil:
		if a.Settings, err = parse(i.Settings); err != nil {
			return nil, fmt.Errorf("%w: NetworkAttachmentDefinition %s: %w", fault.ErrInvalid, i.Network, err)
		}
	case i.Network != v1alpha1.DefaultNetwork || !i.Default:
		return nil, fmt.Errorf("%w: network %s: driver neutron has no pools to choose from: use a network of type %s", fault.ErrInvalid, i.Network, Type)
	case c.Default.Network == "" && len(c.Default.Subnets) == 0:
		return nil, fmt.Errorf("%w: openstack.ports.network of fairlead-controller is empty: the operator names the network of the default interfaces there", fault.ErrInvalid)
	}
	if l, ok := pod.LauncherOf(p); ok {
		if _, bridged := p.Annotations[pod.AnnotationBridged]; bridged || !i.Default {
			a.Machine = &l
		}
	}
	if !i.Annotated() {
		return a, nil
	}
	for _, other := range []string{v1alpha1.AnnotationPools, v1alpha1.AnnotationClaim} {
		if _, ok := p.Annotations[other]; ok {
			return nil, fmt.Errorf("%w: annotation %s: the default network here has ports of Neutron, and neither pools nor claims: remove the annotation", fault.ErrInvalid, other)
		}
	}
	a.PodGroups, err = groupsOf("annotation "+v1alpha1.AnnotationSecurityGroups, p.Annotations)
	return a, err
}

func groupsOf(of string, annotations map[string]string) ([]string, error) {
	text, ok := annotations[v1alpha1.AnnotationSecurityGroups]
	if !ok {
		return nil, nil
	}
	groups, err := names(text)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", fault.ErrInvalid, of, err)
	}
	return groups, nil
}

// Choice has the settings of a port, in names or IDs.
type Choice struct {
	Settings
	// NoSecurity is true for a port without port security.
	NoSecurity bool
	// PodDNS is true if the port has the name of the pod in the DNS of Neutron.
	PodDNS bool
	// Machine is true if the port stays with a virtual machine, and so is none of a pool.
	Machine bool
	// Asked is true if the network or the pod asks for what only the port of a pod can
	// enforce: groups, a QoS policy, no port security.
	Asked bool
}

// ofNetwork returns the choice with the settings of a request's network.
func (c Config) ofNetwork(r *driver.Request, a Asks) (Choice, error) {
	if r.Network != v1alpha1.DefaultNetwork {
		return Choice{Settings: a.Settings}, c.permitNetwork(r, a.Settings)
	}
	out := Choice{Settings: c.Default}
	var err error
	out.Subnets, err = c.subnetsOf(r)
	return out, err
}

// Choose returns the choice for a request. Each of its parts is the first of these that is set:
// the settings of the network, the annotation of the pod, that of its namespace, and the
// configuration. A tenant's part has to be open to her namespace. Errors:
// fault.ErrInvalid, fault.ErrUnavailable.
func (c Config) Choose(r *driver.Request, a Asks) (Choice, error) {
	out, err := c.ofNetwork(r, a)
	if err != nil {
		return Choice{}, err
	}
	var byNamespace []need
	if project := r.NamespaceAnnotations[pod.AnnotationProject]; project != "" && a.Project == "" {
		out.Project = project
		byNamespace = append(byNamespace, need{KindProject, "annotation " + pod.AnnotationProject, project})
	}
	groups, field, err := groupsFor(r, a)
	if err != nil {
		return Choice{}, err
	}
	for _, g := range groups {
		byNamespace = append(byNamespace, need{KindGroup, field, g})
	}
	if groups != nil {
		out.Groups = groups
	}
	if err := permit(c.Open, "pods of namespace "+r.Namespace, r.NamespaceLabels, byNamespace); err != nil {
		return Choice{}, err
	}
	out.Machine = a.Machine != nil
	out.Asked = groups != nil || r.Network != v1alpha1.DefaultNetwork && (a.Groups != nil || a.QoSPolicy != "" || a.PortSecurity != nil)
	out.Project = cmp.Or(out.Project, c.Project)
	out.NoSecurity = out.unprotected()
	out.PodDNS = out.DNSName != nil && *out.DNSName
	switch {
	case out.NoSecurity:
		out.Groups = []string{} // Neutron refuses groups on such a port
	case out.Groups == nil:
		out.Groups = c.Default.Groups
	}
	if out.Network == "" && len(out.Subnets) == 0 {
		return Choice{}, fmt.Errorf("%w: NetworkAttachmentDefinition %s: network: absent: must be the name or ID of a network in OpenStack", fault.ErrInvalid, r.Network)
	}
	return out, nil
}

// groupsFor returns the groups that the annotation of a pod or of its namespace names for a
// default interface, with the field that names them; nil if there are none.
func groupsFor(r *driver.Request, a Asks) (groups []string, field string, err error) {
	field = "annotation " + v1alpha1.AnnotationSecurityGroups
	if r.Network != v1alpha1.DefaultNetwork || !r.Default || a.PodGroups != nil {
		return a.PodGroups, field, nil
	}
	field += " of the namespace"
	groups, err = groupsOf(field, r.NamespaceAnnotations)
	return groups, field, err
}

// permitNetwork returns nil if the namespace of a network may use all that the network
// names. The subnets of a network are open with it. Networks of the controller's own
// namespace may use all.
func (c Config) permitNetwork(r *driver.Request, s Settings) error {
	namespace, _, _ := strings.Cut(r.Network, "/")
	if namespace == c.Namespace {
		return nil
	}
	var needs []need
	add := func(kind, field string, names ...string) {
		for _, n := range names {
			if n != "" {
				needs = append(needs, need{kind, field, n})
			}
		}
	}
	add(KindNetwork, "network", s.Network)
	if s.Network == "" {
		add(KindSubnet, "subnets", s.Subnets...)
	}
	add(KindGroup, "securityGroups", s.Groups...)
	add(KindQoS, "qosPolicy", s.QoSPolicy)
	add(KindProject, "project", s.Project)
	if s.unprotected() {
		needs = append(needs, need{KindNoSecurity, "portSecurity", "false"})
	}
	return permit(c.Open, "networks of namespace "+namespace, r.NetworkLabels, needs)
}
