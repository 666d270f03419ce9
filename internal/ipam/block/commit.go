package block

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/ipam"
)

const (
	// callTimeout limits one call to the API.
	callTimeout = 10 * time.Second
	// After politeConflicts conflicts in a row the committer backs off. After
	// maxConflicts its takes go to another block.
	politeConflicts = 2
	maxConflicts    = 4
	// Delays double from the first value to the limit, with jitter.
	conflictDelay    = 4 * time.Millisecond
	failureDelay     = 20 * time.Millisecond
	maxConflictDelay = 100 * time.Millisecond
	maxFailureDelay  = 2 * time.Second
)

type step uint8

const (
	stepStop step = iota
	stepLinger
	stepRead
	stepWrite
	stepDelete
)

// committer performs the operations of one block until none is left.
type committer struct {
	s *Store
	e *entry
	// conflicts and failures count those in a row.
	conflicts, failures int
	// delay is the wait before the next step.
	delay time.Duration
}

func (c *committer) run(ctx context.Context) {
	for {
		next, linger := c.step(ctx)
		if next == stepStop {
			return
		}
		if next == stepLinger {
			pause(ctx, linger, c.e.kick)
		}
		if c.delay > 0 {
			pause(ctx, c.delay, nil)
			c.delay = 0
		}
	}
}

// step waits for the turn and performs the next step. Operations that arrive during the
// wait share the step. The caller performs stepStop and stepLinger.
func (c *committer) step(ctx context.Context) (next step, linger time.Duration) {
	defer c.s.cfg.Turn(ctx)()
	c.gather()
	next, linger = c.plan(ctx)
	switch next {
	case stepRead:
		c.read(ctx)
	case stepWrite:
		c.write(ctx)
	case stepDelete:
		c.delete(ctx)
	case stepStop, stepLinger:
	}
	return next, linger
}

// gather waits for goroutines that are about to enqueue an operation: it yields the
// processor as long as each yield brings new operations. If no goroutine is ready to
// run, it takes no time.
func (c *committer) gather() {
	s, e := c.s, c.e
	for before := -1; ; {
		s.mu.Lock()
		queued := len(e.queue)
		s.mu.Unlock()
		if queued == before || queued == 0 {
			return
		}
		before = queued
		runtime.Gosched()
	}
}

// pause waits until d has passed, kick has an element, or ctx ends.
func pause(ctx context.Context, d time.Duration, kick <-chan struct{}) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-kick:
	case <-ctx.Done():
	}
}

// backoff returns the n-th delay, n >= 1: half of it fixed, half random.
func backoff(first, limit time.Duration, n int) time.Duration {
	d := limit
	if shifted := first << min(n-1, 16); shifted < limit {
		d = shifted
	}
	return d/2 + rand.N(d/2+1)
}

// plan returns the next step of the block's committer, and how long to linger.
// Afterwards e.flight has the operations of this step.
func (c *committer) plan(ctx context.Context) (step, time.Duration) {
	s, e := c.s, c.e
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		c.fail(ErrStopped)
		e.busy = false
		return stepStop, 0
	}
	c.dropCanceled()
	// While the outcome of a write is unknown and operations wait, a state from the
	// informer does not decide it: only a read does.
	if u := s.known.pending[e]; u.obj != nil && (!e.doubtful || len(e.flight)+len(e.queue) == 0) {
		delete(s.known.pending, e)
		if e.obj == nil || newer(u.obj, e.obj) {
			s.known.takeOver(e, u.obj, u.block)
		}
	}
	if d := e.lingering(time.Now()); d > 0 {
		return stepLinger, d
	}
	e.flight, e.queue = append(e.flight, e.queue...), nil
	if !e.doubtful && e.newlyReserved() {
		e.rebuild(s.known.now())
	}
	changed, confirmed, drop := c.summary()
	switch {
	case len(e.flight) == 0:
		e.busy = false
		s.known.forgetEmpty(e)
		return stepStop, 0
	case e.doubtful || !changed && !confirmed:
		return stepRead, 0
	case changed:
		// A block that changes is not idle, so it is not dropped now.
		e.finishFlight(func(o *op) bool { return o.kind == opDrop })
		return stepWrite, 0
	case drop && e.obj != nil:
		return stepDelete, 0
	default:
		e.finishFlight(func(*op) bool { return true })
		return stepLinger, 0
	}
}

// lingering returns how long the queued operations can still wait for others.
func (e *entry) lingering(now time.Time) time.Duration {
	if len(e.flight) > 0 || len(e.queue) == 0 {
		return 0
	}
	first := slices.MinFunc(e.queue, func(a, b *op) int { return a.due.Compare(b.due) }).due
	if first.IsZero() {
		return 0
	}
	return first.Sub(now)
}

// summary reports whether the operations in flight change anything, whether all of them
// are confirmed, and whether the block is to be dropped: one of them is a drop, and the
// block has been idle for as long as it demands.
func (c *committer) summary() (changed, confirmed, drop bool) {
	s, e := c.s, c.e
	confirmed = true
	for _, o := range e.flight {
		changed = changed || o.changed
		confirmed = confirmed && o.confirmed
		if o.kind == opDrop {
			d, ok := s.known.idleFor(e)
			drop = drop || ok && d >= o.idle
		}
	}
	return changed, confirmed, drop
}

// finishFlight ends the chosen operations in flight with success.
func (e *entry) finishFlight(which func(*op) bool) {
	e.flight = slices.DeleteFunc(e.flight, func(o *op) bool {
		if !which(o) {
			return false
		}
		o.finish(nil)
		return true
	})
}

func (c *committer) dropCanceled() {
	dropped := c.e.end(func(o *op) bool {
		if !o.canceled() {
			return false
		}
		c.abandon(o, fmt.Errorf("%w: the caller has stopped waiting", fault.ErrUnavailable))
		return true
	})
	if dropped {
		c.e.rebuild(c.s.known.now())
	}
}

// read reads the block. A write that timed out may still take effect afterwards. That
// is safe: it and the next write are based on the same resource version, and the API
// refuses the second of them.
func (c *committer) read(ctx context.Context) {
	s, e := c.s, c.e
	var obj *v1alpha1.IPBlock
	err := call(ctx, func(ctx context.Context) (err error) {
		obj, err = s.c.Get(ctx, e.name)
		return err
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && !apierrors.IsNotFound(err) {
		c.failed(ctx, "get", err)
		if refused(err) {
			c.refuse(err)
		}
		return
	}
	c.failures = 0
	c.answered()
	for _, o := range e.flight {
		o.confirmed, o.uncertain = true, false
	}
	if err != nil {
		s.known.objectGone(e)
	} else {
		s.known.learn(e, obj)
	}
	if c.conflicts > maxConflicts {
		c.conflicts = 0
		e.moveTakes(s.known.now())
	}
}

// moveTakes makes the takes of a contended block choose other blocks.
func (e *entry) moveTakes(now ipam.Moment) {
	e.end(func(o *op) bool {
		if o.kind != opTake || o.addr.IsValid() || !o.changed {
			return false
		}
		o.finish(errMoved)
		return true
	})
	e.rebuild(now)
}

// write writes e.next.
func (c *committer) write(ctx context.Context) {
	s, e := c.s, c.e
	s.mu.Lock()
	snapshot := e.next.Clone()
	creating := e.obj == nil
	out := e.object(snapshot)
	s.mu.Unlock()

	verb, send := "update", s.c.Update
	if creating {
		verb, send = "create", s.c.Create
	}
	var obj *v1alpha1.IPBlock
	err := call(ctx, func(ctx context.Context) (err error) {
		obj, err = send(ctx, out)
		return err
	})

	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		c.committed(obj, snapshot)
		return
	}
	c.rejected(ctx, verb, err, creating)
}

// committed adopts the result of a successful write. e.next already includes the
// operations that were enqueued during the write.
func (c *committer) committed(obj *v1alpha1.IPBlock, snapshot *ipam.Block) {
	s, e := c.s, c.e
	c.conflicts, c.failures = 0, 0
	doubtful := e.doubtful
	c.answered()
	e.doubtful = doubtful
	delete(s.known.buried, e.name)
	s.known.rebase(e, obj, snapshot)
	e.finishFlight(func(*op) bool { return true })
	if len(e.queue) == 0 {
		e.next = e.base
	}
}

// rejected handles the error of a write.
func (c *committer) rejected(ctx context.Context, verb string, err error, creating bool) {
	s, e := c.s, c.e
	switch {
	case creating && apierrors.IsAlreadyExists(err):
		e.doubtful = true
	case !creating && apierrors.IsConflict(err):
		e.doubtful = true
		if c.conflicts++; c.conflicts > politeConflicts {
			c.delay = backoff(conflictDelay, maxConflictDelay, c.conflicts-politeConflicts)
		}
	case !creating && apierrors.IsNotFound(err):
		s.known.objectGone(e)
	case refused(err) || creating && apierrors.IsNotFound(err):
		c.failed(ctx, verb, err)
		c.refuse(err)
	default:
		// The write may have taken effect.
		e.doubtful = true
		for _, o := range e.flight {
			o.uncertain = true
		}
		c.failed(ctx, verb, err)
	}
}

// delete deletes the idle block.
func (c *committer) delete(ctx context.Context) {
	s, e := c.s, c.e
	s.mu.Lock()
	obj := e.obj
	s.mu.Unlock()
	err := call(ctx, func(ctx context.Context) error { return s.c.Delete(ctx, obj) })
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		if e.gone != obj.UID { // the informer may have shown the deletion before the reply came
			s.known.buried[e.name] = obj.UID
		}
		s.known.noteFormerNode(e.name, obj.Spec.Node)
		delete(s.known.pending, e)
		s.known.objectGone(e)
		e.finishFlight(func(*op) bool { return true })
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		e.doubtful = true
	case refused(err):
		c.failed(ctx, "delete", err)
		c.refuse(err)
	default:
		e.doubtful = true
		c.failed(ctx, "delete", err)
	}
}

// answered ends the doubt about earlier writes: the API has answered since.
func (c *committer) answered() {
	s, e := c.s, c.e
	for _, k := range e.doubts {
		if s.known.doubts[k] == e {
			delete(s.known.doubts, k)
		}
	}
	e.doubts = nil
	e.doubtful = false
	e.cause = nil
}

// fail ends all operations of a block with err.
func (c *committer) fail(err error) {
	e := c.e
	for _, o := range slices.Concat(e.flight, e.queue) {
		c.abandon(o, err)
	}
	e.flight, e.queue = nil, nil
	e.next = e.base
}

// abandon ends an operation whose outcome may be unknown.
func (c *committer) abandon(o *op, err error) {
	s, e := c.s, c.e
	if o.uncertain && o.kind == opTake {
		s.known.doubts[keyOf(o.holder)] = e
		e.doubts = append(e.doubts, keyOf(o.holder))
	}
	o.finish(err)
}

// failed records an error of the API: for a caller that gives up waiting, and in the
// log if it is the first in a row.
func (c *committer) failed(ctx context.Context, verb string, err error) {
	c.e.cause = err
	if c.failures++; c.failures == 1 && ctx.Err() == nil {
		logr.FromContextOrDiscard(ctx).Error(err, "call failed, its outcome may be unknown", "verb", verb, "block", c.e.name)
	}
	c.delay = backoff(failureDelay, maxFailureDelay, c.failures)
}

// call limits one call to the API.
func call(ctx context.Context, f func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return f(bounded)
}

// refused reports whether the API has certainly rejected the call, and an immediate
// repetition would fail too.
func refused(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) ||
		apierrors.IsBadRequest(err) || apierrors.IsMethodNotSupported(err) || apierrors.IsRequestEntityTooLargeError(err)
}

// refuse ends all operations of the block with the error of a call that the API has rejected.
func (c *committer) refuse(err error) {
	c.delay = 0
	c.fail(fmt.Errorf("%w: block %s: %w", fault.ErrUnavailable, c.e.name, err))
}
