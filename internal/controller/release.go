package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// releaseRecords releases the records that no pod needs any more.
func (r *Attachments) releaseRecords(ctx context.Context, s *observed) (ctrl.Result, error) {
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
func (r *Attachments) needed(ctx context.Context, s *observed, record *v1alpha1.PodAttachment) (needed bool, again time.Duration, err error) {
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
func (r *Attachments) release(ctx context.Context, record *v1alpha1.PodAttachment, p *corev1.Pod) (ctrl.Result, error) {
	if !slices.Contains(record.Finalizers, v1alpha1.ReleaseFinalizer) || r.marks.get(record.UID).stage == finalizerDropped {
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
func (r *Attachments) keepForPod(ctx context.Context, record *v1alpha1.PodAttachment, p *corev1.Pod) (kept bool, again time.Duration, err error) {
	if p == nil || !isFor(record, p) || !r.serves(ctx, p) {
		return false, 0, nil
	}
	// Usually the pod is gone, and the cache of pods is behind that of the records.
	if left := r.left(ctx, record, podCacheLag); left > 0 {
		return false, left, nil
	}
	live := &corev1.Pod{}
	err = r.Live.Get(ctx, client.ObjectKeyFromObject(p), live)
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
func (r *Attachments) giveBackOnce(ctx context.Context, record *v1alpha1.PodAttachment) error {
	if r.marks.get(record.UID).stage >= givenBack {
		return nil
	}
	if err := r.giveBack(ctx, record); err != nil {
		r.Metrics.released(err)
		return errors.Join(fmt.Errorf("release PodAttachment %s: %w", klog.KObj(record), err),
			r.showUnreleased(ctx, record, driver.Result(err), err.Error()))
	}
	r.reached(ctx, record, givenBack)
	return nil
}

// released records a finished release in metrics, log and events.
func (r *Attachments) released(ctx context.Context, record *v1alpha1.PodAttachment, v proof.Verdict) {
	r.Metrics.released(nil)
	r.Metrics.proofs.WithLabelValues(string(v.Proof)).Inc()
	log.FromContext(ctx).V(run.LevelPod).Info("attachment released", "attachment", klog.KObj(record), "addresses", record.Spec.Summary.Addresses, "proof", v.Proof)
	r.announce(record, v)
}

// announce posts an event for each interface of a released record. It omits interfaces on
// the default network if the release was as usual: confirmed by the node, at once and
// without failure.
func (r *Attachments) announce(record *v1alpha1.PodAttachment, v proof.Verdict) {
	asUsual := v.Proof == proof.ByWord && meta.FindStatusCondition(record.Status.Conditions, v1alpha1.ConditionReleased) == nil
	kind := corev1.EventTypeNormal
	if v.Proof == proof.ByPolicy {
		kind = corev1.EventTypeWarning
	}
	for _, iface := range record.Spec.Interfaces {
		if asUsual && iface.Network == v1alpha1.DefaultNetwork {
			continue
		}
		r.Events.Eventf(podRef(record), interfaceRef(record, iface.Name), kind, eventCollected, "ReleaseNetwork",
			"gave back %s of %s: %s", addressesOf(iface), r.networkOf(iface), v.Text)
	}
}

// awaitNode shows in the record what its release waits for. A node that is well usually
// confirms within milliseconds, so nothing is written about it for nodeAnswer. The
// exception is a record that still shows its Node as lost: a standby must learn that it
// is not (ADR 0018).
func (r *Attachments) awaitNode(ctx context.Context, record *v1alpha1.PodAttachment, v proof.Verdict) (ctrl.Result, error) {
	result := ctrl.Result{RequeueAfter: v.Again}
	lostAt, _ := proof.Loss(record)
	if left := r.left(ctx, record, nodeAnswer); v.Well && left > 0 && (lostAt == "" || v.Lost) {
		return sooner(result, ctrl.Result{RequeueAfter: left}), nil
	}
	return result, r.showUnreleased(ctx, record, v1alpha1.ReasonWaitingForNode, fmt.Sprintf("node %s has not said that nothing holds %s: %s",
		record.Spec.NodeName, record.Spec.Summary.Addresses, v.Text))
}

// askDeletion deletes the record, unless Kubernetes' garbage collector is about to.
func (r *Attachments) askDeletion(ctx context.Context, record *v1alpha1.PodAttachment, p *corev1.Pod) (ctrl.Result, error) {
	left := r.left(ctx, record, ownerGrace)
	if r.marks.get(record.UID).stage >= deletionAsked {
		return ctrl.Result{}, nil
	}
	ownerGone := p == nil || !slices.ContainsFunc(record.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == p.UID })
	if ownerGone && left > 0 {
		return ctrl.Result{RequeueAfter: left}, nil
	}
	undo := r.reached(ctx, record, deletionAsked)
	err := r.Client.Delete(ctx, record, client.Preconditions{UID: &record.UID})
	if client.IgnoreNotFound(err) != nil {
		undo()
		return ctrl.Result{}, fmt.Errorf("delete PodAttachment %s: %w", klog.KObj(record), err)
	}
	return ctrl.Result{}, nil
}

// giveBack releases every interface. It posts each failure, continues with the other
// interfaces and returns all errors.
func (r *Attachments) giveBack(ctx context.Context, record *v1alpha1.PodAttachment) error {
	var errs []error
	for _, ref := range refsOf(record) {
		if err := r.giveBackRef(ctx, ref); err != nil {
			errs = append(errs, fmt.Errorf("interface %s: %w", ref.Interface.Name, err))
			r.warnings.Tell(podReference(podRef(record)), "release "+ref.Interface.Name, eventFailed, "ReleaseNetwork",
				fmt.Sprintf("could not give back %s of interface %s on %s, trying again: %v", addressesOf(ref.Interface), ref.Interface.Name, r.networkOf(ref.Interface), err))
		}
	}
	return errors.Join(errs...)
}

// giveBackRef has the driver of an interface take it back.
func (r *Attachments) giveBackRef(ctx context.Context, ref driver.Ref) error {
	d, err := r.driverNamed(ref.Interface.Driver)
	if err != nil {
		return err
	}
	return d.Driver.Release(ctx, ref)
}

// showUnreleased writes into the record's condition Released why the record still exists,
// unless the condition shows that already.
func (r *Attachments) showUnreleased(ctx context.Context, record *v1alpha1.PodAttachment, reason, message string) error {
	after := record.DeepCopy()
	changed := meta.SetStatusCondition(&after.Status.Conditions, metav1.Condition{
		Type:    v1alpha1.ConditionReleased,
		Status:  metav1.ConditionFalse,
		Reason:  reason,
		Message: warn.Clip(message),
	})
	if !changed {
		return nil
	}
	err := r.Client.Status().Patch(ctx, after, client.MergeFromWithOptions(record, client.MergeFromWithOptimisticLock{}))
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
func (r *Attachments) dropFinalizer(ctx context.Context, record *v1alpha1.PodAttachment) error {
	after := record.DeepCopy()
	after.Finalizers = slices.DeleteFunc(after.Finalizers, func(f string) bool { return f == v1alpha1.ReleaseFinalizer })
	// The managed fields of an object that goes are of no use, and the API server is
	// quicker without them (block.Kube.Update).
	after.ManagedFields = []metav1.ManagedFieldsEntry{{}}
	// The lock keeps the patch from overwriting a finalizer that another program added.
	undo := r.reached(ctx, record, finalizerDropped)
	err := r.Client.Patch(ctx, after, client.MergeFromWithOptions(record, client.MergeFromWithOptimisticLock{}))
	if client.IgnoreNotFound(err) != nil {
		undo()
		return fmt.Errorf("drop finalizer of PodAttachment %s: %w", klog.KObj(record), err)
	}
	return nil
}
