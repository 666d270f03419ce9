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
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block"
	"fairlead.dev/fairlead/internal/ipam/objects"
)

// Pool is an IPPool in the form that the driver works with.
type Pool struct {
	*ipam.Pool
	// Routes of every pod.
	Routes []v1alpha1.Route
	// Sticky says which pods have a claim without asking.
	Sticky v1alpha1.Sticky
	// PerNamespace is how many addresses of each family the pods of a
	// namespace may have; 0 sets no bound.
	PerNamespace int
	// who may draw from it.
	who []selector
	// networks that may draw from it, beside the default one.
	networks networks
	// version of the reservations that are withheld.
	version int
}

// selector is one that is set, of namespace, pod or node.
type selector struct {
	// field of the spec, and whose labels it selects by.
	field, of string
	labels    func(r *request) map[string]string
	match     labels.Selector
}

// admits returns nil when a pod may draw from the pool. It fails with
// driver.ErrNotFound when it may not, and with driver.ErrUnavailable when that
// cannot be said yet. Networks of the namespace own may draw from every pool.
func (p *Pool) admits(r *request, own string) error {
	if err := p.networks.admit(r, own); err != nil {
		return err
	}
	for _, s := range p.who {
		switch has := s.labels(r); {
		case has == nil:
			return fmt.Errorf("%w: the labels of %s are not known yet", driver.ErrUnavailable, s.of)
		case !s.match.Matches(labels.Set(has)):
			return fmt.Errorf("%w: it is not for this pod: the labels of %s do not match %s (%s)", driver.ErrNotFound, s.of, s.field, s.match)
		}
	}
	return nil
}

// Pools is what the informers have shown of IPPools and IPReservations, parsed
// once.
type Pools struct {
	mu           sync.Mutex
	m            map[string]*parsed
	reservations map[string]reserved
	// version of the reservations.
	version int
	// wakes call pods back that wait for a change.
	wakes []driver.Wake
}

// reserved is one IPReservation as it was taken in.
type reserved struct {
	*ipam.Reservation
	uid        types.UID
	generation int64
}

type parsed struct {
	pool Pool
	err  error
	// stale is true when reservations have changed since.
	stale bool
}

// NewPools returns an empty set.
func NewPools() *Pools {
	return &Pools{m: map[string]*parsed{}, reservations: map[string]reserved{}}
}

// Get returns a pool, without what is reserved. It fails with
// driver.ErrNotFound when there is none of that name and driver.ErrInvalid when
// its spec cannot be used; the error names the fields.
func (p *Pools) Get(name string) (Pool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	got, ok := p.m[name]
	switch {
	case !ok:
		return Pool{}, fmt.Errorf("%w: there is no IPPool %q: create it, or name another", driver.ErrNotFound, name)
	case got.err != nil:
		return Pool{}, fmt.Errorf("%w: IPPool %s: %w", driver.ErrInvalid, name, got.err)
	case got.stale:
		got.pool.Pool, got.pool.version, got.stale = p.without(got.pool.Pool), p.version, false
	}
	return got.pool, nil
}

// Without returns a pool without what is reserved.
func (p *Pools) Without(pool *ipam.Pool) *ipam.Pool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.without(pool)
}

func (p *Pools) without(pool *ipam.Pool) *ipam.Pool {
	all := make([]*ipam.Reservation, 0, len(p.reservations))
	for _, r := range p.reservations {
		all = append(all, r.Reservation)
	}
	return pool.Without(all)
}

// now returns a function that returns the pool without what is reserved when it
// is called.
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

// withholds says whether a reservation has been taken in as it is there.
func (p *Pools) withholds(o *v1alpha1.IPReservation) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, ok := p.reservations[o.Name]
	return ok && r.uid == o.UID && r.generation >= o.Generation
}

// Routed reports whether the blocks of a pool are routed to nodes, and whether there is
// a pool of that name that can be used.
func (p *Pools) Routed(name string) (routed, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	got, ok := p.m[name]
	if !ok || got.err != nil {
		return false, false
	}
	return got.pool.PerNode(), true
}

// Names of all pools, sorted.
func (p *Pools) Names() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.m))
}

// InDomain returns the names of the pools of a domain, sorted.
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

// sole returns a function that names the pool, of those that there are now, that
// has the address of a lease; empty when none has, or several.
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

// observe takes in a pool as it is now.
func (p *Pools) observe(o *v1alpha1.IPPool) {
	got := &parsed{stale: true}
	got.pool, got.err = Parse(o)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.m[o.Name] = got
}

// Wake is driver.Parts.Wake: pods that wait for their network are called when a pool or a
// reservation comes, goes or has another spec; those whose release waits for a node when
// the policy of a pool for unreachable nodes changes.
func (p *Pools) Wake(_ context.Context, w driver.Wake) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wakes = append(p.wakes, w)
	return nil
}

// wake calls pods back.
func (p *Pools) wake(waiting, leaving bool) {
	p.mu.Lock()
	wakes := slices.Clone(p.wakes)
	p.mu.Unlock()
	for _, w := range wakes {
		if waiting {
			w.Waiting()
		}
		if leaving {
			w.Leaving()
		}
	}
}

func (p *Pools) forget(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.m, name)
}

// reserve takes in a reservation as it is now: as much of it as can be read.
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

func (p *Pools) outdate() {
	p.version++
	for _, got := range p.m {
		got.stale = got.err == nil
	}
}

// Parse checks an IPPool's spec; its error names every field that is wrong.
func Parse(o *v1alpha1.IPPool) (Pool, error) {
	p, err := objects.Pool(o)
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
		s.match, err = metav1.LabelSelectorAsSelector(s.spec)
		if err != nil {
			errs = append(errs, &ipam.FieldError{Field: s.field, Value: metav1.FormatLabelSelector(s.spec), Problem: "is not a label selector: " + err.Error()})
			continue
		}
		out.who = append(out.who, s.selector)
	}
	out.networks, err = parseNetworks(o)
	errs = append(errs, err)
	if err := errors.Join(errs...); err != nil {
		return Pool{}, err
	}
	return out, nil
}
