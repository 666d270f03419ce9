package nft

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/go-logr/logr"
)

const (
	// batchPause is how long Run waits for further changes before a transaction, if no
	// caller waits for it: the ADD that made the change is answered first. While changes
	// keep coming Run waits on, up to batchLimit, because each run of nft takes processor
	// time from the pods that start. Until the transaction is done the pod's packets are
	// dropped. Both durations are well below the time that a runtime on such a busy node
	// needs from the ADD to a container's first process.
	batchPause = 25 * time.Millisecond
	batchLimit = 100 * time.Millisecond
	// retryFirst and retryLast bound the wait after a failed transaction.
	retryFirst = 100 * time.Millisecond
	retryLast  = 30 * time.Second
	// missingAfter is how long a change may be on its way into the kernel, without a
	// failed transaction, before Missing reports it. A busy node needs far less.
	missingAfter = 5 * time.Second
)

var (
	// errNoNode means that SetNode has not been called, so nothing is written.
	errNoNode = errors.New("the node's blocks are not known yet")
	// errNoTime means that the caller's wait ended before the transaction.
	errNoTime = errors.New("nft was not done in time")
)

// Keeper keeps the tables in the wanted state. While a transaction runs, further changes
// queue and share the next one. Its methods are safe for concurrent use.
type Keeper struct {
	apply   func(context.Context, Change) error
	pending chan struct{} // there are changes to write
	urgent  chan struct{} // write at once: a caller waits

	mu   sync.Mutex
	want wanted
	node *Node
	// rules is the node whose rules are in the kernel; nil if unknown.
	rules *Node
	have  elements // in the kernel; valid if rules is not nil

	// requested counts the changes. done is the last change that is in the kernel. repair
	// is the last change that repairs tables that another program changed.
	requested, done, repair uint64
	// since is the time of the last change of each sandbox's elements.
	since map[string]time.Time
	// first and last bound the revisions that this Keeper wrote.
	first, last uint32
	reason      error         // why changes are not in the kernel
	changed     chan struct{} // closed after each transaction, then replaced
}

// New returns a Keeper that writes with apply: Kernel.Apply, or a fake of it.
func New(apply func(context.Context, Change) error) *Keeper {
	start := rand.Uint32() //nolint:gosec // it only distinguishes this process from the previous one
	return &Keeper{
		apply: apply, pending: make(chan struct{}, 1), urgent: make(chan struct{}, 1),
		want: newWanted(), since: map[string]time.Time{}, first: start, last: start, reason: errNoNode, changed: make(chan struct{}),
	}
}

// SetNode sets the node's part of the rules. Before the first call nothing is written:
// the tables of an earlier daemon stay.
func (k *Keeper) SetNode(n Node) {
	elements := nodeElements(&n)
	k.mu.Lock()
	defer k.mu.Unlock()
	changed := k.want.set("", elements) || k.node == nil || !sameRules(k.node, &n)
	k.node = &n
	if changed {
		k.request()
		signal(k.urgent)
	}
}

// SetPod sets the rules of a sandbox.
func (k *Keeper) SetPod(containerID string, p Pod) {
	k.setElements(containerID, podElements(p))
}

// RemovePod removes the rules of a sandbox. It does nothing if there are none.
func (k *Keeper) RemovePod(containerID string) {
	k.setElements(containerID, nil)
}

func (k *Keeper) setElements(containerID string, e elements) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.want.set(containerID, e) {
		return
	}
	if len(e) > 0 {
		k.since[containerID] = time.Now()
	} else {
		delete(k.since, containerID)
	}
	k.request()
}

// request makes Run write the changes. The caller holds the lock.
func (k *Keeper) request() {
	k.requested++
	signal(k.pending)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Ready returns nil if the last transaction succeeded, otherwise the reason why changes
// are not in the kernel. Before SetNode it returns an error.
func (k *Keeper) Ready() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.reason
}

// Changes returns a channel that is closed when the result of Ready may have changed.
func (k *Keeper) Changes() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.changed
}

// Wait waits until all changes made before the call are in the kernel and no repair is
// pending. If ctx ends first, it returns an error with the reason.
func (k *Keeper) Wait(ctx context.Context) error {
	k.mu.Lock()
	upTo := k.requested
	k.mu.Unlock()
	for {
		k.mu.Lock()
		done, reason, changed := k.done >= max(upTo, k.repair), k.reason, k.changed
		k.mu.Unlock()
		if done {
			return nil
		}
		signal(k.urgent)
		select {
		case <-changed:
		case <-ctx.Done():
			if reason == nil {
				reason = errNoTime
			}
			return fmt.Errorf("the node's packet filter: %w (%w)", reason, context.Cause(ctx))
		}
	}
}

// Missing describes the elements of a sandbox that are not in the kernel, or the reason
// why that is unknown; nil if none is missing. It only reads memory. It does not report a
// change within missingAfter, unless a transaction has failed or another program changed
// the tables. Before SetNode it reports nothing, because the tables of an earlier daemon
// stay.
func (k *Keeper) Missing(containerID string) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	want := k.want.owners[containerID]
	switch {
	case errors.Is(k.reason, errNoNode):
		return nil
	case k.reason != nil:
		return []string{"the tables in the kernel are unknown: " + k.reason.Error()}
	case k.repair > k.done:
		return []string{"another program changed its tables, and they are not restored yet"}
	case time.Since(k.since[containerID]) < missingAfter:
		return nil
	}
	var lacks []Element
	for p, value := range want {
		if have, there := k.have[p]; !there || have != value {
			lacks = append(lacks, element(p, value))
		}
	}
	var out []string
	for _, e := range inOrder(lacks) {
		out = append(out, "element "+e.String()+" is missing")
	}
	return out
}

// Noticed reports a change of the tables in the kernel. revision is the last revision in
// that change, 0 if it has none. Run repairs the tables if the revision is not one of
// this Keeper.
func (k *Keeper) Noticed(revision uint32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.node == nil || revision != 0 && revision-k.first <= k.last-k.first {
		return
	}
	k.request()
	k.repair = k.requested
	signal(k.urgent)
}

// Run writes changes until ctx ends, then returns nil. The tables stay.
func (k *Keeper) Run(ctx context.Context) error {
	log := logr.FromContextOrDiscard(ctx)
	wait := retryFirst
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-k.urgent:
		case <-k.pending:
			if !k.gather(ctx) {
				return nil
			}
		}
		select {
		case <-k.pending: // the next transaction includes these changes
		default:
		}
		c, upTo := k.next()
		if c == nil {
			continue
		}
		err := k.apply(ctx, *c)
		k.finish(c, upTo, err)
		if err != nil {
			if ctx.Err() == nil {
				log.Error(err, "packet filter not written, retrying", "after", wait)
			}
			if !pause(ctx, wait, nil) {
				return nil
			}
			wait = min(2*wait, retryLast)
			signal(k.pending)
			continue
		}
		if c.Whole != nil {
			log.Info("packet filter written", "elements", len(c.Add))
		}
		wait = retryFirst
	}
}

// gather waits for further changes; false if ctx has ended.
func (k *Keeper) gather(ctx context.Context) bool {
	for start := time.Now(); ; {
		if !pause(ctx, batchPause, k.urgent) {
			return false
		}
		if len(k.urgent) > 0 || time.Since(start) >= batchLimit {
			return true
		}
		select {
		case <-k.pending:
		default:
			return true
		}
	}
}

// pause waits for d, or until a caller waits; false if ctx has ended.
func pause(ctx context.Context, d time.Duration, urgent chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-urgent:
		signal(urgent)
		return true
	case <-ctx.Done():
		return false
	}
}

// next returns the next transaction and the last change in it; nil if there is nothing to
// write.
func (k *Keeper) next() (*Change, uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.node == nil {
		return nil, 0
	}
	c := &Change{Revision: k.last + 1}
	if c.Revision == 0 { // 0 means no revision
		c.Revision++
	}
	if k.rules == nil || k.repair > k.done || !sameRules(k.rules, k.node) {
		c.Whole, c.Add = k.node, k.want.all()
	} else {
		c.Delete, c.Add = k.want.differences(k.have)
		if len(c.Delete)+len(c.Add) == 0 {
			k.succeeded(k.requested)
			return nil, 0
		}
	}
	k.last = c.Revision
	return c, k.requested
}

// finish records the result of a transaction.
func (k *Keeper) finish(c *Change, upTo uint64, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		// The cause may be that another program changed the tables.
		k.rules, k.reason = nil, err
		k.announce()
		return
	}
	if c.Whole != nil {
		k.rules, k.have = c.Whole, elements{}
	}
	for _, e := range c.Delete {
		delete(k.have, e.place())
	}
	for _, e := range c.Add {
		k.have[e.place()] = e.Value
	}
	k.succeeded(upTo)
}

func (k *Keeper) succeeded(upTo uint64) {
	k.done, k.reason = max(k.done, upTo), nil
	k.announce()
}

func (k *Keeper) announce() {
	close(k.changed)
	k.changed = make(chan struct{})
}

// sameRules reports whether two nodes differ in elements only.
func sameRules(a, b *Node) bool {
	return a.Masquerade == b.Masquerade && a.Tunnel == b.Tunnel
}
