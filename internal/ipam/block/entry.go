package block

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/ipam"
)

// errMoved is the error of a take that its block cannot serve. The take tries another
// block.
var errMoved = errors.New("try another block")

// entry is the store's knowledge of one block. Store.mu guards it.
type entry struct {
	name   string
	domain string
	prefix netip.Prefix
	node   string

	// obj is the last known object; nil if none is known to exist.
	obj *v1alpha1.IPBlock
	// base is the decoded obj. Without an obj it is empty, unless the object was
	// deleted while its addresses were taken: then it is the last state of the object.
	base *ipam.Block
	// next is base with flight and queue applied. It is base itself if they change
	// nothing, as for most blocks of an idle store.
	next *ipam.Block
	// flight are the operations of the committer's current step, queue those that
	// arrived since.
	flight, queue []*op

	// busy is true while a committer runs or is about to run.
	busy bool
	// kick ends the committer's lingering.
	kick chan struct{}
	// doubtful is true if the block must be read before it is written.
	doubtful bool
	// gone is the UID of an object whose deletion the informer showed while the block
	// was busy.
	gone types.UID
	// foreign is true if the object is being deleted, or its name and content disagree.
	foreign bool
	// doubts are this block's keys in Store.doubts.
	doubts []holderKey
	// cause is the last error of the API, for a caller that gives up waiting.
	cause error
}

type opKind uint8

const (
	opTake opKind = iota
	// opFree gives addresses back, which then cool down.
	opFree
	// opUnhold stops holding an address for a claim.
	opUnhold
	// opKeep sets the claim of a holder's address.
	opKeep
	// opDrop deletes the block if it has been idle for long enough.
	opDrop
	// opRead reads the block.
	opRead
	// opRestore restores the lost record of a holder's address.
	opRestore
)

// op is one operation on a block. The committer owns it from enqueue until done is
// closed.
type op struct {
	kind   opKind
	holder ipam.Holder
	// pool returns the pool without reserved addresses; node is the node that the block
	// must be routed to. Both are for takes.
	pool func() *ipam.Pool
	node string
	// early accepts an address that has cooled down for ipam.MinCooldown only.
	early bool
	// addr is the address to take or to free. Zero means any to take, and all to free.
	addr netip.Addr
	// claim of a take or an unhold; empty for none.
	claim string
	// join of a take is the pod whose address the holder shares; zero for none.
	join ipam.Holder
	// beside of a restore are the pods that may share the address with the holder.
	beside []ipam.Holder
	// since of an unhold is when the holding began. Of a free it is when the holder
	// took the address; zero until that is known. If the holder takes the address again
	// later, the free leaves it alone.
	since time.Time
	// cancel drops the operation, unless it is being written.
	cancel <-chan struct{}
	// due is when the operation stops waiting for others; zero for at once.
	due time.Time
	// idle is how long the block of a drop must have been idle.
	idle time.Duration

	// changed: the operation changes base.
	changed bool
	// confirmed: the block was read after the operation was enqueued.
	confirmed bool
	// uncertain: the operation was part of a write with an unknown outcome.
	uncertain bool
	// got is the taken address.
	got  netip.Addr
	err  error
	done chan struct{}
}

func (o *op) finish(err error) {
	o.err = err
	close(o.done)
}

// takes reports whether the operation gives an address to a holder. Only such an operation
// can fail.
func (o *op) takes() bool { return o.kind == opTake || o.kind == opRestore }

func (o *op) canceled() bool {
	select {
	case <-o.cancel:
		return true
	default:
		return false
	}
}

// rebuild applies the operations to the known state again. Operations that are no
// longer possible end with the error of apply.
func (e *entry) rebuild(now ipam.Moment) {
	e.next = e.base
	e.end(func(o *op) bool {
		err := e.apply(o, now)
		if err != nil {
			o.finish(err)
		}
		return err != nil
	})
}

// end removes the operations for which ended is true, and reports whether there are any. ended is
// called with each in the order in which they arrived.
func (e *entry) end(ended func(o *op) bool) bool {
	before := len(e.flight) + len(e.queue)
	e.flight = slices.DeleteFunc(e.flight, ended)
	e.queue = slices.DeleteFunc(e.queue, ended)
	return len(e.flight)+len(e.queue) < before
}

// apply applies an operation to e.next. Errors of takes: errMoved, fault.ErrConflict,
// fault.ErrInvalid. Errors of restores: fault.ErrConflict, fault.ErrInvalid. Other operations do not fail.
func (e *entry) apply(o *op, now ipam.Moment) error {
	o.changed = false
	if e.next == e.base {
		e.next = e.base.Clone()
	}
	switch o.kind {
	case opTake:
		return e.applyTake(o, now)
	case opFree:
		o.changed = e.applyFree(o, now)
	case opUnhold:
		o.changed = e.next.Unhold(o.claim, o.addr, o.since, now)
	case opKeep:
		before, _ := e.next.Slot(o.addr)
		_ = e.next.Keep(o.holder, o.addr, o.claim) // the caller has checked the key
		after, _ := e.next.Slot(o.addr)
		o.changed = before != after
	case opRestore:
		return e.applyRestore(o, now)
	case opDrop, opRead:
	}
	return nil
}

func (e *entry) applyTake(o *op, now ipam.Moment) error {
	if e.foreign || e.node != o.node {
		if o.addr.IsValid() {
			return fmt.Errorf("%w: %s lies in block %s, which %s", fault.ErrConflict, o.addr, e.name, e.unusable(o))
		}
		return errMoved
	}
	switch err := e.takeNext(o, now); {
	case err == nil:
		o.changed = e.changes(o)
		return nil
	case errors.Is(err, ipam.ErrFull):
		return errMoved
	default:
		return refusedTake(err)
	}
}

// applyRestore restores a lost record. The node of the block does not matter: the pod has the
// address.
func (e *entry) applyRestore(o *op, now ipam.Moment) error {
	if e.foreign {
		return fmt.Errorf("%w: %s lies in block %s, which %s", fault.ErrConflict, o.addr, e.name, e.unusable(o))
	}
	before, _ := e.next.Slot(o.addr)
	var err error
	if i := slices.IndexFunc(o.beside, before.Has); i >= 0 {
		err = e.next.Join(o.holder, o.beside[i], o.addr, o.claim, now)
	} else {
		_, err = e.next.Restore(o.holder, o.addr, o.claim, now)
	}
	if err != nil {
		return refusedTake(err)
	}
	after, _ := e.next.Slot(o.addr)
	o.changed = before != after || e.obj == nil
	return nil
}

func refusedTake(err error) error {
	if _, taken := errors.AsType[*ipam.TakenError](err); taken {
		return fmt.Errorf("%w: %w", fault.ErrConflict, err)
	}
	return fmt.Errorf("%w: %w", fault.ErrInvalid, err)
}

// changes reports whether an applied take changes the record of its address.
func (e *entry) changes(o *op) bool {
	was, _ := e.base.Slot(o.got)
	is, _ := e.next.Slot(o.got)
	return !was.Has(o.holder) || was.Claim != is.Claim
}

// takeNext takes an address of e.next.
func (e *entry) takeNext(o *op, now ipam.Moment) (err error) {
	addr := o.addr
	if !addr.IsValid() && o.claim != "" {
		addr, _ = e.next.Own(o.pool(), o.holder, o.claim) // if the claim has none, Take finds another of the holder's
	}
	shares := func() bool {
		s, _ := e.next.Slot(addr)
		return o.join != (ipam.Holder{}) && s.Has(o.join)
	}
	switch {
	case addr.IsValid() && shares():
		o.got, err = addr, e.next.Join(o.holder, o.join, addr, o.claim, now)
	case addr.IsValid():
		o.got, err = addr, e.next.TakeAddr(o.pool(), o.holder, addr, o.claim, now)
	default:
		o.got, err = e.next.Take(o.pool(), o.holder, o.early, now)
	}
	if err == nil && o.claim != "" {
		err = e.next.Keep(o.holder, o.got, o.claim)
	}
	return err
}

// newlyReserved reports whether an unwritten take has chosen an address that its pool
// no longer hands out.
func (e *entry) newlyReserved() bool {
	return slices.ContainsFunc(e.flight, func(o *op) bool {
		return o.kind == opTake && o.changed && o.join == (ipam.Holder{}) && !o.pool().Allows(o.got)
	})
}

func (e *entry) applyFree(o *op, now ipam.Moment) (changed bool) {
	if o.addr.IsValid() {
		s, _ := e.next.Slot(o.addr)
		if o.since.IsZero() {
			o.since = s.SinceOf(o.holder)
		}
		return o.since.Equal(s.SinceOf(o.holder)) && e.next.Free(o.holder, o.addr, now)
	}
	for {
		a, ok := e.next.Find(o.holder)
		if !ok || !e.next.Free(o.holder, a, now) {
			return changed
		}
		changed = true
	}
}

// unusable returns why a take may not use the block, as the end of a sentence.
func (e *entry) unusable(o *op) string {
	switch {
	case e.foreign:
		return "is being deleted, or has a name that does not match its content"
	case e.node != "" && o.node != "":
		return fmt.Sprintf("is routed to node %s, and the pod is on node %s: ask for an address of one of that node's blocks, for none, or run the pod on node %s", e.node, o.node, e.node)
	case e.node != "":
		return "is routed to another node" // the name of the other node is not for every user
	default:
		return "is shared by all nodes"
	}
}

// object returns the IPBlock to write.
func (e *entry) object(b *ipam.Block) *v1alpha1.IPBlock {
	out := &v1alpha1.IPBlock{}
	if e.obj != nil {
		e.obj.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	} else {
		out.Name = e.name
		out.Labels = map[string]string{v1alpha1.LabelDomain: e.domain}
		if e.node != "" && len(e.node) <= maxLabel {
			out.Labels[v1alpha1.LabelNode] = e.node
		}
	}
	out.Spec = v1alpha1.IPBlockSpec{
		Domain: e.domain,
		CIDR:   e.prefix.String(),
		Node:   e.node,
		Used:   int32(b.Used()),
		Slots:  b.Encode(),
	}
	return out
}

// maxLabel is the longest value of a label. The label is for people who list blocks; a
// block of a node with a longer name has none.
const maxLabel = 63
