package node

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

// ledger is the daemon's account of its sandboxes: the records, and of which
// PodAttachments it has said, or is about to say, that nothing is plugged. That
// ADD and that statement exclude each other is decided here, under one lock.
//
// Operations on one sandbox are serialized by the manager, so its file is
// written outside the lock.
type ledger struct {
	files  files
	bootID string
	// released is called, outside the lock, after a record was removed.
	released func(*record)

	mu      sync.Mutex
	records map[string]*record                // by container ID
	holders map[types.UID]map[string]struct{} // container IDs by UID of the PodAttachment
	sealed  map[types.UID]struct{}            // PodAttachments that are said to be unplugged
	ended   map[types.UID]time.Time           // when the last sandbox of a PodAttachment was gone
	gone    chan struct{}                     // closed when a record is removed, then replaced
	heirs   heirs
	book    addressBook // of interfaces of other plugins
}

func newLedger(dir, bootID string, released func(*record)) *ledger {
	return &ledger{
		files:    files{dir: dir},
		bootID:   bootID,
		released: released,
		records:  map[string]*record{},
		holders:  map[types.UID]map[string]struct{}{},
		sealed:   map[types.UID]struct{}{},
		ended:    map[types.UID]time.Time{},
		gone:     make(chan struct{}),
		heirs:    heirs{},
		book: addressBook{
			dir: filepath.Join(filepath.Dir(dir), addressesDir),
			m:   map[addressKey]*addressRecord{}, damaged: map[addressKey]bool{},
		},
	}
}

// get returns the record of a sandbox, or nil.
func (l *ledger) get(containerID string) *record {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.records[containerID]
}

// all returns every record.
func (l *ledger) all() []*record {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]*record, 0, len(l.records))
	for _, r := range l.records {
		out = append(out, r)
	}
	return out
}

// count returns how many sandboxes there are.
func (l *ledger) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.records)
}

// holding returns the container IDs of the sandboxes of a PodAttachment.
func (l *ledger) holding(uid types.UID) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.holders[uid]))
}

// adopt takes over a record that is on disk already, or never will be.
func (l *ledger) adopt(r *record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.set(r)
}

// claim is what came of an attempt to claim a PodAttachment for a sandbox.
type claim struct {
	// sealed: it was said that nothing is plugged, and never will be.
	sealed bool
	// before is another sandbox that holds it, or addresses that are kept for
	// this one.
	before *record
	// taken is a host port that the sandbox asks for and by has.
	taken *nft.Port
	by    *record
	// gone is closed when the record of some sandbox is removed.
	gone <-chan struct{}
}

// claim is the first step of an ADD: it puts down the record, so that from here
// on nobody says that the PodAttachment is unplugged. Nothing was put down when
// it is sealed or another sandbox has it.
//
// It is in memory alone: should the daemon be killed before the record is on
// disk, the links that were made tell the next one of it (verbs.adopt).
func (l *ledger) claim(r *record) claim {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, sealed := l.sealed[r.Attachment.UID]; sealed {
		return claim{sealed: true}
	}
	for id := range l.holders[r.Attachment.UID] {
		if id != r.ContainerID {
			return claim{before: l.records[id], gone: l.gone}
		}
	}
	if id := l.heirs.other(r); id != "" {
		return claim{before: l.records[id], gone: l.gone}
	}
	if port, by := l.conflict(r); by != nil {
		return claim{taken: port, by: by}
	}
	l.set(r)
	return claim{}
}

// conflict finds the sandbox that has a host port which r asks for. One that is
// being deleted has none any more.
func (l *ledger) conflict(r *record) (*nft.Port, *record) {
	if len(r.HostPorts) == 0 {
		return nil, nil
	}
	for _, other := range l.records {
		if other.State == deleting || other.ContainerID == r.ContainerID {
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

// drop forgets a PodAttachment that is no more.
func (l *ledger) drop(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.sealed, uid)
	delete(l.ended, uid)
}

// endOf returns when the last sandbox of a PodAttachment was gone from the
// kernel, as far as this daemon saw it; else now.
func (l *ledger) endOf(uid types.UID) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at, ok := l.ended[uid]; ok {
		return at
	}
	return time.Now()
}

// put replaces a record, on disk first.
func (l *ledger) put(r *record) error {
	if err := l.files.prepare(r); err != nil {
		return err
	}
	return l.publish(r)
}

// publish is put of a record whose file was prepared.
func (l *ledger) publish(r *record) error {
	if err := l.files.publish(r.ContainerID); err != nil {
		return err
	}
	l.adopt(r)
	return nil
}

// remove forgets a sandbox of which nothing is left, on disk first.
func (l *ledger) remove(r *record) error {
	if err := l.files.remove(r.ContainerID); err != nil {
		return err
	}
	l.forget(r)
	return nil
}

func (l *ledger) forget(r *record) {
	l.mu.Lock()
	if now := l.records[r.ContainerID]; now != nil {
		r = now // it may have got its PodAttachment since
	}
	l.unset(r.ContainerID)
	l.ended[r.Attachment.UID] = time.Now()
	close(l.gone)
	l.gone = make(chan struct{})
	l.mu.Unlock()
	l.released(r)
}

func (l *ledger) set(r *record) {
	l.unset(r.ContainerID)
	l.records[r.ContainerID] = r
	l.heirs.add(r)
	if l.holders[r.Attachment.UID] == nil {
		l.holders[r.Attachment.UID] = map[string]struct{}{}
	}
	l.holders[r.Attachment.UID][r.ContainerID] = struct{}{}
}

func (l *ledger) unset(containerID string) {
	old := l.records[containerID]
	if old == nil {
		return
	}
	delete(l.records, containerID)
	l.heirs.remove(old)
	delete(l.holders[old.Attachment.UID], containerID)
	if len(l.holders[old.Attachment.UID]) == 0 {
		delete(l.holders, old.Attachment.UID)
	}
}

// verdict is what a PodAttachment's status has to say of its sandbox.
type verdict int

const (
	// asItIs: the status is right, or what comes next is not decided yet.
	asItIs verdict = iota
	// plugged: the sandbox of the record holds the interfaces.
	plugged
	// unplugged: nothing holds them, and nothing will.
	unplugged
)

// verdict judges a PodAttachment by the records. The record is that of the
// sandbox which holds the interfaces.
//
// Unplugged is said only of one that is being deleted, and is final: from then
// on it is sealed, and no ADD gets it. A sandbox that is restarted, whose pod
// lives, goes through DEL and ADD without it.
func (l *ledger) verdict(pa *v1alpha1.PodAttachment) (verdict, *record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := pa.Status.Sandbox
	if s != nil {
		l.identify(s.ID, pa)
	}
	if holders := l.holders[pa.UID]; len(holders) > 0 {
		for id := range holders {
			if r := l.records[id]; r.State == attached {
				return plugged, r
			}
		}
		return asItIs, nil
	}
	if r, some := l.book.of(pa.UID); r != nil {
		return plugged, r.sandbox()
	} else if some {
		return asItIs, nil
	}
	switch {
	case pa.DeletionTimestamp == nil:
		delete(l.sealed, pa.UID) // only etcd's going back to a backup brings one back
		return asItIs, nil
	case l.book.unclear(s):
		return asItIs, nil
	case s == nil && len(l.holders[""]) > 0:
		// A sandbox whose record was damaged may be this one's.
		return asItIs, nil
	}
	l.sealed[pa.UID] = struct{}{}
	if s != nil && s.State == v1alpha1.SandboxDetached {
		return asItIs, nil
	}
	return unplugged, nil
}

// identify gives a record that was rebuilt from the kernel its pod back: the
// status still names the sandbox.
func (l *ledger) identify(containerID string, pa *v1alpha1.PodAttachment) {
	r := l.records[containerID]
	if r == nil || r.Attachment.UID != "" {
		return
	}
	l.set(r.with(func(r *record) {
		of := pa.Pod()
		r.Pod = podRef{Namespace: of.Namespace, Name: of.Name, UID: pa.Spec.PodUID}
		r.Attachment = attachmentRef{Name: pa.Name, UID: pa.UID}
	}))
}
