package migrate

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// makePools plans the pools that do not exist yet. whereabouts has one address space for
// the networks of all namespaces, so a pool is open to the namespaces of all networks
// that it serves. From then on the operator owns the pool.
func (p *planner) makePools() {
	there := map[string]*v1alpha1.IPPool{}
	for i := range p.IPPools {
		there[p.IPPools[i].Name] = &p.IPPools[i]
	}
	planned, namespaces := map[string]v1alpha1.IPPool{}, map[string][]string{}
	for _, n := range p.networks {
		for _, pool := range n.Pools {
			has := there[pool.Name]
			switch {
			case has == nil:
				planned[pool.Name] = pool
				namespaces[pool.Name] = append(namespaces[pool.Name], n.namespace())
			case !p.opens(has, n.namespace()):
				p.note(NotOpened, Refused, pool.Spec.Domain, pool.Name, "the IPPool is there and not open to network %s: have its spec.networkNamespaceSelector select namespace %s", n.Name, n.namespace())
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(planned)) {
		pool, to := planned[name], namespaces[name]
		slices.SortFunc(to, cmp.Compare[string])
		pool.Spec.NetworkNamespaceSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpIn, Values: slices.Compact(to)},
		}}
		p.plan.Pools = append(p.plan.Pools, pool)
	}
}

// opens reports whether networks of a namespace may take addresses from a pool.
func (p *planner) opens(o *v1alpha1.IPPool, namespace string) bool {
	if o.Spec.NetworkNamespaceSelector == nil {
		return false
	}
	match, err := metav1.LabelSelectorAsSelector(o.Spec.NetworkNamespaceSelector)
	return err == nil && match.Matches(labels.Set(p.NamespaceLabels[namespace]))
}
