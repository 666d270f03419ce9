package sim

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/pod"
)

// shape describes the pools of a simulation.
type shape struct {
	// fallback are the pools of the default network, in order: the second serves the pods
	// that the first cannot.
	fallback []v1alpha1.IPPoolSpec
	// further is the pool of a second network, which every third pod has; nil for none.
	further *v1alpha1.IPPoolSpec
	// asks is true if pods have claims and request addresses, and people write claims and
	// reservations.
	asks bool
	// unordered is true if pods that one write wakes may go on to another block at once,
	// for the second family or for a lower address. Go's scheduler decides which pod is
	// first, under the race detector at random.
	unordered bool
}

// shapes are all small, so that pods compete and addresses return.
var shapes = []shape{
	{fallback: []v1alpha1.IPPoolSpec{{Ranges: []string{"10.1.0.0/27"}, Gateways: []string{"10.1.0.1"}, Excludes: []string{"10.1.0.8/30"}}}},
	// Pools that are sticky for unlike pods, and overlap.
	{
		fallback: []v1alpha1.IPPoolSpec{
			{Ranges: []string{"10.1.0.0/27"}, Sticky: v1alpha1.StickyStatefulSet, Cooldown: &metav1.Duration{Duration: 5 * time.Second}},
			{Ranges: []string{"10.1.0.24-10.1.0.40"}, Sticky: v1alpha1.StickyVirtualMachine, Excludes: []string{"10.1.0.26"}},
		},
		asks: true,
	},
	{fallback: []v1alpha1.IPPoolSpec{{
		Ranges: []string{"10.1.0.50-10.1.0.80"}, Excludes: []string{"10.1.0.64"},
		Order: v1alpha1.Order(ipam.Lowest), Cooldown: &metav1.Duration{Duration: 5 * time.Second},
	}}, unordered: true},
	// Claims of both families, on two networks.
	{
		fallback: []v1alpha1.IPPoolSpec{{Ranges: []string{"10.1.0.0/26", "fd00:1::10-fd00:1::30"}, Sticky: v1alpha1.StickyStatefulSet}},
		further:  &v1alpha1.IPPoolSpec{Ranges: []string{"10.2.0.1-10.2.0.12"}, UseEdges: true, Sticky: v1alpha1.StickyVirtualMachine},
		asks:     true, unordered: true,
	},
	{fallback: []v1alpha1.IPPoolSpec{{Ranges: []string{"10.1.0.0/24"}, Placement: v1alpha1.PlacementPerNode}}},
	{fallback: []v1alpha1.IPPoolSpec{{Ranges: []string{"10.1.0.0/27", "fd00:1::/122"}, Gateways: []string{"10.1.0.1", "fd00:1::1"}}}},
	{fallback: []v1alpha1.IPPoolSpec{{Ranges: []string{"fd00:1::/64"}, Excludes: []string{"fd00:1::/127"}}}},
	// The second family is the scarce one.
	{
		fallback:  []v1alpha1.IPPoolSpec{{Ranges: []string{"10.1.0.0/26", "fd00:1::10-fd00:1::1a"}, Cooldown: &metav1.Duration{Duration: 5 * time.Second}}},
		unordered: true,
	},
	// Two pools that overlap, and a second network that runs out.
	{
		fallback: []v1alpha1.IPPoolSpec{{Ranges: []string{"10.1.0.0/28"}}, {Ranges: []string{"10.1.0.8-10.1.0.30"}, Excludes: []string{"10.1.0.20"}}},
		further:  &v1alpha1.IPPoolSpec{Ranges: []string{"10.2.0.1-10.2.0.5"}, UseEdges: true, Cooldown: &metav1.Duration{Duration: 5 * time.Second}},
	},
	// Virtual machines that migrate.
	{
		fallback: []v1alpha1.IPPoolSpec{{Ranges: []string{"10.1.0.0/27"}, Sticky: v1alpha1.StickyVirtualMachine, Cooldown: &metav1.Duration{Duration: 5 * time.Second}}},
		asks:     true,
	},
}

// pools is the checks' knowledge of the pools.
type pools struct {
	all []*ipam.Pool
	// fallback and second are names of pools; second is empty for none.
	fallback []string
	second   string
	// sticky is the kind of pods to which a pool gives claims.
	sticky map[string]v1alpha1.Sticky
	// asks is that of the shape. covered are all addresses in a range, if asks is set.
	asks    bool
	covered []netip.Addr
}

func (w *simulation) makePools(s shape) error {
	w.pools.asks, w.pools.sticky = s.asks, map[string]v1alpha1.Sticky{}
	add := func(name string, spec v1alpha1.IPPoolSpec) error {
		if _, err := w.api.create(&v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}); err != nil {
			return err
		}
		p, err := parse(name, spec)
		w.pools.all = append(w.pools.all, p)
		w.pools.sticky[name] = spec.Sticky
		return err
	}
	for i, spec := range s.fallback {
		name := fmt.Sprintf("pool-%d", i)
		w.pools.fallback = append(w.pools.fallback, name)
		if err := add(name, spec); err != nil {
			return err
		}
	}
	if s.further != nil {
		w.pools.second = "second"
		if err := add(w.pools.second, *s.further); err != nil {
			return err
		}
	}
	if s.asks {
		w.pools.list("10.1.0.0", "10.2.0.0", "fd00:1::")
	}
	return nil
}

// list notes the addresses that the pools cover in the blocks of these first addresses.
func (p *pools) list(blocks ...string) {
	for _, first := range blocks {
		for _, a := range ipam.Addrs(ipam.BlockOf(netip.MustParseAddr(first))) {
			if slices.ContainsFunc(p.all, func(o *ipam.Pool) bool { return o.Covers(a) }) {
				p.covered = append(p.covered, a)
			}
		}
	}
}

func parse(name string, s v1alpha1.IPPoolSpec) (*ipam.Pool, error) {
	p := ipam.PoolSpec{
		Name: name, Ranges: s.Ranges, Excludes: s.Excludes, Gateways: s.Gateways, UseEdges: s.UseEdges,
		Order: ipam.Order(s.Order), PerNode: s.Placement == v1alpha1.PlacementPerNode, MaxBlocksPerNode: int(s.MaxBlocksPerNode),
	}
	if s.Cooldown != nil {
		p.Cooldown = s.Cooldown.Duration
	}
	return ipam.ParsePool(p)
}

// further returns the second interface that a pod asks for, if any.
func (p *pools) further(o *corev1.Pod) ([]pod.Interface, error) {
	if !p.hasSecond(o.Name) {
		return nil, nil
	}
	return []pod.Interface{{Name: "net1", Network: namespace + "/second", Pools: []string{p.second}}}, nil
}

// hasSecond reports whether a pod of this name has the second network.
func (p *pools) hasSecond(name string) bool {
	return p.second != "" && strings.IndexByte("0369", name[len(name)-1]) >= 0
}

func (p *pools) pool(name string) *ipam.Pool {
	i := slices.IndexFunc(p.all, func(o *ipam.Pool) bool { return o.Name() == name })
	if i < 0 {
		return nil
	}
	return p.all[i]
}

// allow reports whether a pool hands out an address.
func (p *pools) allow(a netip.Addr) bool {
	return slices.ContainsFunc(p.all, func(o *ipam.Pool) bool { return o.Allows(a) })
}

// both reports whether one pool hands out two addresses.
func (p *pools) both(a, b netip.Addr) bool {
	return slices.ContainsFunc(p.all, func(o *ipam.Pool) bool { return o.Allows(a) && o.Allows(b) })
}

// usable returns how many pods the default network has room for, at least.
func (p *pools) usable() uint64 {
	n := uint64(0)
	for _, name := range p.fallback {
		n = max(n, p.pool(name).Usable())
	}
	return n
}

// parts reports whether the addresses of a pod may need more than one write.
func (p *pools) parts() bool {
	return p.second != "" || slices.ContainsFunc(p.all, func(o *ipam.Pool) bool { return len(o.Families()) > 1 })
}

// incomplete describes the part that a record lacks; empty for none. Each interface has
// an address of each family of one of its pools.
func (p *pools) incomplete(r *v1alpha1.PodAttachment) string {
	want := 1
	if p.hasSecond(r.Spec.PodName) {
		want = 2
	}
	if have := len(r.Spec.Interfaces); have != want {
		return fmt.Sprintf("has %d interfaces, not %d", have, want)
	}
	for _, i := range r.Spec.Interfaces {
		from := p.pool(i.Pool)
		if from == nil || i.Default != slices.Contains(p.fallback, i.Pool) {
			return fmt.Sprintf("has interface %s from pool %q", i.Name, i.Pool)
		}
		if have, want := len(i.Addresses), len(from.Families()); have != want {
			return fmt.Sprintf("has %d addresses of interface %s, not one for each of %d families", have, i.Name, want)
		}
	}
	return ""
}

// room reports whether every network has room for any pod, as far as the counts show, and
// returns the counts.
func (w *simulation) room() (bool, string) {
	var texts []string
	free := map[bool]bool{}
	for _, p := range w.pools.all {
		if p.PerNode() || len(p.Families()) > 1 {
			return false, ""
		}
		c := w.leaders[0].counts(p)
		further := p.Name() == w.pools.second
		free[further] = free[further] || c.Free > 0
		texts = append(texts, fmt.Sprintf("%s: %s", p.Name(), c))
	}
	return free[false] && (w.pools.second == "" || free[true]), strings.Join(texts, "; ")
}
