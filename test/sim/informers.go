package sim

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlevent "sigs.k8s.io/controller-runtime/pkg/event"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// This file has the informers of a leader: the events that it receives from the API, and
// their handlers.

// informers give the store's feed its event handlers.
type informers struct {
	ctrlcache.Informers
	l *leader
}

// GetInformer returns the informer of a kind.
func (i informers) GetInformer(_ context.Context, o client.Object, _ ...ctrlcache.InformerGetOption) (ctrlcache.Informer, error) {
	return informer{l: i.l, kind: kindOf(o)}, nil
}

type informer struct {
	ctrlcache.Informer
	toolscache.ResourceEventHandlerRegistration
	l    *leader
	kind string
}

// AddEventHandler registers the handler of a kind.
func (i informer) AddEventHandler(h toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	i.l.feeds[i.kind] = h
	return i, nil
}

// HasSynced returns true: the list is complete before anything runs.
func (i informer) HasSynced() bool { return true }

// HasSyncedChecker is not used.
func (i informer) HasSyncedChecker() toolscache.DoneChecker { return nil }

// list jumps to a position of a kind's log, like an informer whose watch broke: a
// deletion meanwhile shows only as a missing object.
func (l *leader) list(kind string, pos int) {
	state := objectSet{}
	for _, e := range l.w.api.log[kind][:pos] {
		if e.deleted {
			state.remove(keyOf(e.obj))
		} else {
			state.put(e.obj)
		}
	}
	l.pos[kind] = pos
	for _, old := range l.cache.list(kind, nil) {
		if state.get(keyOf(old)) == nil {
			l.show(event{obj: old, deleted: true}, true)
		}
	}
	for _, o := range state.list(kind, nil) {
		if old := l.cache.get(keyOf(o)); old == nil || old.GetResourceVersion() != o.GetResourceVersion() {
			l.show(event{obj: o}, false)
		}
	}
}

// behind returns the number of events of a kind that a leader has not seen.
func (l *leader) behind(kind string) int { return len(l.w.api.log[kind]) - l.pos[kind] }

// deliver shows the next event of a kind.
func (l *leader) deliver(kind string) {
	e := l.w.api.log[kind][l.pos[kind]]
	l.pos[kind]++
	l.show(e, false)
}

// show updates the cache with an event and calls the event handlers.
func (l *leader) show(e event, missed bool) {
	k := keyOf(e.obj)
	old, now := l.cache.get(k), l.seen(e.obj)
	if e.deleted {
		l.cache.remove(k)
	} else {
		l.cache.put(now)
	}
	if b, ok := e.obj.(*v1alpha1.IPBlock); ok && !e.deleted {
		l.noteFreed(old, b)
	}
	if feed := l.feeds[k.kind]; feed != nil {
		switch {
		case e.deleted && missed:
			feed.OnDelete(toolscache.DeletedFinalStateUnknown{Key: k.String(), Obj: e.obj})
		case e.deleted:
			feed.OnDelete(e.obj)
		case old == nil:
			feed.OnAdd(now, false)
		default:
			feed.OnUpdate(old, now)
		}
	}
	switch o := e.obj.(type) {
	case *corev1.Pod:
		l.enqueue(k, 0)
	case *corev1.Node:
		for _, r := range l.cache.list(kindRecord, nil) {
			if r := r.(*v1alpha1.PodAttachment); r.Spec.NodeName == o.Name {
				l.enqueue(key{kindPod, types.NamespacedName{Namespace: r.Namespace, Name: r.Spec.PodName}}, 0)
			}
		}
		if old == nil || e.deleted {
			l.enqueue(k, 0)
			l.wakePodsOf(o.Name)
		}
	case *v1alpha1.IPClaim, *v1alpha1.IPReservation:
		l.enqueue(k, 0)
	}
	l.learn(e)
	for _, m := range l.events {
		if q := (queue{l: l, kind: m.to}); m.from == k.kind {
			switch {
			case e.deleted:
				m.Delete(l.ctx, ctrlevent.DeleteEvent{Object: e.obj, DeleteStateUnknown: missed}, q)
			case old == nil:
				m.Create(l.ctx, ctrlevent.CreateEvent{Object: e.obj}, q)
			default:
				m.Update(l.ctx, ctrlevent.UpdateEvent{ObjectOld: old, ObjectNew: e.obj}, q)
			}
		}
	}
}

// wakePodsOf enqueues the pods of a node that was created or deleted: some wait for it.
func (l *leader) wakePodsOf(node string) {
	for _, o := range l.cache.list(kindPod, nil) {
		if o.(*corev1.Pod).Spec.NodeName == node {
			l.enqueue(keyOf(o), 0)
		}
	}
}

// seen returns the object that the cache gets: a changed copy if a part is broken on
// purpose.
func (l *leader) seen(o client.Object) client.Object {
	switch o := o.(type) {
	case *v1alpha1.PodAttachment:
		if l.w.cfg.Break == NoProofNeeded && o.DeletionTimestamp != nil {
			o = o.DeepCopy()
			o.Status.Sandbox = &v1alpha1.Sandbox{State: v1alpha1.SandboxDetached}
			return o
		}
	case *v1alpha1.IPPool:
		if l.w.cfg.Break == IgnoreExcludes {
			o = o.DeepCopy()
			o.Spec.Excludes, o.Spec.Gateways, o.Spec.UseEdges = nil, nil, true
			return o
		}
		if l.w.cfg.Break == NoBound {
			o = o.DeepCopy()
			o.Spec.MaxBlocksPerNode = 1000
			return o
		}
	case *v1alpha1.IPClaim:
		if l.w.cfg.Break == NoHold {
			o = o.DeepCopy()
			o.Spec.HoldTime = &metav1.Duration{Duration: 1}
			return o
		}
	case *v1alpha1.IPReservation:
		if l.w.cfg.Break == NoReservations {
			o = o.DeepCopy()
			o.Spec.Ranges = nil
			return o
		}
	}
	return o
}
