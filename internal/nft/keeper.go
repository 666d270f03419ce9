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
	// pace is how long a change waits for others before its transaction, when
	// nobody waits for it: the ADD that made it is to be answered first. As long as
	// others come it waits on, up to storm: each run of nft takes processor time from
	// the pods that start. What a pod sends before it is dropped, so both are well
	// below what a runtime needs, on a node as busy as that, from the ADD to a
	// container's first process.
	pace  = 25 * time.Millisecond
	storm = 100 * time.Millisecond
	// retryFirst and retryLast bound the wait after a transaction that failed.
	retryFirst = 100 * time.Millisecond
	retryLast  = 30 * time.Second
	// patience is how long a change that was never refused may be on its way into
	// the kernel before Missing speaks of it. A busy node needs far less.
	patience = 5 * time.Second
)

var (
	// errNoNode says that nothing was written yet.
	errNoNode = errors.New("the node's blocks are not known yet")
	// errNoTime says that a transaction took longer than somebody waited.
	errNoTime = errors.New("nft was not done in time")
)

// Keeper keeps the tables as they are wanted. While one transaction is under way
// all other changes queue, and ride on the next together. Its methods may be
// called from many goroutines at once.
type Keeper struct {
	apply  func(context.Context, Change) error
	kicked chan struct{} // something is to be done
	hurry  chan struct{} // and somebody waits for it

	mu   sync.Mutex
	want wanted
	node *Node
	// rules is the node whose rules are in the kernel, nil when that is not known.
	rules *Node
	have  elements // in the kernel, when rules are

	// asked and done count the changes, and those of them that are in the kernel;
	// lost is the last of them that is to put right what somebody else did.
	asked, done, lost uint64
	// since says when each sandbox's elements were changed.
	since map[string]time.Time
	// first and last are the revisions that this Keeper wrote.
	first, last uint32
	reason      error         // why not everything is in the kernel
	changed     chan struct{} // closed after each transaction, then replaced
}

// New makes a Keeper on top of Kernel.Apply, or of something that takes its place.
func New(apply func(context.Context, Change) error) *Keeper {
	start := rand.Uint32() //nolint:gosec // it only tells one process from the one before
	return &Keeper{
		apply: apply, kicked: make(chan struct{}, 1), hurry: make(chan struct{}, 1),
		want: newWanted(), since: map[string]time.Time{}, first: start, last: start, reason: errNoNode, changed: make(chan struct{}),
	}
}

// SetNode says what the rules need to know of the node. Before that nothing is
// written: what an earlier daemon wrote stays.
func (k *Keeper) SetNode(n Node) {
	elements := nodeElements(&n)
	k.mu.Lock()
	defer k.mu.Unlock()
	changed := k.want.set("", elements) || k.node == nil || !sameRules(k.node, &n)
	k.node = &n
	if changed {
		k.ask()
		poke(k.hurry)
	}
}

// SetPod says what the rules need to know of a sandbox.
func (k *Keeper) SetPod(containerID string, p Pod) {
	k.setElements(containerID, podElements(p))
}

// RemovePod takes away what is there for a sandbox. It needs nothing but its ID.
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
	k.ask()
}

// ask has Run look; with the lock held.
func (k *Keeper) ask() {
	k.asked++
	poke(k.kicked)
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Ready says why not everything that was set is kept in the kernel, or nil.
func (k *Keeper) Ready() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.reason
}

// Changes is closed when there may be something new to Ready.
func (k *Keeper) Changes() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.changed
}

// Wait returns when everything that was set before is in the kernel. When ctx
// ends first, the error says what hinders it.
func (k *Keeper) Wait(ctx context.Context) error {
	k.mu.Lock()
	upTo := k.asked
	k.mu.Unlock()
	for {
		k.mu.Lock()
		done, reason, changed := k.done >= max(upTo, k.lost), k.reason, k.changed
		k.mu.Unlock()
		if done {
			return nil
		}
		poke(k.hurry)
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

// Missing says, in words, what of a sandbox is not in the kernel, or why that is
// not known. It asks nobody. Of a change that was never refused it says nothing
// for a while; nor does it before SetNode: what an earlier daemon wrote stays.
func (k *Keeper) Missing(containerID string) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	want := k.want.owners[containerID]
	switch {
	case len(want) == 0, errors.Is(k.reason, errNoNode):
		return nil
	case k.reason != nil:
		return []string{"what is in the kernel is not known: " + k.reason.Error()}
	case k.lost > k.done:
		return []string{"somebody else changed its tables, and they are not restored yet"}
	case time.Since(k.since[containerID]) < patience:
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

// Noticed is told of the last revision in each change that somebody made to the
// tables, 0 when there is none. What this Keeper did not do is put right.
func (k *Keeper) Noticed(revision uint32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.node == nil || revision != 0 && revision-k.first <= k.last-k.first {
		return
	}
	k.ask()
	k.lost = k.asked
	poke(k.hurry)
}

// Run writes until ctx ends. What it wrote stays.
func (k *Keeper) Run(ctx context.Context) error {
	log := logr.FromContextOrDiscard(ctx)
	wait := retryFirst
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-k.hurry:
		case <-k.kicked:
			if !k.gather(ctx) {
				return nil
			}
		}
		select {
		case <-k.kicked: // what it was about is seen now
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
				log.Error(err, "packet filter was not written, will be tried again", "after", wait)
			}
			if !pause(ctx, wait, nil) {
				return nil
			}
			wait = min(2*wait, retryLast)
			poke(k.kicked)
			continue
		}
		if c.Whole != nil {
			log.Info("packet filter written", "elements", len(c.Add))
		}
		wait = retryFirst
	}
}

// gather waits for the changes that belong together; false when ctx ended.
func (k *Keeper) gather(ctx context.Context) bool {
	for start := time.Now(); ; {
		if !pause(ctx, pace, k.hurry) {
			return false
		}
		if len(k.hurry) > 0 || time.Since(start) >= storm {
			return true
		}
		select {
		case <-k.kicked:
		default:
			return true
		}
	}
}

// pause waits, or less when somebody is in a hurry; false when ctx ended.
func pause(ctx context.Context, d time.Duration, hurry chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-hurry:
		poke(hurry)
		return true
	case <-ctx.Done():
		return false
	}
}

// next is the transaction that is due, and the last change that is in it; nil
// when nothing is.
func (k *Keeper) next() (*Change, uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.node == nil {
		return nil, 0
	}
	c := &Change{Revision: k.last + 1}
	if c.Revision == 0 { // which says that there is none
		c.Revision++
	}
	if k.rules == nil || k.lost > k.done || !sameRules(k.rules, k.node) {
		c.Whole, c.Add = k.node, k.want.all()
	} else {
		c.Delete, c.Add = k.want.differences(k.have)
		if len(c.Delete)+len(c.Add) == 0 {
			k.succeeded(k.asked)
			return nil, 0
		}
	}
	k.last = c.Revision
	return c, k.asked
}

// finish notes what came of a transaction.
func (k *Keeper) finish(c *Change, upTo uint64, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		// It may have been refused because the tables are not as we left them.
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

// sameRules tells whether two nodes differ in elements only.
func sameRules(a, b *Node) bool {
	return a.Bridge == b.Bridge && a.LinkGroup == b.LinkGroup && a.Masquerade == b.Masquerade && a.Tunnel == b.Tunnel
}
