package native

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/ipam"
)

// Pool is an IPPool in the form that the driver works with.
type Pool struct {
	*ipam.Pool
	// Routes of every pod.
	Routes []v1alpha1.Route
}

// Pools is what the informer has shown of IPPools, parsed once.
type Pools struct {
	mu sync.RWMutex
	m  map[string]parsed
}

type parsed struct {
	pool Pool
	err  error
}

// NewPools returns an empty set.
func NewPools() *Pools { return &Pools{m: map[string]parsed{}} }

// Get returns a pool. It fails with driver.ErrNotFound when there is none of
// that name and driver.ErrInvalid when its spec cannot be used; the error
// names the fields.
func (p *Pools) Get(name string) (Pool, error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	got, ok := p.m[name]
	switch {
	case !ok:
		return Pool{}, fmt.Errorf("%w: there is no IPPool %q: create it, or set defaultNetwork.pool to another", driver.ErrNotFound, name)
	case got.err != nil:
		return Pool{}, fmt.Errorf("%w: IPPool %s: %w", driver.ErrInvalid, name, got.err)
	}
	return got.pool, nil
}

// InDomain returns the names of the pools of a domain, sorted.
func (p *Pools) InDomain(domain string) []string {
	p.mu.RLock()
	defer p.mu.RUnlock()
	var names []string
	for name, got := range p.m {
		if got.err == nil && got.pool.Domain() == domain {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// observe takes in a pool as it is now.
func (p *Pools) observe(o *v1alpha1.IPPool) {
	got := parsed{}
	got.pool, got.err = parse(o)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.m[o.Name] = got
}

func (p *Pools) forget(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.m, name)
}

// parse checks an IPPool's spec; its error names every field that is wrong.
func parse(o *v1alpha1.IPPool) (Pool, error) {
	spec := o.Spec
	var cooldown time.Duration // the default, unless the API server has filled it in
	if spec.Cooldown != nil {
		cooldown = spec.Cooldown.Duration
	}
	p, err := ipam.ParsePool(ipam.PoolSpec{
		Name:     o.Name,
		Domain:   spec.Domain,
		Ranges:   spec.Ranges,
		Excludes: spec.Excludes,
		Gateways: spec.Gateways,
		UseEdges: spec.UseEdges,
		Cooldown: cooldown,
		Order:    ipam.Order(spec.Order),
		PerNode:  spec.Placement == v1alpha1.PlacementPerNode,
	})
	if err != nil {
		return Pool{}, err
	}
	return Pool{Pool: p, Routes: spec.Routes}, nil
}
