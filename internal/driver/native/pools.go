package native

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block"
)

// Pool is a parsed IPPool.
type Pool struct {
	*ipam.Pool
	// Routes of every interface.
	Routes []v1alpha1.Route
	// Sticky names the pods that have a claim without requesting it.
	Sticky v1alpha1.Sticky
	// PerNamespace is how many addresses of each family a namespace may have; 0 is no
	// limit.
	PerNamespace int
	// selectors that a pod has to match.
	selectors []selector
	// networks that may draw from the pool, beside the default network.
	networks networks
	// version of Pools.reservations that ipam.Pool excludes.
	version int
}

// selector is a selector of the spec, for the namespace, the pod or the node.
type selector struct {
	// field is its name in the spec; of is the object whose labels it matches.
	field, of string
	labels    func(r *request) map[string]string
	match     labels.Selector
}

// admits returns nil if a pod may draw from the pool. Networks of the namespace own may
// draw from every pool. Errors: fault.ErrNotFound if the pod may not,
// fault.ErrUnavailable if labels are not known yet.
func (p *Pool) admits(r *request, own string) error {
	if err := p.networks.admit(r, own); err != nil {
		return err
	}
	for _, s := range p.selectors {
		switch has := s.labels(r); {
		case has == nil:
			return fmt.Errorf("%w: the labels of %s are not known yet", fault.ErrUnavailable, s.of)
		case !s.match.Matches(labels.Set(has)):
			return fmt.Errorf("%w: it is not for this pod: the labels of %s do not match %s (%s)", fault.ErrNotFound, s.of, s.field, s.match)
		}
	}
	return nil
}

// Pools has the IPPools and IPReservations that the informers have shown, parsed once.
type Pools struct {
	mu           sync.Mutex
	m            map[string]*parsed
	reservations map[string]reserved
	// lost are the addresses of Withhold.
	lost []*ipam.Reservation
	// version of reservations and lost: it grows with each change of them.
	version int
	// wakes are the functions registered by Wake.
	wakes []driver.Wake
}

// reserved is a parsed IPReservation.
type reserved struct {
	*ipam.Reservation
	uid        types.UID
	generation int64
}

type parsed struct {
	pool Pool
	err  error
	// stale is true if reservations have changed since they were subtracted from pool.
	stale bool
}

// NewPools returns an empty set.
func NewPools() *Pools {
	return &Pools{m: map[string]*parsed{}, reservations: map[string]reserved{}}
}

// Get returns a pool without its reserved addresses. Errors: fault.ErrNotFound if no pool
// has the name; fault.ErrInvalid if its spec is invalid, with the fields named.
func (p *Pools) Get(name string) (Pool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	got, ok := p.m[name]
	switch {
	case !ok:
		return Pool{}, fmt.Errorf("%w: there is no IPPool %q: create it, or name another", fault.ErrNotFound, name)
	case got.err != nil:
		return Pool{}, fmt.Errorf("%w: IPPool %s: %w", fault.ErrInvalid, name, got.err)
	case got.stale:
		got.pool.Pool, got.pool.version, got.stale = p.without(got.pool.Pool), p.version, false
	}
	return got.pool, nil
}

// Without returns a pool without its reserved addresses.
func (p *Pools) Without(pool *ipam.Pool) *ipam.Pool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.without(pool)
}

func (p *Pools) without(pool *ipam.Pool) *ipam.Pool {
	all := slices.Clone(p.lost)
	for _, r := range p.reservations {
		all = append(all, r.Reservation)
	}
	return pool.Without(all)
}

// now returns a function that returns the pool without the addresses that are reserved at
// the time of its call.
func (p *Pools) now(pool Pool) func() *ipam.Pool {
	return func() *ipam.Pool {
		p.mu.Lock()
		defer p.mu.Unlock()
		if pool.version != p.version {
			pool.Pool, pool.version = p.without(pool.Pool), p.version
		}
		return pool.Pool
	}
}

// withholds reports whether this or a newer generation of a reservation is in force.
func (p *Pools) withholds(o *v1alpha1.IPReservation) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, ok := p.reservations[o.Name]
	return ok && r.uid == o.UID && r.generation >= o.Generation
}

// Routed reports whether the blocks of a pool are routed to nodes. known is false if no
// pool has the name or its spec is invalid.
func (p *Pools) Routed(name string) (routed, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	got, ok := p.m[name]
	if !ok || got.err != nil {
		return false, false
	}
	return got.pool.PerNode(), true
}

// Names returns the names of all pools, sorted.
func (p *Pools) Names() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.m))
}

// InDomain returns the names of the valid pools of a domain, sorted.
func (p *Pools) InDomain(domain string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var names []string
	for name, got := range p.m {
		if got.err == nil && got.pool.Domain() == domain {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// sole returns a function that names the pool that covers the address of a lease; empty if
// none or several do. It knows the pools of the time when sole was called.
func (p *Pools) sole() func(l block.Lease) string {
	byDomain := map[string][]*ipam.Pool{}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, got := range p.m {
		if got.err == nil {
			byDomain[got.pool.Domain()] = append(byDomain[got.pool.Domain()], got.pool.Pool)
		}
	}
	return func(l block.Lease) string {
		name := ""
		for _, pool := range byDomain[l.Domain] {
			switch {
			case !pool.Covers(l.Addr):
			case name != "":
				return ""
			default:
				name = pool.Name()
			}
		}
		return name
	}
}

// Reserving returns the names of the reservations with addresses of a block.
func (p *Pools) Reserving(domain string, block netip.Prefix) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var names []string
	for name, r := range p.reservations {
		if r.Domain() == domain && r.Touches(block) {
			names = append(names, name)
		}
	}
	return names
}

// observe stores the current state of a pool.
func (p *Pools) observe(o *v1alpha1.IPPool) {
	got := &parsed{stale: true}
	got.pool, got.err = Parse(o)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.m[o.Name] = got
}

// Wake is driver.Run.Wake. It registers w: Waiting is called when a pool or a reservation
// is created, is deleted or gets another spec; Leaving is called when a pool is created, is
// deleted or gets another policy for unreachable nodes.
func (p *Pools) Wake(_ context.Context, w driver.Wake) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wakes = append(p.wakes, w)
	return nil
}

// wake calls the registered functions Waiting and Leaving.
func (p *Pools) wake(waiting, terminating bool) {
	p.mu.Lock()
	wakes := slices.Clone(p.wakes)
	p.mu.Unlock()
	for _, w := range wakes {
		if waiting {
			w.Waiting()
		}
		if terminating {
			w.Leaving()
		}
	}
}

func (p *Pools) forget(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.m, name)
}

// reserve stores the current state of a reservation. Its valid ranges are in force even if
// others are invalid.
func (p *Pools) reserve(o *v1alpha1.IPReservation) {
	r, _ := ipam.ParseReservation(o.Spec.Domain, o.Spec.Ranges)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reservations[o.Name] = reserved{r, o.UID, o.Generation}
	p.outdate()
}

func (p *Pools) unreserve(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.reservations, name)
	p.outdate()
}

// Withhold replaces the addresses that no pod gets, beside those of IPReservations.
func (p *Pools) Withhold(lost []*ipam.Reservation) {
	p.mu.Lock()
	p.lost = lost
	p.outdate()
	p.mu.Unlock()
	p.wake(true, false)
}

func (p *Pools) outdate() {
	p.version++
	for _, got := range p.m {
		got.stale = got.err == nil
	}
}

// Parse parses an IPPool's spec. The error names every invalid field.
func Parse(o *v1alpha1.IPPool) (Pool, error) {
	p, err := block.PoolOf(o)
	errs := []error{err}
	out := Pool{Pool: p, Routes: o.Spec.Routes, Sticky: o.Spec.Sticky, PerNamespace: int(o.Spec.Quota.PerNamespace)}
	if o.Spec.Placement == v1alpha1.PlacementPerNode && o.Spec.Sticky != "" && o.Spec.Sticky != v1alpha1.StickyOff {
		errs = append(errs, &ipam.FieldError{
			Field: "spec.sticky", Value: string(o.Spec.Sticky),
			Problem: "needs placement Shared: with PerNode an address stays on its node, and the pod may come back on another",
		})
	}
	for _, s := range []struct {
		selector
		spec *metav1.LabelSelector
	}{
		{selector{field: "spec.namespaceSelector", of: "its namespace", labels: func(r *request) map[string]string { return r.NamespaceLabels }}, o.Spec.NamespaceSelector},
		{selector{field: "spec.podSelector", of: "the pod", labels: func(r *request) map[string]string { return r.PodLabels }}, o.Spec.PodSelector},
		{selector{field: "spec.nodeSelector", of: "its node", labels: func(r *request) map[string]string { return r.NodeLabels }}, o.Spec.NodeSelector},
	} {
		if s.spec == nil {
			continue
		}
		s.match, err = selectorOf(s.field, s.spec)
		errs = append(errs, err)
		out.selectors = append(out.selectors, s.selector)
	}
	out.networks.writtenFor = o.Labels[v1alpha1.LabelNetworkNamespace]
	if spec := o.Spec.NetworkNamespaceSelector; spec != nil {
		out.networks.match, err = selectorOf("spec.networkNamespaceSelector", spec)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return Pool{}, err
	}
	return out, nil
}
