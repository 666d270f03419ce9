package controller

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/pod"
)

// Listed reports whether all records were read that were there when this process
// began.
func (r *Attachments) Listed() bool { return !r.listing.Load() }

// records is the source of the records' events. Unlike one of controller-runtime
// it does not keep the reconciler from working until it has told of all that are
// there.
func (r *Attachments) records(from cache.Informers) source.Func {
	return func(ctx context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		r.queue.Store(&q)
		informer, err := from.GetInformer(ctx, &v1alpha1.PodAttachment{}, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watch PodAttachments: %w", err)
		}
		events := r.AttachmentEvents()
		told, err := informer.AddEventHandler(toolscache.ResourceEventHandlerDetailedFuncs{
			AddFunc: func(o any, initial bool) {
				events.Create(ctx, event.CreateEvent{Object: o.(*v1alpha1.PodAttachment), IsInInitialList: initial}, q)
			},
			UpdateFunc: func(before, o any) {
				events.Update(ctx, event.UpdateEvent{ObjectOld: before.(*v1alpha1.PodAttachment), ObjectNew: o.(*v1alpha1.PodAttachment)}, q)
			},
			DeleteFunc: func(o any) {
				if record, ok := last(o).(*v1alpha1.PodAttachment); ok {
					events.Delete(ctx, event.DeleteEvent{Object: record}, q)
				}
			},
		})
		if err != nil {
			return fmt.Errorf("watch PodAttachments: %w", err)
		}
		go func() {
			select {
			case <-told.HasSyncedChecker().Done():
			case <-ctx.Done():
				return
			}
			r.listing.Store(false)
			for _, req := range r.waiting.all() {
				q.Add(req)
			}
			r.doubts(ctx, q)
		}()
		return nil
	}
}

// last is the object of a delete event, also of one that the watch missed.
func last(o any) any {
	if missed, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
		return missed.Obj
	}
	return o
}

// mustWait reports whether nothing is handed out to a pod yet: until all records were read
// nobody knows which interfaces they name, and its drivers may not know all that is taken.
// The pod is called when that is over.
func (r *Attachments) mustWait(p *corev1.Pod) bool {
	over := func() bool { return !r.listing.Load() && r.knows(p) }
	if over() {
		return false
	}
	r.waiting.add(p, nil)
	return !over() // else those that wait may have been called before
}

// knows reports whether the drivers of a pod's interfaces know what is taken. Of a pod of
// which cannot be said what it asks for, it is that of the default network.
func (r *Attachments) knows(p *corev1.Pod) bool {
	unknown := map[string]bool{}
	for name, d := range r.Drivers {
		if !d.Knows() {
			unknown[name] = true
		}
	}
	if len(unknown) == 0 {
		return true
	}
	wanted, err := r.wanted(p)
	if err != nil {
		return !unknown[r.DefaultDriver]
	}
	return !slices.ContainsFunc(wanted, func(w pod.Interface) bool { return unknown[r.driverOf(&w)] })
}

// synced reports whether the drivers of a record's interfaces know all that is taken.
// They call the pod when they do. A driver that is not there knows nothing and is no
// reason to wait: the release says that it is missing.
func (r *Attachments) synced(record *v1alpha1.PodAttachment) bool {
	return !slices.ContainsFunc(record.Spec.Interfaces, func(i v1alpha1.Interface) bool { return !r.Drivers[i.Driver].IsSynced() })
}
