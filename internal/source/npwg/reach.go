package npwg

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/run"
	"fairlead.dev/fairlead/internal/whereabouts"
)

// reach lists the pools from which a network with the configuration of whereabouts has
// its addresses (ADR 0013).
type reach struct {
	// pools by name, in the order of the ranges, each once.
	pools []string
	// own are the same pools, if they are written for the network; otherwise empty.
	own []v1alpha1.IPPool
}

// knownPool is an IPPool with its selector of networks parsed.
type knownPool struct {
	*v1alpha1.IPPool
	// match selects the namespaces whose networks may draw from it; nil for none.
	match labels.Selector
}

func newKnownPool(o *v1alpha1.IPPool) knownPool {
	out := knownPool{IPPool: o}
	if spec := o.Spec.NetworkNamespaceSelector; spec != nil {
		// An invalid selector selects nothing; the pool's own status shows the error.
		if match, err := metav1.LabelSelectorAsSelector(spec); err == nil {
			out.match = match
		}
	}
	return out
}

// writtenFor returns the namespace for whose networks the controller wrote the pool;
// empty for a pool that a person wrote.
func (p knownPool) writtenFor() string { return p.Labels[v1alpha1.LabelNetworkNamespace] }

// isOpen reports whether networks of a namespace may draw from an operator's pool.
// Networks of the controller's own namespace may draw from all pools except the default
// network's, which need to be opened to them like to others. No network draws from a pool
// with PerNode placement.
func (n *Networks) isOpen(p knownPool, namespace string) bool {
	if p.Spec.Placement == v1alpha1.PlacementPerNode {
		return false // its blocks are routed, and other plugins' interfaces are not
	}
	if namespace == n.cfg.Namespace && !slices.Contains(n.cfg.DefaultPools, p.Name) {
		return true
	}
	has, ok := n.labels[namespace]
	return ok && p.match != nil && p.match.Matches(labels.Set(has))
}

// reachOf returns the pools of a network of a namespace. n.mu is held.
//
// If the operator has pools of the network's domain, it draws from those that are open to
// its namespace and lie in its ranges. A network_name that names such a domain is refused
// if the domain is not open to the namespace. All other networks have a domain of their
// namespace, with pools that are written for them. Errors: fault.ErrInvalid.
func (n *Networks) reachOf(namespace string, c *whereabouts.Config) (reach, error) {
	domain := whereabouts.Domain(c.NetworkName)
	taken := false
	var open []knownPool
	for _, p := range n.pools {
		if p.Spec.Domain != domain || p.writtenFor() != "" {
			continue
		}
		taken = true
		if n.isOpen(p, namespace) {
			open = append(open, p)
		}
	}
	slices.SortFunc(open, func(a, b knownPool) int { return strings.Compare(a.Name, b.Name) })
	pools, missing := choosePools(*c, domain, open)
	switch {
	case missing == nil:
		return reach{pools: pools}, nil
	case taken && c.NetworkName != "":
		return reach{}, fmt.Errorf("%w: ipam.network_name: %q is the operator's domain %s, and none of its IPPools that lie in range %s is open to networks of namespace %s: "+
			"the operator opens one by spec.networkNamespaceSelector; or choose another network_name", fault.ErrInvalid, c.NetworkName, domain, missing.Prefix, namespace)
	}
	if err := n.apartFromDefault(c); err != nil {
		return reach{}, err
	}
	var out reach
	for _, pool := range whereabouts.Pools(*c, whereabouts.NamespaceDomain(namespace, c.NetworkName)) {
		pool.Labels[run.LabelManagedBy] = run.ManagedBy // for people to find it
		pool.Labels[v1alpha1.LabelNetworkNamespace] = namespace
		out.pools, out.own = append(out.pools, pool.Name), append(out.own, pool)
	}
	return out, nil
}

// choosePools chooses a pool for each range: the pool written with the same
// configuration, otherwise the first by name that lies in the range. missing is a range
// without a pool; nil if every range has one.
func choosePools(c whereabouts.Config, domain string, open []knownPool) (pools []string, missing *whereabouts.Range) {
	for i := range c.Ranges {
		r := &c.Ranges[i]
		same := whereabouts.PoolOf(c, *r, domain).Name
		name := ""
		for _, p := range open {
			if (name == "" || p.Name == same) && r.Holds(p.Spec) {
				name = p.Name
			}
		}
		if name == "" {
			return nil, r
		}
		if !slices.Contains(pools, name) {
			pools = append(pools, name)
		}
	}
	return pools, nil
}

// apartFromDefault refuses ranges that overlap with the default network: a pod would have
// two interfaces on which it looks for the same peers. Errors: fault.ErrInvalid.
func (n *Networks) apartFromDefault(c *whereabouts.Config) error {
	for _, name := range n.cfg.DefaultPools {
		p, ok := n.pools[name]
		if !ok {
			continue
		}
		for i := range c.Ranges {
			if c.Ranges[i].Overlaps(p.Spec) {
				return fmt.Errorf("%w: ipam.range: %s has addresses of the cluster's default network: choose another range, or ask the operator to open that network's IPPool by spec.networkNamespaceSelector",
					fault.ErrInvalid, c.Ranges[i].Prefix)
			}
		}
	}
	return nil
}
