package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
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

// Reconcile brings one pod name to its desired state: a record for the pod that lives,
// and no record for any other pod of that name. All steps work on the same observation. A
// step acts if it is due, and its error stops no other step.
func (r *Attachments) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	s, err := r.observe(ctx, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, err
	}
	return inOrder(ctx, s,
		r.releaser.releaseRecords,     // records that neither the pod nor a predecessor needs any more
		r.releaser.giveBackUnrecorded, // interfaces of a pod that went before it had a record
		r.ensurer.awaitItsNode,        // a pod on an unknown node gets nothing
		r.ensurer.ensure,              // every interface, and the record that names them
		r.ensurer.activate,            // the interfaces that carry traffic
		r.ensurer.hotPlug,             // the interfaces of a running pod, which asks for other networks
		r.ensurer.project,             // the interfaces, in the pod's annotation for other programs
	)
}

// observed is the state of a pod name at the start of a reconcile. Its objects are the
// cache's own: a step that changes one copies it first.
type observed struct {
	key types.NamespacedName
	// pod is nil if it is gone; served is true if its node is known and served.
	pod    *corev1.Pod
	served bool
	// records made for pods of that name; current is the record of pod, nil if there is
	// none.
	records []v1alpha1.PodAttachment
	current *v1alpha1.PodAttachment
}

// step is one part of a reconcile. Its result holds when to run again.
type step func(ctx context.Context, s *observed) (ctrl.Result, error)

// inOrder runs every step, and returns the soonest time to run again, or all errors.
func inOrder(ctx context.Context, s *observed, steps ...step) (ctrl.Result, error) {
	var (
		result ctrl.Result
		errs   []error
	)
	for _, take := range steps {
		again, err := take(ctx, s)
		errs = append(errs, err)
		result = sooner(result, again)
	}
	if err := errors.Join(errs...); err != nil {
		return ctrl.Result{}, err
	}
	return result, nil
}

// observe reads a pod and all records made for its name from the caches.
func (r *Attachments) observe(ctx context.Context, key types.NamespacedName) (*observed, error) {
	s := &observed{key: key, pod: &corev1.Pod{}}
	var uid types.UID
	if err := r.client.Get(ctx, key, s.pod, client.UnsafeDisableDeepCopy); apierrors.IsNotFound(err) {
		s.pod = nil
	} else if err != nil {
		return nil, fmt.Errorf("read pod from cache: %w", err)
	} else {
		uid, s.served = s.pod.UID, r.nodes.serve(ctx, s.pod)
	}
	r.memory.onlyCreationOf(key, uid)
	for _, name := range r.memory.namesOf(key) {
		var record v1alpha1.PodAttachment
		err := r.client.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: name}, &record, client.UnsafeDisableDeepCopy)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("read attachment from cache: %w", err)
		}
		if err == nil {
			s.records = append(s.records, record)
		}
	}
	for i := range s.records {
		if s.pod != nil && pod.Of(&s.records[i]) == pod.KeyOf(s.pod) {
			s.current = &s.records[i]
		}
	}
	return s, nil
}

// nodes are the Nodes in the cache.
type nodes struct {
	from client.Reader
	// served selects those that are served, by their labels.
	served labels.Selector
}

// of reports whether the Node of a pod is known, and whether it is served.
func (n nodes) of(ctx context.Context, p *corev1.Pod) (known, served bool) {
	if p.Spec.NodeName == "" {
		return false, false
	}
	node := &corev1.Node{}
	if err := n.from.Get(ctx, client.ObjectKey{Name: p.Spec.NodeName}, node, client.UnsafeDisableDeepCopy); err != nil {
		return false, false // its event brings the pod back
	}
	return true, n.served.Matches(labels.Set(node.Labels))
}

// serve reports whether a pod's Node exists and is served. A pod can be bound to a node
// that does not exist, and each such node would take a whole block.
func (n nodes) serve(ctx context.Context, p *corev1.Pod) bool {
	known, served := n.of(ctx, p)
	return known && served
}

// sooner returns the result with the earlier time to run again.
func sooner(a, b ctrl.Result) ctrl.Result {
	if a.RequeueAfter == 0 || b.RequeueAfter != 0 && b.RequeueAfter < a.RequeueAfter {
		return b
	}
	return a
}

// Pauses between two tries of a pod that fails: the first, doubling up to the last.
const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// SetupWithManager registers the reconciler. lead wraps it, so that it gets work only
// while this process leads. Before that its caches and its queue are filled already,
// except for the cache of the records.
func (r *Attachments) SetupWithManager(ctx context.Context, mgr ctrl.Manager, lead func(reconcile.Reconciler) reconcile.Reconciler) error {
	err := mgr.GetFieldIndexer().IndexField(ctx, &corev1.Pod{}, nodeNameIndex, func(o client.Object) []string {
		return []string{o.(*corev1.Pod).Spec.NodeName}
	})
	if err != nil {
		return fmt.Errorf("index pods by node: %w", err)
	}
	if err := indexTerminating(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	if err := mgr.Add(r.warnings); err != nil {
		return fmt.Errorf("write events: %w", err)
	}
	r.memory.reading.Store(true)
	return ctrl.NewControllerManagedBy(mgr).
		Named("attachments").
		WatchesRawSource(source.Func(r.retry)).
		WatchesRawSource(r.records(mgr.GetCache())).
		For(&corev1.Pod{}).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.podsOfNode), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.terminatingOfNode), builder.WithPredicates(nodeEvidence())).
		Watches(&corev1.Node{}, handler.Funcs{DeleteFunc: func(_ context.Context, e event.DeleteEvent, _ queue) {
			r.memory.forgetNode(e.Object.GetName())
		}}).
		Watches(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
			return r.memory.waiting()
		}), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		WithOptions(ctrlcontroller.Options{
			MaxConcurrentReconciles: r.workers,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry),
		}).
		Complete(r.countWorking(lead(r)))
}

// countWorking counts the pods that workers hold, including those that wait for this
// process to become the leader.
func (r *Attachments) countWorking(next reconcile.Reconciler) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
		r.working.Add(1)
		defer r.working.Add(-1)
		return next.Reconcile(ctx, req)
	})
}

// wakeAwaiting enqueues the pods that may have waited for a record to be deleted: the
// pods of its namespace that have no network yet, if a driver reports that pods may wait
// for one of its interfaces.
func (r *Attachments) wakeAwaiting(gone *v1alpha1.PodAttachment, q queue) {
	awaited := func(i v1alpha1.Interface) bool {
		d := r.drivers[i.Driver]
		return d.Run.Awaited != nil && d.Run.Awaited(i)
	}
	if !slices.ContainsFunc(gone.Spec.Interfaces, awaited) {
		return
	}
	for _, req := range r.memory.waiting() {
		if req.Namespace == gone.Pod().Namespace {
			q.Add(req)
		}
	}
}

// nodeNameIndex is the cache index of pods by their node.
const nodeNameIndex = "spec.nodeName"

// podsOfNode maps a node with changed labels to its pods: a pool may admit those that
// wait, and others may be on a served node from now on.
func (r *Attachments) podsOfNode(ctx context.Context, node client.Object) []reconcile.Request {
	var pods corev1.PodList
	if err := r.client.List(ctx, &pods, client.MatchingFields{nodeNameIndex: node.GetName()}, client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache has ended with the program
	}
	var out []reconcile.Request
	for i := range pods.Items {
		p := &pods.Items[i]
		mayBeServed := !r.nodes.served.Empty() && pod.Wants(p) && p.Status.Phase == corev1.PodPending
		if mayBeServed || r.memory.waiterOf(client.ObjectKeyFromObject(p)) != nil {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(p)})
		}
	}
	return out
}

// retry enqueues the pods that wait, whenever a driver or Config.Retry asks for it.
func (r *Attachments) retry(ctx context.Context, q queue) error {
	wake := driver.Wake{
		Waiting: func() { addAll(q, r.memory.waiting()) },
		Pods: func(pods ...types.NamespacedName) {
			for _, pod := range pods {
				q.Add(reconcile.Request{NamespacedName: pod})
			}
		},
		Leaving: func() { addAll(q, r.terminating(ctx, anyNode)) },
	}
	for name, d := range r.drivers {
		if d.Run.Wake == nil {
			continue
		}
		if err := d.Run.Wake(ctx, wake); err != nil {
			return fmt.Errorf("have driver %s wake pods: %w", name, err)
		}
	}
	if r.again == nil {
		return nil
	}
	return r.again(ctx, wake.Waiting)
}

// terminatingIndex is the cache index, by node, of the objects that wait for the node's
// confirmation or for a proof in its place: records that are being deleted and pods that
// terminate. The key anyNode has the objects of all nodes; it is no valid name of a node.
const (
	terminatingIndex = "terminating"
	anyNode          = "*"
)

func indexTerminating(ctx context.Context, indexer client.FieldIndexer) error {
	nodeOf := func(o client.Object) string {
		if p, ok := o.(*corev1.Pod); ok {
			return p.Spec.NodeName
		}
		return o.(*v1alpha1.PodAttachment).Spec.NodeName
	}
	for _, kind := range []client.Object{&v1alpha1.PodAttachment{}, &corev1.Pod{}} {
		err := indexer.IndexField(ctx, kind, terminatingIndex, func(o client.Object) []string {
			if node := nodeOf(o); o.GetDeletionTimestamp() != nil && node != "" {
				return []string{node, anyNode}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("index %Ts that are being deleted by node: %w", kind, err)
		}
	}
	return nil
}

// terminatingOfNode maps a change of a node to the pods that it may release. A standby
// notes the change too, and goes on measuring when it becomes the leader.
func (r *Attachments) terminatingOfNode(ctx context.Context, node client.Object) []reconcile.Request {
	r.memory.unreachableSince(node.(*corev1.Node), r.now())
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
	if r.client.List(ctx, &records, which, client.UnsafeDisableDeepCopy) != nil ||
		r.client.List(ctx, &pods, which, client.UnsafeDisableDeepCopy) != nil {
		return nil // the cache has ended with the program
	}
	for i := range records.Items {
		a := &records.Items[i]
		r.releaser.noteLoss(ctx, a)
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
	return func(ctx context.Context, q queue) error {
		r.queue.Store(&q)
		informer, err := from.GetInformer(ctx, &v1alpha1.PodAttachment{}, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watch PodAttachments: %w", err)
		}
		feed := r.AttachmentEvents()
		registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerDetailedFuncs{
			AddFunc: func(o any, initial bool) {
				feed.Create(ctx, event.CreateEvent{Object: o.(*v1alpha1.PodAttachment), IsInInitialList: initial}, q)
			},
			UpdateFunc: func(before, o any) {
				feed.Update(ctx, event.UpdateEvent{ObjectOld: before.(*v1alpha1.PodAttachment), ObjectNew: o.(*v1alpha1.PodAttachment)}, q)
			},
			DeleteFunc: func(o any) {
				if record, ok := run.Deleted(o).(*v1alpha1.PodAttachment); ok {
					feed.Delete(ctx, event.DeleteEvent{Object: record}, q)
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
			r.memory.reading.Store(false)
			r.memory.forgetLosses() // events of Nodes were skipped until now
			addAll(q, r.memory.waiting())
			addAll(q, r.terminating(ctx, anyNode))
			r.requeueOverdue(ctx, q)
		}()
		return nil
	}
}

func addAll(q queue, all []reconcile.Request) {
	for _, req := range all {
		q.Add(req)
	}
}

// requeueOverdue enqueues, until ctx ends, the pods whose record was written and did not
// appear in the cache in time.
func (r *Attachments) requeueOverdue(ctx context.Context, q queue) {
	tick := time.NewTicker(showDeadline)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		addAll(q, r.memory.overdue())
	}
}

// AttachmentEvents maps an attachment to its pod, remembers its name, and drops the marks
// that the cache has caught up with.
func (r *Attachments) AttachmentEvents() handler.EventHandler {
	enqueue := func(o client.Object, q queue) {
		q.Add(reconcile.Request{NamespacedName: podOf(o.(*v1alpha1.PodAttachment))})
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) {
			a := e.Object.(*v1alpha1.PodAttachment)
			r.memory.shown(a)
			r.releaser.noteLoss(ctx, a)
			if !r.asExpected(ctx, a) {
				enqueue(a, q)
			}
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			r.releaser.noteLoss(ctx, e.ObjectNew.(*v1alpha1.PodAttachment))
			enqueue(e.ObjectNew, q)
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) {
			a := e.Object.(*v1alpha1.PodAttachment)
			r.memory.gone(a)
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
	if r.memory.waiterOf(key) != nil || r.client.Get(ctx, key, p, client.UnsafeDisableDeepCopy) != nil {
		return false
	}
	return isFor(record, p)
}

// isFor reports whether a record is of this pod and the pod still wants its network.
func isFor(record *v1alpha1.PodAttachment, p *corev1.Pod) bool {
	return pod.Of(record) == pod.KeyOf(p) && pod.Wants(p)
}
