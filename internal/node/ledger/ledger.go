package ledger

import (
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/nft"
)

// Ledger is the daemon's account of its sandboxes: the records, and of which
// PodAttachments it has said, or is about to say, that nothing is plugged. That
// ADD and that statement exclude each other is decided here, under one lock.
//
// Operations on one sandbox are serialized by the manager, so its file is
// written outside the lock.
type Ledger struct {
	files  files
	BootID string
	// released is called, outside the lock, after a record was removed.
	released func(*Record)

	Mu      sync.Mutex
	Records map[string]*Record                // by container ID
	Holders map[types.UID]map[string]struct{} // container IDs by UID of the PodAttachment
	sealed  map[types.UID]struct{}            // PodAttachments that are said to be unplugged
	ended   map[types.UID]time.Time           // when the last sandbox of a PodAttachment was gone
	gone    chan struct{}                     // closed when a record is removed, then replaced
	heirs   heirs
	book    addressBook // of interfaces of other plugins
}

// New returns an empty ledger, whose records are kept in a directory. released is called
// after a record was removed.
func New(dir, bootID string, released func(*Record)) *Ledger {
	return &Ledger{
		files:    files{dir: dir},
		BootID:   bootID,
		released: released,
		Records:  map[string]*Record{},
		Holders:  map[types.UID]map[string]struct{}{},
		sealed:   map[types.UID]struct{}{},
		ended:    map[types.UID]time.Time{},
		gone:     make(chan struct{}),
		heirs:    heirs{},
		book: addressBook{
			dir: filepath.Join(filepath.Dir(dir), AddressesDir),
			m:   map[AddressKey]*AddressRecord{}, damaged: map[AddressKey]bool{},
		},
	}
}

// Get returns the record of a sandbox, or nil.
func (l *Ledger) Get(containerID string) *Record {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	return l.Records[containerID]
}

// All returns every record.
func (l *Ledger) All() []*Record {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	out := make([]*Record, 0, len(l.Records))
	for _, r := range l.Records {
		out = append(out, r)
	}
	return out
}

// Count returns how many sandboxes there are.
func (l *Ledger) Count() int {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	return len(l.Records)
}

// Holding returns the container IDs of the sandboxes of a PodAttachment.
func (l *Ledger) Holding(uid types.UID) []string {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	return slices.Collect(maps.Keys(l.Holders[uid]))
}

// Adopt takes over a record that is on disk already, or never will be.
func (l *Ledger) Adopt(r *Record) {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	l.set(r)
}

// Claim is what came of an attempt to claim a PodAttachment for a sandbox.
type Claim struct {
	// sealed: it was said that nothing is plugged, and never will be.
	Sealed bool
	// Before is another sandbox that holds it, or addresses that are kept for
	// this one.
	Before *Record
	// Taken is a host port that the sandbox asks for and by has.
	Taken *nft.Port
	By    *Record
	// Gone is closed when the record of some sandbox is removed.
	Gone <-chan struct{}
}

// Claim is the first step of an ADD: it puts down the record, so that from here
// on nobody says that the PodAttachment is unplugged. Nothing was put down when
// it is sealed or another sandbox has it.
//
// It is in memory alone: should the daemon be killed before the record is on
// disk, the links that were made tell the next one of it (adopt).
func (l *Ledger) Claim(r *Record) Claim {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	if _, sealed := l.sealed[r.Attachment.UID]; sealed {
		return Claim{Sealed: true}
	}
	for id := range l.Holders[r.Attachment.UID] {
		if id != r.ContainerID {
			return Claim{Before: l.Records[id], Gone: l.gone}
		}
	}
	if id := l.heirs.other(r); id != "" {
		return Claim{Before: l.Records[id], Gone: l.gone}
	}
	if port, by := l.conflict(r); by != nil {
		return Claim{Taken: port, By: by}
	}
	l.set(r)
	return Claim{}
}

// conflict finds the sandbox that has a host port which r asks for. One that is
// being deleted has none any more.
func (l *Ledger) conflict(r *Record) (*nft.Port, *Record) {
	if len(r.HostPorts) == 0 {
		return nil, nil
	}
	for _, other := range l.Records {
		if other.State == Deleting || other.ContainerID == r.ContainerID {
			continue
		}
		for _, p := range r.HostPorts {
			if slices.ContainsFunc(other.HostPorts, p.Overlaps) {
				return &p, other
			}
		}
	}
	return nil, nil
}

// Drop forgets a PodAttachment that is no more.
func (l *Ledger) Drop(uid types.UID) {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	delete(l.sealed, uid)
	delete(l.ended, uid)
}

// EndOf returns when the last sandbox of a PodAttachment was gone from the
// kernel, as far as this daemon saw it; else now.
func (l *Ledger) EndOf(uid types.UID) time.Time {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	if at, ok := l.ended[uid]; ok {
		return at
	}
	return time.Now()
}

// Read returns the records that the daemon before left, and those that are damaged.
func (l *Ledger) Read() ([]*Record, []damaged, error) { return l.files.read() }

// Prepare has the file of a record ready, which publish puts in its place.
func (l *Ledger) Prepare(r *Record) error { return l.files.prepare(r) }

// Discard takes away what was prepared for a sandbox and is not to be published.
func (l *Ledger) Discard(containerID string) { l.files.discard(containerID) }

// Put replaces a record, on disk first.
func (l *Ledger) Put(r *Record) error {
	if err := l.files.prepare(r); err != nil {
		return err
	}
	return l.Publish(r)
}

// Publish is put of a record whose file was prepared.
func (l *Ledger) Publish(r *Record) error {
	if err := l.files.publish(r.ContainerID); err != nil {
		return err
	}
	l.Adopt(r)
	return nil
}

// Remove forgets a sandbox of which nothing is left, on disk first.
func (l *Ledger) Remove(r *Record) error {
	if err := l.files.remove(r.ContainerID); err != nil {
		return err
	}
	l.forget(r)
	return nil
}

func (l *Ledger) forget(r *Record) {
	l.Mu.Lock()
	if now := l.Records[r.ContainerID]; now != nil {
		r = now // it may have got its PodAttachment since
	}
	l.unset(r.ContainerID)
	l.ended[r.Attachment.UID] = time.Now()
	close(l.gone)
	l.gone = make(chan struct{})
	l.Mu.Unlock()
	l.released(r)
}

func (l *Ledger) set(r *Record) {
	l.unset(r.ContainerID)
	l.Records[r.ContainerID] = r
	l.heirs.add(r)
	if l.Holders[r.Attachment.UID] == nil {
		l.Holders[r.Attachment.UID] = map[string]struct{}{}
	}
	l.Holders[r.Attachment.UID][r.ContainerID] = struct{}{}
}

func (l *Ledger) unset(containerID string) {
	old := l.Records[containerID]
	if old == nil {
		return
	}
	delete(l.Records, containerID)
	l.heirs.remove(old)
	delete(l.Holders[old.Attachment.UID], containerID)
	if len(l.Holders[old.Attachment.UID]) == 0 {
		delete(l.Holders, old.Attachment.UID)
	}
}

// verdict is what a PodAttachment's status has to say of its sandbox.
type verdict int

const (
	// AsItIs says that the status is right, or what comes next is not decided yet.
	AsItIs verdict = iota
	// Plugged says that the sandbox of the record holds the interfaces.
	Plugged
	// Unplugged says that nothing holds them, and nothing will.
	Unplugged
)

// Verdict judges a PodAttachment by the records. The record is that of the
// sandbox which holds the interfaces.
//
// Unplugged is said only of one that is being deleted, and is final: from then
// on it is sealed, and no ADD gets it. A sandbox that is restarted, whose pod
// lives, goes through DEL and ADD without it.
func (l *Ledger) Verdict(pa *v1alpha1.PodAttachment) (verdict, *Record) {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	s := pa.Status.Sandbox
	if s != nil {
		l.identify(s.ID, pa)
	}
	if holders := l.Holders[pa.UID]; len(holders) > 0 {
		for id := range holders {
			if r := l.Records[id]; r.State == Attached {
				return Plugged, r
			}
		}
		return AsItIs, nil
	}
	if r, some := l.book.of(pa.UID); r != nil {
		return Plugged, r.Sandbox()
	} else if some {
		return AsItIs, nil
	}
	switch {
	case pa.DeletionTimestamp == nil:
		delete(l.sealed, pa.UID) // only etcd's going back to a backup brings one back
		return AsItIs, nil
	case l.book.unclear(s):
		return AsItIs, nil
	case s == nil && len(l.Holders[""]) > 0:
		// A sandbox whose record was damaged may be this one's.
		return AsItIs, nil
	}
	l.sealed[pa.UID] = struct{}{}
	if s != nil && s.State == v1alpha1.SandboxDetached {
		return AsItIs, nil
	}
	return Unplugged, nil
}

// identify gives a record that was rebuilt from the kernel its pod back: the
// status still names the sandbox.
func (l *Ledger) identify(containerID string, pa *v1alpha1.PodAttachment) {
	r := l.Records[containerID]
	if r == nil || r.Attachment.UID != "" {
		return
	}
	l.set(r.With(func(r *Record) {
		of := pa.Pod()
		r.Pod = Pod{Namespace: of.Namespace, Name: of.Name, UID: pa.Spec.PodUID}
		r.Attachment = Attachment{Name: pa.Name, UID: pa.UID}
	}))
}

// Remembered is how many things are remembered, by kind.
func (l *Ledger) Remembered() map[string]int {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	return map[string]int{
		"sandboxes": len(l.Records), "holders": len(l.Holders), "sealed": len(l.sealed), "ended": len(l.ended), "heirs": len(l.heirs),
		"addresses": len(l.book.m), "damaged": len(l.book.damaged),
	}
}
