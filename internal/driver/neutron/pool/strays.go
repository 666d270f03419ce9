package pool

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"fairlead.dev/fairlead/api/v1alpha1"
)

const (
	// strayAfter is the time from the first sight of a port that no PortPool has until it is
	// deleted. Another leader may be about to record it.
	strayAfter = 10 * time.Minute
	// surplusAfter is the same for a port whose place another port has: no leader records it
	// any more, unless that port leaves. A controller that ended while Neutron made ports
	// leaves such behind.
	surplusAfter = time.Minute
)

// strays compares PortPools with the cloud, once in each term and when a list of the cloud has
// ports that no PortPool has. Such a port is a stray: it is adopted into the place that it was
// made for, or deleted.
type strays struct {
	store   *store
	records *records
	maker   Maker
	list    func(ctx context.Context) ([]Made, error)

	mu sync.Mutex
	// due is true if the cloud has to be read, but not before notBefore.
	due       bool
	notBefore time.Time
	// asked counts the requests for a comparison: a request during one is for the next.
	asked int
	// deletions has when each stray is to be deleted.
	deletions map[string]time.Time
	// unknown are the strays of the last list that listed got.
	unknown map[string]bool
}

// begin begins a term: the cloud is to be read.
func (s *strays) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	s.due, s.notBefore, s.deletions = true, time.Time{}, nil
}

// expect has the cloud read.
func (s *strays) expect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	s.due = true
}

// isDue reports whether the cloud has to be read.
func (s *strays) isDue() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.due
}

// connected has the cloud read at once.
func (s *strays) connected() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notBefore = time.Time{}
	s.store.bell.ring()
}

// listed takes the IDs of the ports of pools that a list of the cloud has. A port that no
// PortPool has in two lists is a stray: a request of a controller that has ended made it
// after the comparison with the cloud, which is repeated.
func (s *strays) listed(ids []string) {
	unknown := map[string]bool{}
	for _, id := range ids {
		unknown[id] = true
	}
	dropKnown(unknown, s.store.all())
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range unknown {
		if _, known := s.deletions[id]; s.unknown[id] && !known {
			s.asked++
			s.due = true
			s.store.bell.ring()
		}
	}
	s.unknown = unknown
}

// dropKnown removes the ports that PortPools have.
func dropKnown[V any](ports map[string]V, all []entry) {
	for _, e := range all {
		for _, have := range e.slots() {
			delete(ports, have.ID)
		}
	}
}

// find compares with the cloud if that is due, and returns the time until it may be.
func (s *strays) find(ctx context.Context) (pause time.Duration) {
	pause, now := atLeast, time.Now()
	s.mu.Lock()
	if len(s.deletions) > 0 {
		// A comparison may have seen a port before its slot was written.
		dropKnown(s.deletions, s.store.all())
	}
	due, left := s.due, s.notBefore.Sub(now)
	for _, at := range s.deletions {
		due = due || !now.Before(at)
		pause = min(pause, at.Sub(now)) // due if it is not positive
	}
	s.mu.Unlock()
	switch {
	case !due:
		return pause
	case left > 0:
		return min(atLeast, left)
	}
	if err := s.compare(ctx); err != nil {
		log.FromContext(ctx).Info("pools of ports are not compared with the cloud yet: recorded ports are handed out", "reason", err.Error(), "again", lastPause)
		s.mu.Lock()
		s.notBefore = time.Now().Add(lastPause)
		s.mu.Unlock()
		return lastPause
	}
	return atLeast
}

// compare removes the slots whose ports do not exist or have another VLAN, and adopts the
// ports that no slot has: their place is in their identity. Slots are read before ports: a
// port exists before its slot.
func (s *strays) compare(ctx context.Context) error {
	s.mu.Lock()
	asked := s.asked
	s.mu.Unlock()
	before := s.store.all()
	made, err := s.list(ctx)
	if err != nil {
		return err
	}
	recorded, err := s.records.of(ctx, "")
	if err != nil {
		return err
	}
	unknown := map[string]Made{}
	for _, m := range made {
		unknown[m.ID] = m
	}
	var errs []error
	for _, e := range before {
		missing := map[string]bool{}
		for _, have := range e.slots() {
			if m, ok := unknown[have.ID]; have.State != used && (!ok || m.VLAN != have.VLAN) {
				missing[have.ID] = true // a port with another VLAN is a stray
				continue
			}
			delete(unknown, have.ID)
		}
		if len(missing) == 0 {
			continue
		}
		errs = append(errs, s.store.do(ctx, e.key, e.name, func(spec *v1alpha1.PortPoolSpec) bool {
			had := len(spec.Ports)
			spec.Ports = slices.DeleteFunc(spec.Ports, func(s slot) bool { return missing[s.ID] && s.State != used })
			return len(spec.Ports) < had
		}))
	}
	errs = append(errs, s.adoptAll(ctx, unknown, recorded))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	s.mu.Lock()
	s.due = s.asked != asked
	s.mu.Unlock()
	s.store.bell.ring()
	return nil
}

// adoptAll adopts ports into the free places that they were made for. It deletes others, if
// they are strays for long, and no record names them. It goes on after an error, and returns
// all errors joined.
func (s *strays) adoptAll(ctx context.Context, all map[string]Made, recorded map[string]Holder) error {
	now := time.Now()
	s.mu.Lock()
	seen := s.deletions
	s.mu.Unlock()
	deletions := map[string]time.Time{}
	var errs []error
	for _, id := range slices.Sorted(maps.Keys(all)) {
		m := all[id]
		due, again := seen[id]
		place, err := s.adopt(ctx, m, recorded)
		if err != nil {
			errs = append(errs, err)
			if again {
				deletions[id] = due
			}
			continue
		}
		if _, named := recorded[id]; place == itsOwn || named {
			continue
		}
		switch {
		case again:
		case place == anothers:
			due = now.Add(surplusAfter)
		default:
			due = now.Add(strayAfter)
		}
		if !now.Before(due) {
			log.FromContext(ctx).Info("a port of a pool that no PortPool has is deleted", "port", id, "pool", m.Pool)
			if err := s.maker.Delete(ctx, m.Port, v1alpha1.PortPoolNetwork{}); err == nil {
				continue
			}
		}
		deletions[id] = due
	}
	s.mu.Lock()
	s.deletions = deletions
	s.mu.Unlock()
	return errors.Join(errs...)
}

// placeOf is the state of the place that a stray port was made for.
type placeOf int

const (
	noPlace  placeOf = iota // no PortPool has it, or its ports are of another network
	anothers                // another port has it
	itsOwn                  // the port has it
)

// adopt puts a port into the place that it was made for, if no other port has it.
func (s *strays) adopt(ctx context.Context, m Made, recorded map[string]Holder) (placeOf, error) {
	all := s.store.all()
	n := slices.IndexFunc(all, func(e entry) bool { return e.name == m.Pool })
	if n < 0 {
		return noPlace, nil
	}
	e := all[n]
	if r := e.resolved(); r == nil || r.ID != m.Network || r.ParentPort != m.Parent || e.key.Host != m.Host || len(m.Addresses) == 0 {
		return noPlace, nil
	}
	var place placeOf // not read if the change takes effect later
	err := s.store.do(ctx, e.key, m.Pool, func(spec *v1alpha1.PortPoolSpec) bool {
		place = itsOwn
		at := slices.IndexFunc(spec.Ports, func(s slot) bool { return int(s.Slot) == m.Slot || s.ID == m.ID })
		if at >= 0 {
			if spec.Ports[at].ID != m.ID {
				place = anothers
			}
			return false
		}
		spec.Ports = append(spec.Ports, newSlot(m.Slot, m.Port, cooling, recorded))
		return true
	})
	if err != nil {
		return noPlace, err
	}
	return place, nil
}
