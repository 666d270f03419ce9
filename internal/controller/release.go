package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/controller/proof"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/internal/run"
	"fairlead.dev/fairlead/internal/warn"
)

// ownerGrace is how long Kubernetes' garbage collector has, after a pod is gone, to ask
// for the deletion of the pod's record. It nearly always does, which saves the controller
// a write. After the grace the controller asks itself.
const ownerGrace = time.Second

// podCacheLag is how long the cache may show a pod after its record's deletion was seen.
// Then the API server is asked whether the pod still exists.
const podCacheLag = time.Second

// nodeAnswer is how long a node that is well may take to confirm that it holds nothing of
// a deleted record. After that the record's condition shows that the release waits for
// the node.
const nodeAnswer = 30 * time.Second

// Event reasons of a release.
const (
	eventCollected = "IPAddressGarbageCollected"
	eventFailed    = "IPAddressGarbageCollectionFailed"
)

// Releaser gives back what pods had that are gone: it releases their records, and the
// interfaces of pods that never had one.
type Releaser struct {
	client   client.Client
	live     client.Reader
	drivers  driver.Table
	nodes    nodes
	turns    Turns
	metrics  *Metrics
	memory   *memory
	warnings *warn.Teller
	events   events.EventRecorder
	grace    time.Duration // Config.NodeGrace
	now      func() time.Time
	// giveBackHeld is Config.Left.
	giveBackHeld func(ctx context.Context, of pod.Identity, held map[string][]driver.Ref) error
}

// releaseRecords releases the records that no pod needs any more.
func (r *Releaser) releaseRecords(ctx context.Context, s *observed) (ctrl.Result, error) {
	var (
		result ctrl.Result
		errs   []error
	)
	for i := range s.records {
		record := &s.records[i]
		needed, again, err := r.needed(ctx, s, record)
		errs = append(errs, err)
		result = sooner(result, ctrl.Result{RequeueAfter: again})
		if needed {
			continue
		}
		released, err := r.release(ctx, record, s.pod)
		errs = append(errs, err)
		result = sooner(result, released)
	}
	return result, errors.Join(errs...)
}

// needed reports whether a record stays: its pod may use it, and the operator has not
// chosen to reclaim it. again is the time until the next check; 0 if events decide.
func (r *Releaser) needed(ctx context.Context, s *observed, record *v1alpha1.PodAttachment) (needed bool, again time.Duration, err error) {
	if record != s.current || !pod.Holds(s.pod) || record.DeletionTimestamp != nil {
		return false, 0, nil
	}
	gone, again, err := r.givenUp(ctx, record, s.pod)
	return !gone, again, err
}

// release gives a record's interfaces back, step by step. Each step can be repeated from
// the record alone.
//
//  1. The controller asks for the record's deletion. From then on the node refuses to
//     plug it.
//  2. The node writes Detached when nothing of the record is plugged. It does so only for
//     a record that is being deleted, so Detached is final. If a node cannot write, a
//     proof may stand in for it.
//  3. Every driver takes its interface back, unless the pod lives on.
//  4. The controller drops the finalizer, and the record is gone.
//
// p is the pod of the same name, or nil.
func (r *Releaser) release(ctx context.Context, record *v1alpha1.PodAttachment, p *corev1.Pod) (ctrl.Result, error) {
	if !slices.Contains(record.Finalizers, v1alpha1.ReleaseFinalizer) || r.memory.markOf(record.UID).stage == finalizerDropped {
		return ctrl.Result{}, nil // given back already
	}
	if record.DeletionTimestamp == nil {
		return r.askDeletion(ctx, record, p)
	}
	if !r.synced(record) {
		return ctrl.Result{}, nil
	}
	v, record, err := r.prove(ctx, record)
	if err != nil || record == nil {
		return ctrl.Result{}, err
	}
	if v.Proof == proof.None {
		return r.awaitNode(ctx, record, v)
	}
	if kept, again, err := r.keepForPod(ctx, record, p); err != nil || kept || again > 0 {
		return ctrl.Result{RequeueAfter: again}, err
	}
	if err := r.giveBackOnce(ctx, record); err != nil {
		return ctrl.Result{}, err
	}
	if err := r.dropFinalizer(ctx, record); err != nil {
		return ctrl.Result{}, err
	}
	r.released(ctx, record, v)
	return ctrl.Result{}, nil
}

// keepForPod drops the finalizer of a record whose pod lives on, as after the deletion of
// the record by hand, and reports whether it did. p is the pod of the same name, or nil.
// again is the time until the next check; 0 if all is known.
//
// The pod keeps its interfaces, and its next record names them. Giving them back would be
// wrong: the API server may still be processing a create of this record, which would
// bring the record back with addresses that other pods have by then.
func (r *Releaser) keepForPod(ctx context.Context, record *v1alpha1.PodAttachment, p *corev1.Pod) (kept bool, again time.Duration, err error) {
	if p == nil || !isFor(record, p) || !r.nodes.serve(ctx, p) {
		return false, 0, nil
	}
	// Usually the pod is gone, and the cache of pods is behind that of the records.
	if left := r.left(ctx, record, podCacheLag); left > 0 {
		return false, left, nil
	}
	live := &corev1.Pod{}
	err = r.live.Get(ctx, client.ObjectKeyFromObject(p), live)
	if client.IgnoreNotFound(err) != nil {
		return false, 0, fmt.Errorf("read pod %s: %w", klog.KObj(p), err)
	}
	if !isFor(record, live) {
		return false, 0, nil
	}
	if err := r.dropFinalizer(ctx, record); err != nil {
		return false, 0, err
	}
	log.FromContext(ctx).Info("attachment deleted while its pod lives; the pod keeps its addresses", "attachment", klog.KObj(record), "addresses", record.Spec.Summary.Addresses)
	return true, 0, nil
}

// giveBackOnce releases every interface, unless this process has done so already. If the
// reply to the patch that drops the finalizer was lost, another leader may have written
// the record again with the same addresses; a second release would take them from the
// pod.
func (r *Releaser) giveBackOnce(ctx context.Context, record *v1alpha1.PodAttachment) error {
	if r.memory.markOf(record.UID).stage >= givenBack {
		return nil
	}
	if err := r.giveBack(ctx, record); err != nil {
		r.metrics.releases.WithLabelValues(driver.Result(err)).Inc()
		return errors.Join(fmt.Errorf("release PodAttachment %s: %w", klog.KObj(record), err),
			r.showUnreleased(ctx, record, driver.Result(err), err.Error()))
	}
	r.reached(ctx, record, givenBack)
	return nil
}

// released records a finished release in metrics, log and events.
func (r *Releaser) released(ctx context.Context, record *v1alpha1.PodAttachment, v proof.Verdict) {
	r.metrics.releases.WithLabelValues(driver.Result(nil)).Inc()
	r.metrics.proofs.WithLabelValues(string(v.Proof)).Inc()
	log.FromContext(ctx).V(run.LevelPod).Info("attachment released", "attachment", klog.KObj(record), "addresses", record.Spec.Summary.Addresses, "proof", v.Proof)
	r.announce(record, v)
}

// announce posts an event for each interface of a released record. It omits interfaces on
// the default network if the release was as usual: confirmed by the node, at once and
// without failure.
func (r *Releaser) announce(record *v1alpha1.PodAttachment, v proof.Verdict) {
	asUsual := v.Proof == proof.ByWord && meta.FindStatusCondition(record.Status.Conditions, v1alpha1.ConditionReleased) == nil
	kind := corev1.EventTypeNormal
	if v.Proof == proof.ByPolicy {
		kind = corev1.EventTypeWarning
	}
	for _, iface := range record.Spec.Interfaces {
		if asUsual && iface.Network == v1alpha1.DefaultNetwork {
			continue
		}
		r.events.Eventf(podRef(record), interfaceRef(record, iface.Name), kind, eventCollected, "ReleaseNetwork",
			"%s", run.Clip(fmt.Sprintf("gave back %s of %s: %s", addressesOf(iface), r.networkOf(iface), v.Text)))
	}
}

// awaitNode shows in the record what its release waits for. A node that is well usually
// confirms within milliseconds, so nothing is written about it for nodeAnswer. The
// exception is a record that still shows its Node as lost: a standby must learn that it
// is not (ADR 0018).
func (r *Releaser) awaitNode(ctx context.Context, record *v1alpha1.PodAttachment, v proof.Verdict) (ctrl.Result, error) {
	result := ctrl.Result{RequeueAfter: v.Due}
	lostAt, _ := proof.Loss(record)
	if left := r.left(ctx, record, nodeAnswer); v.Well && left > 0 && (lostAt == "" || v.Lost) {
		return sooner(result, ctrl.Result{RequeueAfter: left}), nil
	}
	return result, r.showUnreleased(ctx, record, v1alpha1.ReasonWaitingForNode, fmt.Sprintf("node %s has not said that nothing holds %s: %s",
		record.Spec.NodeName, record.Spec.Summary.Addresses, v.Text))
}

// askDeletion deletes the record, unless Kubernetes' garbage collector is about to.
func (r *Releaser) askDeletion(ctx context.Context, record *v1alpha1.PodAttachment, p *corev1.Pod) (ctrl.Result, error) {
	left := r.left(ctx, record, ownerGrace)
	if r.memory.markOf(record.UID).stage >= deletionAsked {
		return ctrl.Result{}, nil
	}
	ownerGone := p == nil || !slices.ContainsFunc(record.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == p.UID })
	if ownerGone && left > 0 {
		return ctrl.Result{RequeueAfter: left}, nil
	}
	undo := r.reached(ctx, record, deletionAsked)
	err := r.turns.do(ctx, func() error { return r.client.Delete(ctx, record, client.Preconditions{UID: &record.UID}) })
	if client.IgnoreNotFound(err) != nil {
		undo()
		return ctrl.Result{}, fmt.Errorf("delete PodAttachment %s: %w", klog.KObj(record), err)
	}
	return ctrl.Result{}, nil
}

// giveBack releases every interface. It posts each failure, continues with the other
// interfaces and returns all errors.
func (r *Releaser) giveBack(ctx context.Context, record *v1alpha1.PodAttachment) error {
	var errs []error
	for _, ref := range refsOf(record) {
		if err := r.drivers.Release(ctx, ref); err != nil {
			errs = append(errs, fmt.Errorf("interface %s: %w", ref.Interface.Name, err))
			r.warnings.Tell(podReference(podRef(record)), "release "+ref.Interface.Name, eventFailed, "ReleaseNetwork",
				fmt.Sprintf("could not give back %s of interface %s on %s, trying again: %v", addressesOf(ref.Interface), ref.Interface.Name, r.networkOf(ref.Interface), err))
		}
	}
	return errors.Join(errs...)
}

// showUnreleased writes into the record's condition Released why the record still exists,
// unless the condition shows that already.
func (r *Releaser) showUnreleased(ctx context.Context, record *v1alpha1.PodAttachment, reason, message string) error {
	after := record.DeepCopy()
	changed := meta.SetStatusCondition(&after.Status.Conditions, metav1.Condition{
		Type:    v1alpha1.ConditionReleased,
		Status:  metav1.ConditionFalse,
		Reason:  reason,
		Message: run.Clip(message),
	})
	if !changed {
		return nil
	}
	err := r.turns.do(ctx, func() error {
		return r.client.Status().Patch(ctx, after, client.MergeFromWithOptions(record, client.MergeFromWithOptimisticLock{}))
	})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // the record has changed: its event brings it back
	}
	if err != nil {
		return fmt.Errorf("write condition %s: %w", v1alpha1.ConditionReleased, err)
	}
	return nil
}

// dropFinalizer removes the controller's finalizer, and notes that until the cache shows
// it.
func (r *Releaser) dropFinalizer(ctx context.Context, record *v1alpha1.PodAttachment) error {
	after := record.DeepCopy()
	after.Finalizers = slices.DeleteFunc(after.Finalizers, func(f string) bool { return f == v1alpha1.ReleaseFinalizer })
	// The managed fields of an object that goes are of no use, and the API server is
	// quicker without them (block.Kube.Update).
	after.ManagedFields = []metav1.ManagedFieldsEntry{{}}
	// The lock keeps the patch from overwriting a finalizer that another program added.
	undo := r.reached(ctx, record, finalizerDropped)
	err := r.turns.do(ctx, func() error {
		return r.client.Patch(ctx, after, client.MergeFromWithOptions(record, client.MergeFromWithOptimisticLock{}))
	})
	if client.IgnoreNotFound(err) != nil {
		undo()
		return fmt.Errorf("drop finalizer of PodAttachment %s: %w", klog.KObj(record), err)
	}
	return nil
}

// giveBackUnrecorded gives back the interfaces that a waiting pod had obtained when it
// went. A pod that terminates keeps them until it is gone.
func (r *Releaser) giveBackUnrecorded(ctx context.Context, s *observed) (ctrl.Result, error) {
	w := r.memory.waiterOf(s.key)
	if w == nil || s.pod != nil && pod.KeyOf(s.pod) == w.pod.Key && pod.Holds(s.pod) {
		return ctrl.Result{}, nil
	}
	if held := r.heldOf(w); r.giveBackHeld != nil && len(held) > 0 {
		if err := r.giveBackHeld(ctx, w.pod, held); err != nil {
			return ctrl.Result{}, fmt.Errorf("give back the interfaces of pod %s, which waited for others: %w", s.key, err)
		}
	}
	if r.memory.endWait(s.key) {
		r.warnings.Forget(s.key)
	}
	return ctrl.Result{}, nil
}

// heldOf returns the interfaces that drivers, by name, hold for a pod that waits. Those
// of a driver that is not synced yet are left to garbage collection.
func (r *Releaser) heldOf(w *waiter) map[string][]driver.Ref {
	held := map[string][]driver.Ref{}
	for name, d := range r.drivers {
		if d.Collect.Held == nil || !d.IsSynced() {
			continue
		}
		for _, i := range w.interfaces {
			o := driver.Owner{PodUID: w.pod.UID, Interface: i, Namespace: w.pod.Namespace, PodName: w.pod.Name, NodeName: w.pod.Node}
			if refs := d.Collect.Held(o); len(refs) > 0 {
				held[name] = append(held[name], refs...)
			}
		}
	}
	return held
}

// synced reports whether the drivers of a record's interfaces know all that is taken.
// They enqueue the pod when they do. A driver that does not exist is no reason to wait:
// the release fails with an error that names it.
func (r *Releaser) synced(record *v1alpha1.PodAttachment) bool {
	return !slices.ContainsFunc(record.Spec.Interfaces, func(i v1alpha1.Interface) bool { return !r.drivers[i.Driver].IsSynced() })
}

// refsOf returns the interfaces of a record, last first, for the drivers to release.
func refsOf(record *v1alpha1.PodAttachment) []driver.Ref {
	refs := make([]driver.Ref, 0, len(record.Spec.Interfaces))
	for _, iface := range slices.Backward(record.Spec.Interfaces) {
		refs = append(refs, driver.Ref{Owner: holderOf(record, iface.Name), Interface: iface})
	}
	return refs
}

// holderOf returns the owner that an interface of a record was obtained for.
func holderOf(record *v1alpha1.PodAttachment, iface string) driver.Owner {
	of := pod.HolderOf(record)
	return driver.Owner{PodUID: of.UID, Interface: iface, Namespace: of.Namespace, PodName: of.Name, NodeName: record.Spec.NodeName}
}

// podRef returns a reference to a record's pod for events; the pod may be gone.
func podRef(record *v1alpha1.PodAttachment) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: record.Namespace, Name: record.Spec.PodName, UID: record.OwnUID()},
	}
}

// interfaceRef refers to one interface of a record. client-go merges events that differ
// only in their text, and keeps the first text. So the events of each interface need an
// object of their own.
func interfaceRef(record *v1alpha1.PodAttachment, name string) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "PodAttachment", Namespace: record.Namespace, Name: record.Name, UID: record.UID,
		FieldPath: fmt.Sprintf("spec.interfaces{%s}", name),
	}
}

// addressesOf returns an interface's addresses without prefix lengths.
func addressesOf(iface v1alpha1.Interface) string {
	var out []string
	for _, cidr := range iface.Addresses {
		a, _, _ := strings.Cut(cidr, "/")
		out = append(out, a)
	}
	return strings.Join(out, ",")
}

// networkOf names an interface's network, as far as it is known.
func (r *Releaser) networkOf(iface v1alpha1.Interface) string {
	if iface.Network != v1alpha1.UnknownNetwork {
		return "network " + iface.Network
	}
	const unknown = "a further network that is not known any more"
	if d := r.drivers[iface.Driver]; d.Networks.Origin != nil {
		return unknown + ", of " + d.Networks.Origin(iface)
	}
	return unknown
}
