package controller

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/controller/proof"
)

// losses are the records whose Node this process has seen to be lost, by the UID of the
// record, with the time when it first saw that. A standby keeps them too and goes on
// measuring when it becomes the leader (ADR 0018).
//
// A leader that finds a Node lost writes so into the record's condition. Every process
// measures from when it first saw both that condition and the missing Node. It begins
// anew if the condition changes or if it sees the Node again, since another leader may
// have seen more. Therefore no clock of another process matters, and a process that began
// later waits longer.
type losses struct {
	mu sync.Mutex
	m  map[types.UID]loss
}

// loss is the loss of one record's Node.
type loss struct {
	// foundAt is the time that the record's condition shows for the loss, or will show.
	// It only distinguishes one loss from another.
	foundAt string
	// since is when this process first saw it.
	since time.Time
	// shown is true if the cache has shown the record with that condition.
	shown bool
}

// found adds a record whose Node this process, as the leader, has found lost.
func (l *losses) found(uid types.UID, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.m[uid] = loss{foundAt: proof.Stamp(now), since: now}
}

// concerns reports whether a record has to be compared with its Node: its condition
// reports the Node as lost, or the record is among the losses.
func (l *losses) concerns(record *v1alpha1.PodAttachment) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.m[record.UID]
	foundAt, _ := proof.Loss(record)
	return ok || foundAt != ""
}

// note updates the losses from a record as the cache shows it; lost is true if its Node
// is lost.
func (l *losses) note(record *v1alpha1.PodAttachment, lost bool, now time.Time) {
	foundAt, waits := proof.Loss(record)
	l.mu.Lock()
	defer l.mu.Unlock()
	has, ok := l.m[record.UID]
	switch {
	case !lost:
		delete(l.m, record.UID)
	case !waits:
	case foundAt == "":
		if has.shown { // another leader has seen the Node since
			delete(l.m, record.UID)
		}
	case ok && has.foundAt == foundAt:
		has.shown = true
		l.m[record.UID] = has
	default:
		l.m[record.UID] = loss{foundAt: foundAt, since: now, shown: true}
	}
}

// of returns since when a record's Node is known to be lost, and the time that the
// record's condition shows for the loss. Both are zero if the loss is not known, or if
// the record, as the API server has it, shows another one.
func (l *losses) of(record *v1alpha1.PodAttachment) (since time.Time, foundAt string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	has := l.m[record.UID]
	if shown, waits := proof.Loss(record); has.shown && waits && shown != has.foundAt {
		return time.Time{}, ""
	}
	return has.since, has.foundAt
}

// beginTerm forgets the losses of a former term that no record shows.
func (l *losses) beginTerm() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for uid, has := range l.m {
		if !has.shown {
			delete(l.m, uid)
		}
	}
}

func (l *losses) clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.m)
}

func (l *losses) drop(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.m, uid)
}

// noteLoss updates the losses from the cached record and its cached Node, on standbys
// too.
func (r *Attachments) noteLoss(ctx context.Context, record *v1alpha1.PodAttachment) {
	if !r.losses.concerns(record) {
		return
	}
	node := &corev1.Node{}
	err := r.Client.Get(ctx, client.ObjectKey{Name: record.Spec.NodeName}, node, client.UnsafeDisableDeepCopy)
	switch {
	case apierrors.IsNotFound(err):
		node = nil
	case err != nil:
		return // the cache has ended with the program
	}
	r.losses.note(record, proof.Lost(record, node), r.Now())
}

// noteVerdict updates the losses from a verdict on what the API server has.
func (r *Attachments) noteVerdict(ctx context.Context, record *v1alpha1.PodAttachment, v proof.Verdict, e proof.Evidence) {
	switch {
	case !v.Lost:
		r.losses.drop(record.UID)
	case e.LostSince.IsZero():
		r.losses.found(record.UID, e.Now)
	}
	if !r.shows(ctx, record) {
		r.losses.drop(record.UID) // as remember does
	}
}
