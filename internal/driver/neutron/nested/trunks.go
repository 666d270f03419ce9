// Package nested makes ports ready for pods on the port of a node's machine: as subports of
// its trunk, or as its allowed address pairs. Work for one port of a machine is done together,
// with one call, and one call for it is under way at a time.
package nested

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"fairlead.dev/fairlead/internal/keyed"
	"fairlead.dev/fairlead/internal/openstack/cloud"
)

const (
	// most is the number of ports in one call: a call for 50 subports takes some 15 seconds.
	most = 20
	// patience is the time that the calls for one batch may take.
	patience = 2 * time.Minute
	// tries is the number of attempts, if another changes the same thing at the same time.
	tries = 5
)

// together does work for all items with one call, which does all or nothing, and returns the
// error of each. If the cloud refuses the call, the work is done for each item alone: an item
// that it refuses stops no other.
func together[T any](all []T, work func(some []T) error) []error {
	errs := make([]error, len(all))
	err := work(all)
	alone := err != nil && len(all) > 1 && !errors.Is(err, cloud.ErrUnavailable)
	for n := range all {
		errs[n] = err
		if alone {
			errs[n] = work(all[n : n+1])
		}
	}
	return errs
}

// maxVLAN is the last VLAN of a trunk.
const maxVLAN = 4094

// ErrNoTrunk means that the port of a machine is the parent of no trunk.
var ErrNoTrunk = errors.New("no trunk")

// TrunkCalls are the calls to the cloud for Trunks.
type TrunkCalls interface {
	TrunkOf(ctx context.Context, parent string) (cloud.Trunk, error)
	Trunks(ctx context.Context) ([]cloud.Trunk, error)
	AddSubports(ctx context.Context, trunk string, s []cloud.Subport) error
	RemoveSubports(ctx context.Context, trunk string, ports []string) error
}

// Trunks adds ports to the trunks of machines, and removes them. Each trunk has VLANs of
// its own, and the cloud is the judge: with two leaders, the second one gets a conflict and
// takes another VLAN.
type Trunks struct {
	connect func() (TrunkCalls, error)
	batches keyed.Batches[string, *trunkWork]

	mu sync.Mutex
	m  map[string]*trunk // by parent
}

// trunk is a trunk as it was read, with the changes since then. The batches of its parent
// alone use it.
type trunk struct {
	id    string
	ports map[int]string // by VLAN
	// last is the VLAN that was given last: a returned VLAN is not given at once, nor that of a
	// subport that could not be added again. It outlives the reading of the trunk.
	last int
	// doubtful is true if the trunk has to be read again. Trunks.mu guards it.
	doubtful bool
}

type trunkWork struct {
	port string
	// vlan is the result of an addition, or the VLAN that the port gets back.
	vlan                 int
	add, remove, restore bool
}

// NewTrunks returns Trunks that get their calls from connect.
func NewTrunks(connect func() (TrunkCalls, error)) *Trunks {
	t := &Trunks{connect: connect, m: map[string]*trunk{}}
	t.batches.Most, t.batches.Patience = most, patience
	t.batches.Work = func(ctx context.Context, parent string, all []*trunkWork) []error {
		return together(all, func(some []*trunkWork) error { return t.work(ctx, parent, some) })
	}
	return t
}

// Add adds a port to the trunk of a parent, and returns its VLAN. A port that is a subport
// already keeps its VLAN. Errors: ErrNoTrunk, cloud.ErrFull if the trunk has no VLAN left,
// cloud.ErrNotFound without the port, cloud.ErrInvalid, cloud.ErrUnavailable.
func (t *Trunks) Add(ctx context.Context, parent, port string) (vlan int, err error) {
	w := &trunkWork{port: port, add: true}
	if err := t.batches.Do(ctx, parent, w)[0]; err != nil {
		return 0, err
	}
	return w.vlan, nil
}

// AddAll is Add for many ports at once, with one call for each 20 of them. If it fails, some
// may be added: the next call returns their VLANs.
func (t *Trunks) AddAll(ctx context.Context, parent string, ports []string) (vlans []int, err error) {
	all := make([]*trunkWork, len(ports))
	for n, port := range ports {
		all[n] = &trunkWork{port: port, add: true}
	}
	if err := errors.Join(t.batches.Do(ctx, parent, all...)...); err != nil {
		return nil, err
	}
	for _, w := range all {
		vlans = append(vlans, w.vlan)
	}
	return vlans, nil
}

// Reattach removes a port from a trunk and adds it with the same VLAN: a cloud that lost an
// event leaves a subport DOWN. Errors: as Add, and cloud.ErrTaken.
func (t *Trunks) Reattach(ctx context.Context, parent, port string, vlan int) error {
	return t.batches.Do(ctx, parent, &trunkWork{port: port, vlan: vlan, remove: true, restore: true})[0]
}

// Remove removes a port from the trunk of a parent; nil if it is no subport of it. Errors:
// cloud.ErrUnavailable.
func (t *Trunks) Remove(ctx context.Context, parent, port string) error {
	err := t.batches.Do(ctx, parent, &trunkWork{port: port, remove: true})[0]
	if errors.Is(err, ErrNoTrunk) {
		return nil
	}
	return err
}

// RemoveAnywhere removes a port from the trunk that has it, whatever its parent is.
func (t *Trunks) RemoveAnywhere(ctx context.Context, port string) error {
	c, err := t.connect()
	if err != nil {
		return err
	}
	all, err := c.Trunks(ctx)
	if err != nil {
		return err
	}
	for _, tr := range all {
		if slices.ContainsFunc(tr.Subports, func(s cloud.Subport) bool { return s.Port == port }) {
			return t.Remove(ctx, tr.Parent, port)
		}
	}
	return nil
}

// maxTrunks bounds the trunks that are remembered. At the limit the memory starts empty.
const maxTrunks = 4096

// open returns a trunk; fresh is true if it was read now. Errors: ErrNoTrunk,
// cloud.ErrUnavailable.
func (t *Trunks) open(ctx context.Context, c TrunkCalls, parent string) (have *trunk, fresh bool, err error) {
	t.mu.Lock()
	before := t.m[parent]
	certain := before != nil && !before.doubtful
	t.mu.Unlock()
	if certain {
		return before, false, nil
	}
	got, err := c.TrunkOf(ctx, parent)
	if errors.Is(err, cloud.ErrNotFound) {
		return nil, true, fmt.Errorf("%w: port %s is the parent of no trunk: %w", ErrNoTrunk, parent, err)
	}
	if err != nil {
		return nil, true, err
	}
	have = &trunk{id: got.ID, ports: map[int]string{}}
	for _, s := range got.Subports {
		have.ports[s.VLAN] = s.Port
		have.last = max(have.last, s.VLAN)
	}
	if before != nil {
		have.last = before.last
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.m) >= maxTrunks {
		clear(t.m)
	}
	t.m[parent] = have
	return have, true, nil
}

// doubt has a trunk read again.
func (t *Trunks) doubt(parent string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if have := t.m[parent]; have != nil {
		have.doubtful = true
	}
}

// work removes and adds ports. After any failure the trunk is read again: the call may have
// been done, and others may have changed it.
func (t *Trunks) work(ctx context.Context, parent string, all []*trunkWork) error {
	c, err := t.connect()
	if err != nil {
		return err
	}
	for try := 1; ; try++ {
		tr, fresh, err := t.open(ctx, c, parent)
		if err != nil {
			return err
		}
		err = tr.change(ctx, c, all)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, cloud.ErrFull) && fresh:
			return err
		}
		t.doubt(parent)
		gone := errors.Is(err, cloud.ErrNotFound) && !fresh // the trunk may be a new one; if it is not, the port is gone
		if !gone && !errors.Is(err, cloud.ErrTaken) && !errors.Is(err, cloud.ErrFull) || try == tries {
			return err
		}
		if try > 1 && len(all) == 1 && all[0].add {
			if err := t.elsewhere(ctx, c, parent, all[0].port); err != nil {
				return err
			}
		}
	}
}

// elsewhere removes a port of a pod from the trunk of another parent: the machine of the
// node was replaced.
func (t *Trunks) elsewhere(ctx context.Context, c TrunkCalls, parent, port string) error {
	all, err := c.Trunks(ctx)
	if err != nil {
		return err
	}
	for _, tr := range all {
		if tr.Parent != parent && slices.ContainsFunc(tr.Subports, func(s cloud.Subport) bool { return s.Port == port }) {
			return c.RemoveSubports(ctx, tr.ID, []string{port})
		}
	}
	return nil
}

// change makes at most one call for the removals and one for the additions.
func (tr *trunk) change(ctx context.Context, c TrunkCalls, all []*trunkWork) error {
	var remove []string
	for _, w := range all {
		if w.remove {
			remove = append(remove, w.port)
		}
	}
	if len(remove) > 0 {
		if err := c.RemoveSubports(ctx, tr.id, remove); err != nil {
			return err
		}
		maps.DeleteFunc(tr.ports, func(_ int, port string) bool { return slices.Contains(remove, port) })
	}
	add, chosen, err := tr.additions(all)
	if len(add) == 0 || err != nil {
		return err
	}
	if err := c.AddSubports(ctx, tr.id, add); err != nil {
		return err
	}
	maps.Copy(tr.ports, chosen)
	return nil
}

// additions returns the subports to add, and their ports by VLAN. Those that are added again
// keep their VLAN, so that the others choose among the rest. Errors: cloud.ErrFull.
func (tr *trunk) additions(all []*trunkWork) (add []cloud.Subport, chosen map[int]string, err error) {
	chosen = map[int]string{}
	include := func(w *trunkWork) {
		if tr.ports[w.vlan] != w.port && chosen[w.vlan] != w.port {
			chosen[w.vlan] = w.port
			add = append(add, cloud.Subport{Port: w.port, VLAN: w.vlan})
		}
	}
	for _, w := range all {
		if w.restore {
			include(w)
		}
	}
	for _, w := range all {
		if !w.add {
			continue
		}
		if w.vlan, err = tr.choose(w.port, chosen); err != nil {
			return nil, nil, err
		}
		include(w)
	}
	return add, chosen, nil
}

// choose returns the VLAN of a port: that which it has, or the next free one. Errors:
// cloud.ErrFull.
func (tr *trunk) choose(port string, chosen map[int]string) (int, error) {
	for _, have := range []map[int]string{tr.ports, chosen} {
		for vlan, p := range have {
			if p == port {
				return vlan, nil
			}
		}
	}
	for n := range maxVLAN {
		vlan := (tr.last+n)%maxVLAN + 1
		if tr.ports[vlan] == "" && chosen[vlan] == "" {
			tr.last = vlan
			return vlan, nil
		}
	}
	return 0, fmt.Errorf("%w: trunk %s has %d subports, and no VLAN of 1 to %d is free", cloud.ErrFull, tr.id, len(tr.ports), maxVLAN)
}
