package nested

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"fairlead.dev/fairlead/internal/keyed"
	"fairlead.dev/fairlead/internal/openstack/cloud"
)

// PairCalls are the calls to the cloud for Pairs.
type PairCalls interface {
	Port(ctx context.Context, id string) (cloud.Port, error)
	UpdatePort(ctx context.Context, id string, revision int, ch cloud.PortChange) (cloud.Port, error)
}

// Pairs adds allowed address pairs to the ports of machines, and removes them. All other
// pairs of a port stay.
type Pairs struct {
	connect func() (PairCalls, error)
	batches keyed.Batches[string, pairWork]
}

type pairWork struct {
	pairs  []cloud.Pair
	remove bool
}

// NewPairs returns Pairs that get their calls from connect.
func NewPairs(connect func() (PairCalls, error)) *Pairs {
	p := &Pairs{connect: connect}
	p.batches.Most, p.batches.Patience = most, patience
	p.batches.Work = func(ctx context.Context, port string, all []pairWork) []error {
		return together(all, func(some []pairWork) error { return p.work(ctx, port, some) })
	}
	return p
}

// Add adds pairs to a port. A port without port security needs none. Errors:
// cloud.ErrLimit if the port has no room, cloud.ErrNotFound without the port,
// cloud.ErrUnavailable.
func (p *Pairs) Add(ctx context.Context, port string, pairs []cloud.Pair) error {
	return p.batches.Do(ctx, port, pairWork{pairs: pairs})[0]
}

// Remove removes pairs from a port; nil if they or the port are gone. Errors:
// cloud.ErrUnavailable.
func (p *Pairs) Remove(ctx context.Context, port string, pairs []cloud.Pair) error {
	err := p.batches.Do(ctx, port, pairWork{pairs: pairs, remove: true})[0]
	if errors.Is(err, cloud.ErrNotFound) {
		return nil
	}
	return err
}

// work reads a port and writes it with the same revision, again if another wrote it in
// between.
func (p *Pairs) work(ctx context.Context, id string, all []pairWork) error {
	c, err := p.connect()
	if err != nil {
		return err
	}
	for try := 1; ; try++ {
		port, err := c.Port(ctx, id)
		if err != nil {
			return err
		}
		if !port.PortSecurity {
			return nil
		}
		pairs := changed(port.Pairs, all)
		if slices.Equal(pairs, port.Pairs) {
			return nil
		}
		_, err = c.UpdatePort(ctx, id, port.Revision, cloud.PortChange{Pairs: &pairs})
		switch {
		case errors.Is(err, cloud.ErrLimit):
			return fmt.Errorf("port %s has %d allowed address pairs: %w", id, len(port.Pairs), err)
		case !errors.Is(err, cloud.ErrChanged) || try == tries:
			return err
		}
	}
}

// changed returns pairs after all changes. Removals are first: they make room.
func changed(pairs []cloud.Pair, all []pairWork) []cloud.Pair {
	out := slices.Clone(pairs)
	for _, w := range all {
		if w.remove {
			out = slices.DeleteFunc(out, func(p cloud.Pair) bool { return slices.Contains(w.pairs, p) })
		}
	}
	for _, w := range all {
		for _, p := range w.pairs {
			if !w.remove && !slices.Contains(out, p) {
				out = append(out, p)
			}
		}
	}
	return out
}
