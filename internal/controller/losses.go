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

// losses are the records whose Node this process sees to be lost, by their UID, with since
// when. A standby keeps them too, and goes on measuring when it leads (ADR 0018).
//
// A leader that finds a Node lost says so in the record's condition. Any process measures
// from when it first saw both: the record that says so, and no Node. It begins anew when
// the record says something else, or when it sees the Node again: whoever led meanwhile
// may have seen more. So no other process's clock has a part in it, and a process that
// began later waits longer.
type losses struct {
	mu sync.Mutex
	m  map[types.UID]loss
}

// loss is that of a record's Node.
type loss struct {
	// said is what the record says of the loss, or will: it tells one loss from another.
	said string
	// since is when this process first saw it.
	since time.Time
	// shown is true when the cache has shown a record that says so.
	shown bool
}

// found notes that this process, as the leader, has found a record's Node lost.
func (l *losses) found(uid types.UID, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.m[uid] = loss{said: proof.Stamp(now), since: now}
}

// concerns reports whether a look at a record's Node tells something: the record says that
// the Node is lost, or is known to be of a lost one.
func (l *losses) concerns(record *v1alpha1.PodAttachment) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.m[record.UID]
	said, _ := proof.Loss(record)
	return ok || said != ""
}

// note takes in a record as the cache shows it, and whether its Node is lost.
func (l *losses) note(record *v1alpha1.PodAttachment, lost bool, now time.Time) {
	said, speaks := proof.Loss(record)
	l.mu.Lock()
	defer l.mu.Unlock()
	has, ok := l.m[record.UID]
	switch {
	case !lost:
		delete(l.m, record.UID)
	case !speaks:
	case said == "":
		if has.shown { // another leader has seen the Node since
			delete(l.m, record.UID)
		}
	case ok && has.said == said:
		has.shown = true
		l.m[record.UID] = has
	default:
		l.m[record.UID] = loss{said: said, since: now, shown: true}
	}
}

// of returns since when a record's Node is known to be lost, and what the record says of
// that; zero if it is not known, or the record, as it is at the API server, says
// something else.
func (l *losses) of(record *v1alpha1.PodAttachment) (since time.Time, said string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	has := l.m[record.UID]
	if says, speaks := proof.Loss(record); has.shown && speaks && says != has.said {
		return time.Time{}, ""
	}
	return has.since, has.said
}

// beginTerm forgets what this process found in a former term and no record has said.
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

func (l *losses) size() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.m)
}

// noteLoss takes in what the caches show of a record and its Node, on standbys too.
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

// judged takes in what a look at the API server says of a record's Node.
func (r *Attachments) judged(ctx context.Context, record *v1alpha1.PodAttachment, v proof.Verdict, e proof.Evidence) {
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
