package ledger

import (
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/internal/nft"
)

// Ledger is the daemon's account of its sandboxes: the records, and of which
// PodAttachments it has said, or is about to say, that nothing is plugged. That
// ADD and that statement exclude each other is decided here, under one lock.
//
// Operations on one sandbox take turns (package turns), so its file is written
// outside the lock. A node has some 250 sandboxes at most: questions about a
// PodAttachment or a claim look at every record.
type Ledger struct {
	files  files
	BootID string
	// released is called, outside the lock, after an ADD was removed from a record. It
	// is called with an empty record when any PodAttachment may be concerned.
	released func(*Record)

	mu       sync.Mutex
	records  map[string]*Record       // by container ID
	detached map[types.UID]detachment // by UID of the PodAttachment
	gone     chan struct{}            // closed when an ADD is removed, then replaced
}

// detachment is what the daemon knows of a PodAttachment beyond its sandboxes.
type detachment struct {
	// declared is true if the status says, or is about to say, that nothing is
	// plugged. No ADD gets the PodAttachment from then on.
	declared bool
	// at is when the last ADD was gone from the kernel, as far as this daemon saw it.
	at time.Time
}

// New returns an empty ledger, whose records are kept in a directory. released is called
// after an ADD was removed from a record.
func New(dir, bootID string, released func(*Record)) *Ledger {
	return &Ledger{
		files: files{dir: dir}, BootID: bootID, released: released,
		records: map[string]*Record{}, detached: map[types.UID]detachment{}, gone: make(chan struct{}),
	}
}

// Get returns the record of a sandbox, or nil.
func (l *Ledger) Get(containerID string) *Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.records[containerID]
}

// All returns every record, by container ID.
func (l *Ledger) All() []*Record {
	return l.which(func(*Record) bool { return true })
}

// Holding returns the sandboxes of a PodAttachment, by container ID.
func (l *Ledger) Holding(uid types.UID) []*Record {
	return l.which(func(r *Record) bool { return r.Attachment.UID == uid })
}

func (l *Ledger) which(is func(*Record) bool) (out []*Record) {
	l.mu.Lock()
	for _, r := range l.records {
		if is(r) {
			out = append(out, r)
		}
	}
	l.mu.Unlock()
	slices.SortFunc(out, func(a, b *Record) int { return strings.Compare(a.ContainerID, b.ContainerID) })
	return out
}

// first returns the record of the given kind whose container ID comes first, nil
// without one. It is called under the lock.
func (l *Ledger) first(is func(*Record) bool) (first *Record) {
	for id, r := range l.records {
		if (first == nil || id < first.ContainerID) && is(r) {
			first = r
		}
	}
	return first
}

// Plugged returns how many sandboxes have interfaces that Fairlead plugs.
func (l *Ledger) Plugged() int {
	return len(l.which(func(r *Record) bool { return r.Plug() != nil }))
}

// Adopt takes over a record that is on disk already, or never will be.
func (l *Ledger) Adopt(r *Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.set(r)
}

// set keeps the pod of a record that was identified while the operation worked on a
// copy from before.
func (l *Ledger) set(r *Record) {
	if old := l.records[r.ContainerID]; old != nil && r.Attachment.UID == "" {
		r.Pod, r.Attachment = old.Pod, old.Attachment
	}
	l.records[r.ContainerID] = r
}

// Claim is what came of an attempt to claim a PodAttachment for an ADD.
type Claim struct {
	// Record is the record with the ADD, nil if nothing was put down.
	Record *Record
	// Declared is true if the status says, or is about to say, that nothing is plugged.
	Declared bool
	// Before is another sandbox that holds an interface of the ADD, or addresses that
	// are kept for it.
	Before *Record
	// Taken is a host port that the ADD asks for and By has.
	Taken *nft.Port
	By    *Record
	// Gone is closed when some ADD is removed from a record.
	Gone <-chan struct{}
}

// Claim is the first step of an ADD: it puts the ADD into the record of the sandbox,
// so that from here on nobody says that the PodAttachment is unplugged. The sandbox is
// what a record of it says that has no ADD yet.
//
// The ADD is in memory alone: if the daemon is killed before it is on disk, the links
// that were made tell the next daemon of it (adopt).
func (l *Ledger) Claim(sandbox *Record, a Add) Claim {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.detached[sandbox.Attachment.UID].declared {
		return Claim{Declared: true}
	}
	before := l.first(func(o *Record) bool {
		return o.ContainerID != sandbox.ContainerID && (o.Attachment.UID == sandbox.Attachment.UID && o.holds(&a) || o.keeps(&a))
	})
	if before != nil {
		return Claim{Before: before, Gone: l.gone}
	}
	if port, by := l.conflict(sandbox.ContainerID, a.HostPorts); by != nil {
		return Claim{Taken: port, By: by}
	}
	r := sandbox
	if old := l.records[sandbox.ContainerID]; old != nil {
		r = old.With(func(r *Record) {
			r.Pod, r.Attachment = sandbox.Pod, sandbox.Attachment
			if r.Netns == "" {
				r.Netns, r.NetnsID = sandbox.Netns, sandbox.NetnsID
			}
		})
	}
	r = r.WithAdd(a)
	l.set(r)
	return Claim{Record: r}
}

// holds reports whether a sandbox has an interface that an ADD for the same
// PodAttachment wants.
func (r *Record) holds(a *Add) bool {
	return slices.ContainsFunc(r.Adds, func(o Add) bool { return o.shares(a) })
}

// keeps reports whether a sandbox has addresses of one of the claims of an ADD. The
// pod that inherits a claim may be on this node while the links of the pod before
// still are.
func (r *Record) keeps(a *Add) bool {
	claims := a.claims()
	return len(claims) > 0 && slices.ContainsFunc(r.Adds, func(o Add) bool {
		return slices.ContainsFunc(o.claims(), func(c string) bool { return slices.Contains(claims, c) })
	})
}

// conflict finds the sandbox that has a host port which another one asks for. A
// sandbox that is being deleted has none any more.
func (l *Ledger) conflict(containerID string, ports []nft.Port) (*nft.Port, *Record) {
	if len(ports) == 0 {
		return nil, nil
	}
	var taken *nft.Port
	by := l.first(func(o *Record) bool {
		if o.ContainerID == containerID {
			return false
		}
		for _, p := range ports {
			if o.has(p) {
				taken = &p
				return true
			}
		}
		return false
	})
	return taken, by
}

// has reports whether a host port leads to a sandbox.
func (r *Record) has(p nft.Port) bool {
	return slices.ContainsFunc(r.Adds, func(a Add) bool {
		return a.State != Deleting && slices.ContainsFunc(a.HostPorts, p.Overlaps)
	})
}

// Drop forgets a PodAttachment that is no more.
func (l *Ledger) Drop(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.detached, uid)
}

// DetachedAt returns when the last ADD of a PodAttachment was gone from the kernel, as
// far as this daemon saw it, the present time otherwise.
func (l *Ledger) DetachedAt(uid types.UID) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at := l.detached[uid].at; !at.IsZero() {
		return at
	}
	return time.Now()
}

// Read takes over the records that the daemon before left, and returns those that are
// damaged. The sandbox of a damaged record has none, unless other files told of it.
func (l *Ledger) Read() ([]damaged, error) {
	records, bad, err := l.files.read()
	if err != nil {
		return nil, err
	}
	all := make(map[string]*Record, len(records))
	for _, r := range records {
		all[r.ContainerID] = r
	}
	more, err := l.files.upgrade(all, l.BootID)
	if err != nil {
		return nil, err
	}
	for _, r := range all {
		l.Adopt(r)
	}
	return append(bad, more...), nil
}

// Prepare has the file of a record ready, which Publish puts in its place.
func (l *Ledger) Prepare(r *Record) error { return l.files.prepare(r) }

// Discard removes what was prepared for a sandbox and is not to be published.
func (l *Ledger) Discard(containerID string) { l.files.discard(containerID) }

// Put replaces a record, on disk first.
func (l *Ledger) Put(r *Record) error {
	if err := l.files.prepare(r); err != nil {
		return err
	}
	return l.Publish(r)
}

// Publish is Put of a record whose file was prepared.
func (l *Ledger) Publish(r *Record) error {
	if err := l.files.publish(r.ContainerID); err != nil {
		return err
	}
	l.Adopt(r)
	return nil
}

// Finish removes ADDs from the record of a sandbox, of which nothing is left, on disk
// first. The record goes with its last ADD, unless it is incomplete.
func (l *Ledger) Finish(containerID string, adds ...Add) error {
	r := l.Get(containerID)
	if r == nil {
		return nil
	}
	return l.replace(r.With(func(r *Record) {
		r.Adds = slices.DeleteFunc(r.Adds, func(a Add) bool { return slices.ContainsFunc(adds, a.same) })
		for _, a := range adds {
			if a.AddressOnly() {
				r.deleted(a.IfName)
			}
		}
	}))
}

// deleted notes that an interface of another plugin is gone.
func (r *Record) deleted(ifName string) {
	if r.Incomplete && !slices.Contains(r.Deleted, ifName) {
		r.Deleted = append(r.Deleted, ifName)
	}
}

// NoteDeleted notes in an incomplete record that an interface of another plugin is
// gone, on disk first.
func (l *Ledger) NoteDeleted(r *Record, ifName string) error {
	return l.replace(r.With(func(r *Record) { r.deleted(ifName) }))
}

// Complete notes that a sandbox has no interface that its record lacks, on disk first.
func (l *Ledger) Complete(r *Record) error {
	return l.replace(r.With(func(r *Record) { r.Incomplete, r.Deleted = false, nil }))
}

// replace puts a record in place of one that said more, or removes it if nothing is
// left of the sandbox.
func (l *Ledger) replace(r *Record) error {
	empty := len(r.Adds) == 0 && !r.Incomplete
	if empty {
		if err := l.files.remove(r.ContainerID); err != nil {
			return err
		}
	} else if err := l.files.write(r); err != nil {
		return err
	}
	l.mu.Lock()
	l.set(r)
	if empty {
		delete(l.records, r.ContainerID)
	}
	d := l.detached[r.Attachment.UID]
	d.at = time.Now()
	l.detached[r.Attachment.UID] = d
	close(l.gone)
	l.gone = make(chan struct{})
	l.mu.Unlock()
	l.released(r)
	return nil
}

// Remembered is how many things are remembered, by kind.
func (l *Ledger) Remembered() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return map[string]int{"sandboxes": len(l.records), "detached": len(l.detached)}
}
