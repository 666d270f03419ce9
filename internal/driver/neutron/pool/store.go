package pool

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/keyed"
	"fairlead.dev/fairlead/internal/run"
)

// API stores PortPools.
type API interface {
	// Create fails with AlreadyExists if the PortPool exists.
	Create(ctx context.Context, o *v1alpha1.PortPool) (*v1alpha1.PortPool, error)
	// Update fails with Conflict if the resourceVersion of o is not the current one.
	Update(ctx context.Context, o *v1alpha1.PortPool) (*v1alpha1.PortPool, error)
	// Get reads the last committed state.
	Get(ctx context.Context, name string) (*v1alpha1.PortPool, error)
	// Delete deletes the PortPool if it still has the UID and resourceVersion of o.
	Delete(ctx context.Context, o *v1alpha1.PortPool) error
}

const (
	// callTimeout limits one call to the API.
	callTimeout = 10 * time.Second
	// maxTries is the number of writes of one group of changes.
	maxTries   = 8
	firstDelay = 5 * time.Millisecond
	lastDelay  = time.Second
)

// bell wakes the loop, because there may be work.
type bell chan struct{}

func (b bell) ring() {
	select {
	case b <- struct{}{}:
	default:
	}
}

// change changes a PortPool. It is applied again if another process wrote the PortPool in
// between. It reports whether it changed anything.
type change func(s *v1alpha1.PortPoolSpec) bool

// entry is a PortPool as far as it is known. The values behind its pointers are not changed.
type entry struct {
	key  Key
	name string
	// object is the last committed state; nil if there is none.
	object *v1alpha1.PortPool
	// cooling has when each cooling slot was first seen to be so.
	cooling map[int32]time.Time
	// pending is the number of changes that are not written yet.
	pending int
	// correction precedes all changes; nil if the PortPool agrees with the records of pods.
	correction *correction
}

// correction gives the ports of a PortPool to the pods whose records name them.
type correction struct {
	recorded map[string]Holder
	// due is when it is written, unless another change is written before.
	due time.Time
}

// differs reports whether a slot has another pod than the record that names its port. A port
// that leaves has none: its pod has gone.
func (c *correction) differs(s slot) bool {
	h, ok := c.recorded[s.ID]
	return ok && s.State != leaving && (s.Pod == nil || identityOf(*s.Pod) != identityOf(h))
}

// give corrects the slots, and returns the ports that it gave.
func (c *correction) give(slots []slot) (ports []string) {
	for i := range slots {
		if s := &slots[i]; c.differs(*s) {
			h := c.recorded[s.ID]
			s.State, s.Pod = used, &h
			ports = append(ports, s.ID)
		}
	}
	return ports
}

// given is a port that a correction gave to a pod.
type given struct {
	object *v1alpha1.PortPool
	port   string
	to     Holder
}

func (e *entry) slots() []slot {
	if e.object == nil {
		return nil
	}
	return e.object.Spec.Ports
}

// resolved returns the network of the ports; nil if it is not known.
func (e *entry) resolved() *v1alpha1.PortPoolNetwork {
	if e.object == nil {
		return nil
	}
	return e.object.Spec.Resolved
}

// store has all PortPools, and writes them. Changes that arrive during a write share the next
// one.
type store struct {
	api    API
	bell   bell
	writes keyed.Batches[string, change]

	mu      sync.Mutex
	entries map[string]*entry
	// holders has the place of the port of each holder.
	holders map[identity]Place
	// deleted is true if a person or another program deleted a PortPool that had ports.
	deleted bool
	// given are the ports that corrections gave to pods since the last report.
	given []given
}

func newStore(api API, b bell) *store {
	s := &store{api: api, bell: b, entries: map[string]*entry{}, holders: map[identity]Place{}}
	s.writes.Work = s.write
	return s
}

// learn takes a PortPool from a watch.
func (s *store) learn(o *v1alpha1.PortPool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.adopt(s.entry(keyOf(&o.Spec), o.Name), o)
}

// gone takes the end of a PortPool from a watch.
func (s *store) gone(o *v1alpha1.PortPool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[o.Name]; e != nil && e.object != nil && e.object.UID == o.UID {
		s.adopt(e, nil)
	}
}

// know makes the entry of the first PortPool of a key.
func (s *store) know(k Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entry(k, k.name(0))
}

// entry returns the entry of a PortPool, which it makes if there is none. s.mu is held.
func (s *store) entry(k Key, name string) *entry {
	e := s.entries[name]
	if e == nil {
		e = &entry{key: k, name: name}
		s.entries[name] = e
	}
	return e
}

// of returns the PortPools of a key in the order of their numbers, as they are now.
func (s *store) of(k Key) (out group) {
	s.mu.Lock()
	defer s.mu.Unlock()
	prefix := k.prefix()
	for n := range maxObjects {
		if e := s.entries[prefix+strconv.Itoa(n)]; e != nil {
			out = append(out, *e)
		}
	}
	return out
}

// all returns the PortPools as they are now, by name.
func (s *store) all() (out []entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(s.entries)) {
		out = append(out, *s.entries[name])
	}
	return out
}

// keys returns the keys of all PortPools, by their text.
func (s *store) keys() map[string]Key {
	out := map[string]Key{}
	for _, e := range s.all() {
		out[e.key.text()] = e.key
	}
	return out
}

// placeOf returns the PortPool of the port of a holder, as it is now, and the place.
func (s *store) placeOf(h Holder) (e entry, at Place, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, ok = s.holders[identityOf(h)]; ok {
		e = *s.entries[at.Pool]
	}
	return e, at, ok
}

// served removes those that have a port.
func (s *store) served(waiting map[identity]time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(waiting, func(id identity, _ time.Time) bool { _, has := s.holders[id]; return has })
}

// wasDeleted reports whether a person or another program deleted a PortPool with ports since
// the last call.
func (s *store) wasDeleted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.deleted
	s.deleted = false
	return was
}

// expect compares the PortPools with the records of pods, by the port's ID. A PortPool that
// differs is corrected with its next write, whose change it is; until then its pods are not
// known.
func (s *store) expect(recorded map[string]Holder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries {
		c := &correction{recorded: recorded}
		if e.correction != nil {
			c.due = e.correction.due
		}
		e.correction = nil
		if slices.ContainsFunc(e.slots(), c.differs) {
			e.correction = c
		}
	}
}

// uncorrected returns the PortPools whose correction is to be written now, and the time until
// another is.
func (s *store) uncorrected(now time.Time) (due []entry, pause time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pause = atLeast
	for _, name := range slices.Sorted(maps.Keys(s.entries)) {
		switch e := s.entries[name]; {
		case e.correction == nil:
		case now.Before(e.correction.due):
			pause = min(pause, e.correction.due.Sub(now))
		default:
			due = append(due, *e)
		}
	}
	return due, pause
}

// correct writes the correction of a PortPool, and again after a while if it cannot be written.
func (s *store) correct(ctx context.Context, e entry) {
	if s.do(ctx, e.key, e.name, func(*v1alpha1.PortPoolSpec) bool { return false }) == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := s.entries[e.name]; now != nil && now.correction != nil {
		now.correction.due = time.Now().Add(lastPause)
	}
}

// report returns the ports that corrections gave to pods since the last call.
func (s *store) report() []given {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.given
	s.given = nil
	return out
}

// begin forgets the corrections of an earlier term.
func (s *store) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries {
		e.correction = nil
	}
}

// do applies a change to a PortPool, and returns when it is written. The change may take
// effect after ctx has ended. Errors: fault.ErrUnavailable.
func (s *store) do(ctx context.Context, k Key, name string, c change) error {
	s.mu.Lock()
	s.entry(k, name).pending++
	s.mu.Unlock()
	err := s.writes.Do(ctx, name, c)[0]
	if err != nil && !errors.Is(err, fault.ErrUnavailable) {
		return fmt.Errorf("%w: %w", fault.ErrUnavailable, err)
	}
	return err
}

// write applies changes in one write, after the correction of the PortPool.
func (s *store) write(ctx context.Context, name string, changes []change) []error {
	s.mu.Lock()
	e := s.entries[name]
	base, first := e.object, e.correction
	s.mu.Unlock()
	var ports []string
	all := changes
	if first != nil {
		all = append([]change{func(spec *v1alpha1.PortPoolSpec) bool {
			ports = first.give(spec.Ports)
			return len(ports) > 0
		}}, changes...)
	}
	err := s.commit(ctx, e, base, all)
	s.mu.Lock()
	if err == nil && first != nil {
		for _, id := range ports {
			if e.object != nil { // it may have been deleted since
				s.given = append(s.given, given{e.object, id, first.recorded[id]})
			}
		}
		if e.correction == first {
			e.correction = nil
		}
		s.bell.ring() // the ports are reported
	}
	if e.pending -= len(changes); e.pending == 0 {
		s.bell.ring() // a PortPool with changes is not dropped
	}
	s.mu.Unlock()
	if err == nil {
		return nil
	}
	err = fmt.Errorf("%w: write PortPool %s: %w", fault.ErrUnavailable, name, err)
	log.FromContext(ctx).Error(err, "changes of a PortPool are not written: pods wait, and the release is repeated")
	return slices.Repeat([]error{err}, len(changes))
}

// commit writes a PortPool, and again after a conflict. After an unknown outcome it is read
// first.
func (s *store) commit(ctx context.Context, e *entry, base *v1alpha1.PortPool, changes []change) (err error) {
	delay := firstDelay
	for try := range maxTries {
		if try > 0 {
			if !run.Sleep(ctx, delay) {
				break
			}
			delay = min(2*delay, lastDelay)
			if base, err = s.read(ctx, e.name); err != nil {
				continue
			}
		}
		next, changed := e.key.apply(e.name, base, changes)
		written := base
		if changed {
			written, err = s.send(ctx, next)
		}
		if err == nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.adopt(e, written)
			return nil
		}
		if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
			break
		}
	}
	return err
}

// apply returns the PortPool of a key with all changes.
func (k Key) apply(name string, base *v1alpha1.PortPool, changes []change) (next *v1alpha1.PortPool, changed bool) {
	next = &v1alpha1.PortPool{Spec: k.spec()}
	next.Name = name
	next.Labels = map[string]string{v1alpha1.LabelNode: short(k.Node, validation.LabelValueMaxLength)}
	if base != nil {
		next = base.DeepCopy()
	}
	spec := &next.Spec
	for _, c := range changes {
		changed = c(spec) || changed
	}
	n := countOf(spec.Ports)
	spec.Ready, spec.Used = int32(n[ready]), int32(n[used]) //nolint:gosec // at most maxSlots
	spec.Cooling = int32(n[cooling] + n[stale])             //nolint:gosec // at most maxSlots
	return next, changed
}

func (s *store) read(ctx context.Context, name string) (*v1alpha1.PortPool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	o, err := s.api.Get(ctx, name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return o, err
}

func (s *store) send(ctx context.Context, o *v1alpha1.PortPool) (*v1alpha1.PortPool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if o.ResourceVersion == "" {
		return s.api.Create(ctx, o)
	}
	return s.api.Update(ctx, o)
}

// refresh reads a PortPool from the API server.
func (s *store) refresh(ctx context.Context, name string) error {
	o, err := s.read(ctx, name)
	if err != nil {
		return fmt.Errorf("%w: write PortPool %s: %w", fault.ErrUnavailable, name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[name]; e != nil {
		s.adopt(e, o)
	}
	return nil
}

// adopt replaces the known state of a PortPool by a later one; nil if the PortPool is gone. An
// event of the watch may be older than the last write of this process, and is left out. The
// resource versions of a restored etcd are higher: the restore raises the revision. s.mu is held.
func (s *store) adopt(e *entry, o *v1alpha1.PortPool) {
	if o != nil && e.object != nil && !run.Newer(o, e.object) {
		return
	}
	for _, was := range e.slots() {
		if was.Pod != nil && s.holders[identityOf(*was.Pod)].Pool == e.name {
			delete(s.holders, identityOf(*was.Pod))
		}
	}
	s.deleted = s.deleted || len(e.slots()) > 0 && (o == nil || o.UID != e.object.UID)
	before, now := e.cooling, time.Now()
	e.object, e.cooling = o, map[int32]time.Time{}
	for _, is := range e.slots() {
		if is.Pod != nil {
			s.holders[identityOf(*is.Pod)] = Place{e.name, int(is.Slot)}
		}
		if is.State == cooling {
			since, known := before[is.Slot]
			if !known {
				since = now
			}
			e.cooling[is.Slot] = since
		}
	}
	s.bell.ring()
}

// drop deletes a PortPool without ports.
func (s *store) drop(ctx context.Context, name string) {
	s.mu.Lock()
	e := s.entries[name]
	if e == nil || e.pending > 0 || e.object == nil || len(e.slots()) > 0 {
		s.mu.Unlock()
		return
	}
	o := e.object
	s.mu.Unlock()
	calling, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := s.api.Delete(calling, o); err != nil {
		log.FromContext(ctx).V(1).Info("an empty PortPool is not deleted yet", "pool", name, "reason", err.Error())
		return
	}
	s.mu.Lock()
	if e.object == o {
		s.adopt(e, nil)
	}
	s.mu.Unlock()
	s.forget(name)
}

// forget removes the entry of a PortPool that does not exist.
func (s *store) forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[name]; e != nil && e.object == nil && e.pending == 0 {
		delete(s.entries, name)
	}
}
