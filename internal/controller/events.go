package controller

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/controller/proof"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/internal/run"
)

// wakeAwaiting enqueues the pods that may have waited for a record to be deleted: the
// pods of its namespace that have no network yet, if a driver reports that pods may wait
// for one of its interfaces.
func (r *Attachments) wakeAwaiting(gone *v1alpha1.PodAttachment, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	awaited := func(i v1alpha1.Interface) bool {
		d := r.Drivers[i.Driver]
		return d.Awaited != nil && d.Awaited(i)
	}
	if !slices.ContainsFunc(gone.Spec.Interfaces, awaited) {
		return
	}
	for _, req := range r.waiting.all() {
		if req.Namespace == gone.Pod().Namespace {
			q.Add(req)
		}
	}
}

// forgets removes the entries of Nodes that are deleted.
func (s *unreachableNodes) forgets() handler.EventHandler {
	return handler.Funcs{DeleteFunc: func(_ context.Context, e event.DeleteEvent, _ workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.m, e.Object.GetName())
	}}
}

// nodeNameIndex is the cache index of pods by their node.
const nodeNameIndex = "spec.nodeName"

// podsOfNode maps a node with changed labels to its pods: a pool may admit those that
// wait, and others may be on a served node from now on.
func (r *Attachments) podsOfNode(ctx context.Context, node client.Object) []reconcile.Request {
	var pods corev1.PodList
	if err := r.Client.List(ctx, &pods, client.MatchingFields{nodeNameIndex: node.GetName()}, client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache has ended with the program
	}
	var out []reconcile.Request
	for i := range pods.Items {
		p := &pods.Items[i]
		mayBeOurs := !r.Nodes.Empty() && pod.Wants(p) && p.Status.Phase == corev1.PodPending
		if mayBeOurs || r.waiting.has(client.ObjectKeyFromObject(p)) {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(p)})
		}
	}
	return out
}

// podsThatWait maps a change of any namespace's labels to all pods that have no network
// yet.
func (r *Attachments) podsThatWait(context.Context, client.Object) []reconcile.Request {
	return r.waiting.all()
}

// retry enqueues the pods that wait, whenever a driver or Config.Retry asks for it.
func (r *Attachments) retry(ctx context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	add := func(all []reconcile.Request) {
		for _, req := range all {
			q.Add(req)
		}
	}
	wake := driver.Wake{
		Waiting: func() { add(r.waiting.all()) },
		Pods: func(pods ...types.NamespacedName) {
			for _, pod := range pods {
				q.Add(reconcile.Request{NamespacedName: pod})
			}
		},
		Leaving: func() { add(r.terminating(ctx, anyNode)) },
	}
	for name, d := range r.Drivers {
		if d.Wake == nil {
			continue
		}
		if err := d.Wake(ctx, wake); err != nil {
			return fmt.Errorf("have driver %s wake pods: %w", name, err)
		}
	}
	if r.Retry == nil {
		return nil
	}
	return r.Retry(ctx, wake.Waiting)
}

// terminatingIndex is the cache index, by node, of the objects that wait for the node's
// confirmation or for a proof in its place: records that are being deleted and pods that
// terminate. The key anyNode has the objects of all nodes; it is no valid name of a node.
const (
	terminatingIndex = "terminating"
	anyNode          = "*"
)

func indexTerminating(ctx context.Context, indexer client.FieldIndexer) error {
	of := func(o client.Object, node string) []string {
		if o.GetDeletionTimestamp() == nil || node == "" {
			return nil
		}
		return []string{node, anyNode}
	}
	err := indexer.IndexField(ctx, &v1alpha1.PodAttachment{}, terminatingIndex, func(o client.Object) []string {
		return of(o, o.(*v1alpha1.PodAttachment).Spec.NodeName)
	})
	if err != nil {
		return fmt.Errorf("index PodAttachments that are being deleted by node: %w", err)
	}
	err = indexer.IndexField(ctx, &corev1.Pod{}, terminatingIndex, func(o client.Object) []string {
		return of(o, o.(*corev1.Pod).Spec.NodeName)
	})
	if err != nil {
		return fmt.Errorf("index pods that terminate by node: %w", err)
	}
	return nil
}

// terminatingOfNode maps a change of a node to the pods that it may release. A standby
// notes the change too, and goes on measuring when it becomes the leader.
func (r *Attachments) terminatingOfNode(ctx context.Context, node client.Object) []reconcile.Request {
	r.unreachable.since(node.(*corev1.Node), r.Now())
	return r.terminating(ctx, node.GetName())
}

func (r *Attachments) terminating(ctx context.Context, node string) []reconcile.Request {
	which := client.MatchingFields{terminatingIndex: node}
	var (
		records v1alpha1.PodAttachmentList
		pods    corev1.PodList
		out     []reconcile.Request
	)
	if !r.Listed() {
		return nil // every record and every pod will be reconciled anyway
	}
	if r.Client.List(ctx, &records, which, client.UnsafeDisableDeepCopy) != nil ||
		r.Client.List(ctx, &pods, which, client.UnsafeDisableDeepCopy) != nil {
		return nil // the cache has ended with the program
	}
	for i := range records.Items {
		a := &records.Items[i]
		r.noteLoss(ctx, a)
		out = append(out, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: a.Namespace, Name: a.Spec.PodName}})
	}
	for i := range pods.Items {
		out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&pods.Items[i])})
	}
	return out
}

// nodeEvidence passes the changes of a Node that may be evidence, and no heartbeat.
func nodeEvidence() predicate.Predicate {
	type facts struct {
		uid    types.UID
		bootID string
		fenced bool
		ready  corev1.ConditionStatus
		since  int64
	}
	of := func(o client.Object) facts {
		node := o.(*corev1.Node)
		ready := proof.Readiness(node)
		return facts{node.UID, node.Status.NodeInfo.BootID, proof.Fenced(node), ready.Status, ready.LastTransitionTime.Unix()}
	}
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool { return of(e.ObjectOld) != of(e.ObjectNew) }}
}

// records is the source of the records' events. A source of controller-runtime would keep
// the reconciler from working until it has delivered every record that exists; this one
// does not.
func (r *Attachments) records(from cache.Informers) source.Func {
	return func(ctx context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		r.queue.Store(&q)
		informer, err := from.GetInformer(ctx, &v1alpha1.PodAttachment{}, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watch PodAttachments: %w", err)
		}
		events := r.AttachmentEvents()
		registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerDetailedFuncs{
			AddFunc: func(o any, initial bool) {
				events.Create(ctx, event.CreateEvent{Object: o.(*v1alpha1.PodAttachment), IsInInitialList: initial}, q)
			},
			UpdateFunc: func(before, o any) {
				events.Update(ctx, event.UpdateEvent{ObjectOld: before.(*v1alpha1.PodAttachment), ObjectNew: o.(*v1alpha1.PodAttachment)}, q)
			},
			DeleteFunc: func(o any) {
				if record, ok := run.Deleted(o).(*v1alpha1.PodAttachment); ok {
					events.Delete(ctx, event.DeleteEvent{Object: record}, q)
				}
			},
		})
		if err != nil {
			return fmt.Errorf("watch PodAttachments: %w", err)
		}
		go func() {
			select {
			case <-registration.HasSyncedChecker().Done():
			case <-ctx.Done():
				return
			}
			r.readingRecords.Store(false)
			r.losses.clear() // events of Nodes were skipped until now
			for _, req := range slices.Concat(r.waiting.all(), r.terminating(ctx, anyNode)) {
				q.Add(req)
			}
			r.requeueOverdue(ctx, q)
		}()
		return nil
	}
}

// requeueOverdue enqueues, until ctx ends, the pods whose record was written and did not
// appear in the cache in time.
func (r *Attachments) requeueOverdue(ctx context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	tick := time.NewTicker(showDeadline)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		for _, key := range r.creations.overdue() {
			q.Add(reconcile.Request{NamespacedName: key})
		}
	}
}

// AttachmentEvents maps an attachment to its pod, remembers its name, and drops the marks
// that the cache has caught up with.
func (r *Attachments) AttachmentEvents() handler.EventHandler {
	enqueue := func(o client.Object, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		q.Add(reconcile.Request{NamespacedName: podOf(o.(*v1alpha1.PodAttachment))})
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			a := e.Object.(*v1alpha1.PodAttachment)
			r.names.add(a)
			r.creations.end(podOf(a), a.OwnUID())
			r.noteLoss(ctx, a)
			if !r.asExpected(ctx, a) {
				enqueue(a, q)
			}
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			r.noteLoss(ctx, e.ObjectNew.(*v1alpha1.PodAttachment))
			enqueue(e.ObjectNew, q)
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			a := e.Object.(*v1alpha1.PodAttachment)
			r.names.remove(a)
			r.marks.drop(a.UID)
			r.losses.drop(a.UID)
			r.creations.end(podOf(a), a.OwnUID())
			r.warnings.Forget(podOf(a))
			enqueue(a, q)
			r.wakeAwaiting(a, q)
		},
	}
}

// asExpected reports whether a record that has appeared needs no reconcile: its pod lives
// and waits for nothing. The name of the record is remembered before, so that later
// events of the pod find it.
func (r *Attachments) asExpected(ctx context.Context, record *v1alpha1.PodAttachment) bool {
	waits := func(i v1alpha1.Interface) bool { return i.WaitForActive }
	if record.DeletionTimestamp != nil || len(record.Status.Interfaces) > 0 || slices.ContainsFunc(record.Spec.Interfaces, waits) {
		return false
	}
	key := podOf(record)
	p := &corev1.Pod{}
	if r.waiting.has(key) || r.Client.Get(ctx, key, p, client.UnsafeDisableDeepCopy) != nil {
		return false
	}
	return isFor(record, p)
}

// isFor reports whether a record is of this pod and the pod still wants its network.
func isFor(record *v1alpha1.PodAttachment, p *corev1.Pod) bool {
	return pod.Of(record) == pod.KeyOf(p) && pod.Wants(p)
}
