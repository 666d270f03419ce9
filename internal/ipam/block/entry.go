package block

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
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

// add creates the entry of an unknown block. The caller decides whether the block must
// be read first.
func (s *Store) add(domain string, prefix netip.Prefix, node string) *entry {
	e := &entry{
		name: ipam.BlockName(domain, prefix), domain: domain, prefix: prefix,
		kick: make(chan struct{}, 1),
	}
	e.base = s.fresh(prefix, node)
	e.next = e.base
	s.blocks[e.name] = e
	s.setNode(e, node)
	return e
}

// setNode records which node the block is routed to.
func (s *Store) setNode(e *entry, node string) {
	if m := s.byNode[e.node]; m != nil {
		delete(m, e.name)
		if len(m) == 0 {
			delete(s.byNode, e.node)
		}
	}
	e.node = node
	if node == "" {
		return
	}
	if s.byNode[node] == nil {
		s.byNode[node] = map[string]*entry{}
	}
	s.byNode[node][e.name] = e
}

// learn adopts a state that the API has.
func (s *Store) learn(e *entry, obj *v1alpha1.IPBlock) { s.takeOver(e, obj, s.read(e, obj)) }

// read decodes a state of the block and adds when this process saw its addresses become
// free or held. It compares with the last state that the process knew, also if the
// informer brought this state while the block was busy.
func (s *Store) read(e *entry, obj *v1alpha1.IPBlock) *ipam.Block {
	before := e.base
	switch u := s.pending[e]; {
	case u.obj != nil && !newer(u.obj, obj):
		before = u.block
	case e.obj == nil && before.Used() == 0:
		before = nil // base was only assumed: the block was unknown
	}
	var slots []string
	if _, ok := prefixOf(obj); ok {
		slots = obj.Spec.Slots
	}
	b := ipam.DecodeBlock(e.prefix, obj.Spec.Node, slots)
	b.Watch(before, s.now())
	return b
}

func (s *Store) takeOver(e *entry, obj *v1alpha1.IPBlock, b *ipam.Block) {
	_, ok := prefixOf(obj)
	e.foreign = !ok || obj.DeletionTimestamp != nil
	delete(s.buried, e.name)
	s.setNode(e, obj.Spec.Node)
	s.rebase(e, obj, b)
	e.rebuild(s.now())
}

// rebase sets the known state and updates the indexes.
func (s *Store) rebase(e *entry, obj *v1alpha1.IPBlock, base *ipam.Block) {
	old := e.base
	e.obj, e.base = obj, base
	for slot := range old.Slots() {
		if now, _ := base.Slot(slot.Addr); now != slot {
			s.unindex(e, slot)
		}
	}
	for slot := range base.Slots() {
		if was, _ := old.Slot(slot.Addr); was != slot {
			s.index(e, slot)
		}
	}
}

func (s *Store) index(e *entry, slot ipam.Slot) {
	for _, l := range s.leasesOf(e, slot) {
		if l.Holder != (ipam.Holder{}) {
			k := keyOf(l.Holder)
			s.leases[k] = append(s.leases[k], l)
		}
		if l.Claim != "" {
			s.claims[l.Claim] = append(s.claims[l.Claim], l)
		}
	}
	if t, ok := e.tenant(slot); ok {
		if s.tenants[t] == nil {
			s.tenants[t] = map[netip.Addr]string{}
		}
		s.tenants[t][slot.Addr] = heldFor(slot)
	}
}

func (s *Store) unindex(e *entry, slot ipam.Slot) {
	for _, l := range s.leasesOf(e, slot) {
		if l.Holder != (ipam.Holder{}) {
			without(s.leases, keyOf(l.Holder), l)
		}
		if l.Claim != "" {
			without(s.claims, l.Claim, l)
		}
	}
	if t, ok := e.tenant(slot); ok {
		if delete(s.tenants[t], slot.Addr); len(s.tenants[t]) == 0 {
			delete(s.tenants, t)
		}
	}
}

// tenant returns the namespace whose quota the slot counts for: that of its holder, or
// of the claim that it is held for. ok is false if it counts for none.
func (e *entry) tenant(slot ipam.Slot) (t tenant, ok bool) {
	if slot.State == ipam.Taken {
		return tenant{slot.Holder.Namespace, e.domain}, true
	}
	namespace, _, ok := strings.Cut(heldFor(slot), "/")
	return tenant{namespace, e.domain}, ok
}

// heldFor returns the claim that a slot without a holder is held for; empty for none.
func heldFor(slot ipam.Slot) string {
	if slot.State != ipam.Held {
		return ""
	}
	return slot.Claim
}

// without removes a lease from an index. Two holders of an address have a lease each.
func without[K comparable](index map[K][]Lease, k K, l Lease) {
	left := slices.DeleteFunc(index[k], func(o Lease) bool { return o.Block == l.Block && o.Addr == l.Addr && o.Holder.Same(l.Holder) })
	if len(left) == 0 {
		delete(index, k)
		return
	}
	index[k] = left
}

// leasesOf returns the leases of a slot: one for each holder; one without a holder for any
// slot that has none.
func (s *Store) leasesOf(e *entry, slot ipam.Slot) []Lease {
	l := s.lease(e, slot)
	if slot.Second == (ipam.Holder{}) {
		return []Lease{l}
	}
	second := l
	second.Holder, second.Since = slot.Second, slot.Joined
	return []Lease{l, second}
}

func (s *Store) lease(e *entry, slot ipam.Slot) Lease {
	return Lease{
		Holder: slot.Holder, Domain: e.domain, Addr: slot.Addr, Block: e.name, Since: slot.Since, Claim: slot.Claim,
		Seen: s.begin.Add(e.base.Since(slot.Ordinal)),
	}
}

// objectGone handles the disappearance of the object. If addresses of it are taken, it
// was deleted by mistake: the entry keeps its last state, so that the addresses are not
// handed out again, and the next change writes it again.
func (s *Store) objectGone(e *entry) {
	base := e.base
	if base.Used() == 0 {
		base = s.fresh(e.prefix, e.node)
	}
	s.rebase(e, nil, base)
	e.foreign = false
	e.rebuild(s.now())
}

// forgetEmpty removes the entry if it has no information and no work.
func (s *Store) forgetEmpty(e *entry) {
	if !e.busy && e.obj == nil && e.base.Used() == 0 && len(e.doubts) == 0 {
		s.setNode(e, "")
		delete(s.blocks, e.name)
	}
}

// settle ends the doubt about earlier writes: the API has answered since.
func (s *Store) settle(e *entry) {
	for _, k := range e.doubts {
		if s.doubts[k] == e {
			delete(s.doubts, k)
		}
	}
	e.doubts = nil
	e.doubtful = false
	e.cause = nil
}

// fail ends all operations of a block with err.
func (s *Store) fail(e *entry, err error) {
	for _, o := range slices.Concat(e.flight, e.queue) {
		s.abandon(e, o, err)
	}
	e.flight, e.queue = nil, nil
	e.next = e.base
}

// abandon ends an operation whose outcome may be unknown.
func (s *Store) abandon(e *entry, o *op, err error) {
	if o.uncertain && o.kind == opTake {
		s.doubts[keyOf(o.holder)] = e
		e.doubts = append(e.doubts, keyOf(o.holder))
	}
	o.finish(err)
}

// rebuild applies the operations to the known state again. Operations that are no
// longer possible end with the error of apply.
func (e *entry) rebuild(now ipam.Moment) {
	e.next = e.base
	apply := func(o *op) bool {
		err := e.apply(o, now)
		if err != nil {
			o.finish(err)
		}
		return err != nil
	}
	e.flight = slices.DeleteFunc(e.flight, apply)
	e.queue = slices.DeleteFunc(e.queue, apply)
}

// apply applies an operation to e.next. Errors of takes: errMoved, ErrConflict,
// ErrInvalid. Errors of restores: ErrConflict, ErrInvalid. Other operations do not fail.
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
			return fmt.Errorf("%w: %s lies in block %s, which %s", ErrConflict, o.addr, e.name, e.unusable(o))
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
		return fmt.Errorf("%w: %s lies in block %s, which %s", ErrConflict, o.addr, e.name, e.unusable(o))
	}
	changed, err := e.next.Restore(o.holder, o.addr, o.claim, now)
	if err != nil {
		return refusedTake(err)
	}
	o.changed = changed || e.obj == nil
	return nil
}

func refusedTake(err error) error {
	if _, taken := errors.AsType[*ipam.TakenError](err); taken {
		return fmt.Errorf("%w: %w", ErrConflict, err)
	}
	return fmt.Errorf("%w: %w", ErrInvalid, err)
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
		o.got, err = addr, e.next.TakeHeld(o.pool(), o.holder, addr, o.claim, now)
	case o.early:
		o.got, err = e.next.TakeEarly(o.pool(), o.holder, now)
	default:
		o.got, err = e.next.Take(o.pool(), o.holder, now)
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
