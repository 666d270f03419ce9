package ledger

import (
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/nft"
)

// Ledger has the records of the node's sandboxes, and the PodAttachments that the daemon
// has declared detached. A PodAttachment that is declared detached gets no ADD, and one
// with an ADD is not declared detached: one lock here decides between the two.
//
// Operations on one sandbox take turns (package locks), so its file is written outside
// the lock. A node has some 250 sandboxes at most, so a search for the records of a
// PodAttachment or a claim walks through all.
type Ledger struct {
	files  files
	BootID string
	// released is called, outside the lock, after an ADD was removed from a record. It
	// gets an empty record if the status of every PodAttachment may have to change.
	released func(*Record)

	mu       sync.Mutex
	records  map[string]*Record       // by container ID
	detached map[types.UID]detachment // by UID of the PodAttachment
	gone     chan struct{}            // closed when an ADD is removed, then replaced
	ends     map[string]*Record       // the DELs that NoteEnd took, by container ID
}

// detachment is the state of a PodAttachment that outlives its records.
type detachment struct {
	// declared is true if the status is Detached, or is about to be. No ADD gets the
	// PodAttachment any more.
	declared bool
	// at is the time at which this daemon last removed an ADD, after its links were gone
	// from the kernel. It is zero if it has not.
	at time.Time
	// sandbox is the container ID of that ADD.
	sandbox string
	// ended is the time since which the change has been SetEnded, zero if it is another.
	ended time.Time
}

// New returns an empty ledger that keeps its records in dir. released is called, without a
// lock, after an ADD was removed from a record, or the record itself. It gets an empty record
// if the status of every PodAttachment may have to change.
func New(dir, bootID string, released func(*Record)) *Ledger {
	return &Ledger{
		files: files{dir: dir}, BootID: bootID, released: released,
		records: map[string]*Record{}, detached: map[types.UID]detachment{}, gone: make(chan struct{}),
		ends: map[string]*Record{},
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
	return l.matching(func(*Record) bool { return true })
}

// Holding returns the records of the sandboxes of a PodAttachment, by container ID.
func (l *Ledger) Holding(uid types.UID) []*Record {
	return l.matching(func(r *Record) bool { return r.Attachment.UID == uid })
}

func (l *Ledger) matching(is func(*Record) bool) (out []*Record) {
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

// first returns the matching record with the lowest container ID, nil if there is none.
// The caller holds the lock.
func (l *Ledger) first(is func(*Record) bool) (first *Record) {
	for id, r := range l.records {
		if (first == nil || id < first.ContainerID) && is(r) {
			first = r
		}
	}
	return first
}

// Count returns the number of sandboxes with an ADD that Fairlead plugs.
func (l *Ledger) Count() int {
	return len(l.matching(func(r *Record) bool { return r.Plug() != nil }))
}

// Adopt puts a record into the ledger without writing it to disk: it is on disk already,
// or is kept in memory alone.
func (l *Ledger) Adopt(r *Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.set(r)
}

// set replaces the record of a sandbox. If the new record names no PodAttachment, or that of
// the old one, it gets the pod of the old one: the sandbox may have been identified
// (identify) while the operation worked on an older copy.
func (l *Ledger) set(r *Record) {
	if old := l.records[r.ContainerID]; old != nil && (r.Attachment.UID == "" || r.Attachment.Name == old.Attachment.Name) {
		r.Pod, r.Attachment = old.Pod, old.Attachment
	}
	l.records[r.ContainerID] = r
}

// Claim is the outcome of an attempt to claim a PodAttachment for an ADD.
type Claim struct {
	// Record is the record with the ADD, nil if the claim failed.
	Record *Record
	// Declared is true if the PodAttachment is declared detached.
	Declared bool
	// Before is another sandbox that has an interface of the ADD, or addresses of a
	// claim of the ADD.
	Before *Record
	// Taken is a host port that the ADD asks for and that sandbox By has.
	Taken *nft.Port
	By    *Record
	// Gone is closed when some ADD is removed from a record.
	Gone <-chan struct{}
}

// Claim is the first step of an ADD. It puts the ADD into the record of the sandbox, so
// that the PodAttachment is not declared detached from here on. sandbox is a record
// without ADDs.
//
// The ADD is in memory alone. If the daemon is killed before the record is on disk, the
// next daemon finds the links on the host that were made. An ADD with interfaces that have
// no link on the host is Put before they are made.
func (l *Ledger) Claim(sandbox *Record, a Add) Claim {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.detached[sandbox.Attachment.UID].declared {
		return Claim{Declared: true}
	}
	before := l.first(func(o *Record) bool {
		return o.ContainerID != sandbox.ContainerID && (o.Attachment.UID == sandbox.Attachment.UID && (o.Damaged || o.holds(&a)) || o.keeps(&a))
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

// holds reports whether a sandbox has an interface or an address that an ADD for the
// same PodAttachment asks for.
func (r *Record) holds(a *Add) bool {
	return slices.ContainsFunc(r.Adds, func(o Add) bool { return o.shares(a) })
}

// keeps reports whether a sandbox has addresses of one of the claims of an ADD. The pod
// that inherits a claim may come to this node before the links of its predecessor are
// gone.
func (r *Record) keeps(a *Add) bool {
	claims := a.claims()
	shared := func(c string) bool { return slices.Contains(claims, c) }
	wanted := func(i v1alpha1.Interface) bool { return shared(i.Claim) }
	return slices.ContainsFunc(r.Wanted, wanted) || slices.ContainsFunc(r.Adds, func(o Add) bool { return slices.ContainsFunc(o.claims(), shared) })
}

// conflict returns the first of ports that another sandbox has, and that sandbox's
// record; nil if there is none. The ports of an ADD that is being deleted are free.
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

// has reports whether a host port overlaps with a host port of a sandbox.
func (r *Record) has(p nft.Port) bool {
	return slices.ContainsFunc(r.Adds, func(a Add) bool {
		return a.State != Deleting && slices.ContainsFunc(a.HostPorts, p.Overlaps)
	})
}

// Drop forgets a PodAttachment that has been deleted.
func (l *Ledger) Drop(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.detached, uid)
}

// LastEnd returns the sandbox and the time at which this daemon last learned that an
// interface of a PodAttachment is gone, "" and the present time if it has learned of none.
func (l *Ledger) LastEnd(uid types.UID) (containerID string, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if d := l.detached[uid]; !d.at.IsZero() {
		return d.sandbox, d.at
	}
	return "", time.Now()
}

// EndedFor returns how long the change for a PodAttachment has been SetEnded, 0 if it is another.
func (l *Ledger) EndedFor(uid types.UID) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ended := l.detached[uid].ended; !ended.IsZero() {
		return time.Since(ended)
	}
	return 0
}

// Read reads the records that the previous daemon left, and returns those that could not be
// read, whose sandboxes have no record.
func (l *Ledger) Read() ([]damaged, error) {
	records, bad, err := l.files.read()
	if err != nil {
		return nil, err
	}
	for _, r := range records {
		l.Adopt(r)
	}
	return bad, nil
}

// Prepare writes a record into a temporary file, for Publish.
func (l *Ledger) Prepare(r *Record) error { return l.files.prepare(r) }

// Discard removes the prepared file of a sandbox, if there is one.
func (l *Ledger) Discard(containerID string) { l.files.discard(containerID) }

// Put replaces a record, on disk first.
func (l *Ledger) Put(r *Record) error {
	if err := l.files.prepare(r); err != nil {
		return err
	}
	return l.Publish(r)
}

// Publish replaces a record with r, whose file Prepare wrote, on disk first.
func (l *Ledger) Publish(r *Record) error {
	if err := l.files.publish(r.ContainerID); err != nil {
		return err
	}
	l.Adopt(r)
	return nil
}

// Finish removes ADDs from the record of a sandbox, on disk first, when nothing is left
// of them in the kernel. The record goes with its last ADD, and a damaged one at once. An
// unknown sandbox is no error.
func (l *Ledger) Finish(containerID string, adds ...Add) error {
	r := l.Get(containerID)
	if r == nil {
		return nil
	}
	r = r.With(func(r *Record) {
		r.Adds = slices.DeleteFunc(r.Adds, func(a Add) bool { return slices.ContainsFunc(adds, a.same) })
	})
	empty := len(r.Adds) == 0
	if empty {
		if err := l.files.remove(r.ContainerID); err != nil {
			return err
		}
	} else if err := l.files.write(r); err != nil {
		return err
	}
	l.lose(r, empty)
	l.released(r)
	return nil
}

// AdoptDamaged enters a sandbox whose record could not be read. It is on disk for the next
// daemon; after an error it is in memory alone.
func (l *Ledger) AdoptDamaged(containerID string) error {
	r := l.damaged(containerID)
	l.Adopt(r)
	return l.files.write(r)
}

// lose replaces a record in memory with r, from which something was removed, and wakes the
// ADDs that wait for it. If r is empty, the record is removed.
func (l *Ledger) lose(r *Record, empty bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.set(r)
	if empty {
		delete(l.records, r.ContainerID)
	}
	if uid := r.Attachment.UID; uid != "" {
		d := l.detached[uid]
		d.at, d.sandbox = time.Now(), r.ContainerID
		l.detached[uid] = d
	}
	close(l.gone)
	l.gone = make(chan struct{})
}
