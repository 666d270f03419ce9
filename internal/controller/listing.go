package controller

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/pod"
)

// Listed reports whether all records were read that were there when this process
// began. Pods that were given nothing are served before.
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

// mayBeRecorded reports whether a pod may have a record that was not read yet. It
// waits then: for its record's event, or for the last one's.
func (r *Attachments) mayBeRecorded(p *corev1.Pod) bool {
	if r.Given == nil || !r.listing.Load() {
		return false
	}
	wanted, err := r.wanted(p)
	given := func(w pod.Interface) bool { return !r.Given(pod.UID(p), w.Name).IsZero() }
	if err == nil && !slices.ContainsFunc(wanted, given) {
		return false
	}
	r.waiting.add(client.ObjectKeyFromObject(p))
	return r.listing.Load() // else those that wait may have been called before
}
