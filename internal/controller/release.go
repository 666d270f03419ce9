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
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/controller/proof"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/run"
	"fairlead.dev/fairlead/internal/warn"
)

// ownerGrace is how long Kubernetes' garbage collector has, after a pod is
// gone, to ask for the deletion of its attachment. It nearly always does, and
// that is one write less for us; after the grace we ask ourselves.
const ownerGrace = time.Second

// podWord is how long word of a pod's end may be behind that of its record's before the
// API server is asked whether the pod is still there.
const podWord = time.Second

// nodeAnswer is how long a node that is well may take to say that it holds
// nothing of a deleted record, before the record shows that it is waited for.
const nodeAnswer = 30 * time.Second

// Event reasons of a release.
const (
	eventCollected = "IPAddressGarbageCollected"
	eventFailed    = "IPAddressGarbageCollectionFailed"
)

// release takes a record's interfaces back, step by step; each step is found
// again from the record alone.
//
//  1. The record's deletion is asked for: from here on the node refuses to
//     plug it.
//  2. The node, once nothing of it is plugged, says so: Detached. It says so
//     only of a record that is being deleted, so the word is final. Of a node
//     that cannot speak proof may stand in for it.
//  3. Every driver takes its interface back, unless the pod lives on.
//  4. The finalizer is dropped, and with it the record.
//
// p is the pod of the same name, or nil.
func (r *Attachments) release(ctx context.Context, record *v1alpha1.PodAttachment, p *corev1.Pod) (ctrl.Result, error) {
	if !slices.Contains(record.Finalizers, v1alpha1.ReleaseFinalizer) || r.marks.get(record.UID).released {
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
	if p != nil && isFor(record, p) && r.serves(ctx, p) {
		// As a rule it is gone, and the cache of pods behind that of the records.
		if left := r.left(ctx, record, podWord); left > 0 {
			return ctrl.Result{RequeueAfter: left}, nil
		}
		if kept, err := r.keep(ctx, record, p); err != nil || kept {
			return ctrl.Result{}, err
		}
	}
	// Once is enough: should the reply to the drop of the finalizer be lost, the record
	// may be gone, and another leader, late, may have written it anew. What its pod's
	// name has by then is that one's.
	if !r.marks.get(record.UID).freed {
		if err := r.giveBack(ctx, record); err != nil {
			r.Metrics.released(err)
			return ctrl.Result{}, errors.Join(fmt.Errorf("release PodAttachment %s: %w", klog.KObj(record), err),
				r.showUnreleased(ctx, record, driver.Result(err), err.Error()))
		}
		r.remember(ctx, record, func(m *mark) { m.freed = true })
	}
	if err := r.dropFinalizer(ctx, record); err != nil {
		return ctrl.Result{}, err
	}
	r.Metrics.released(nil)
	r.Metrics.proofs.WithLabelValues(string(v.Proof)).Inc()
	log.FromContext(ctx).V(run.LevelPod).Info("attachment released", "attachment", klog.KObj(record), "addresses", record.Spec.Summary.Addresses, "proof", v.Proof)
	r.announce(record, v)
	return ctrl.Result{}, nil
}

// keep drops the finalizer of a record whose pod p lives on, as when somebody has
// deleted the record, and says whether it did. What the pod was given stays its own, and
// its next record names it: were it given back, a create of this record that the API
// server is still at would bring back a record of what others have by then.
func (r *Attachments) keep(ctx context.Context, record *v1alpha1.PodAttachment, p *corev1.Pod) (bool, error) {
	live := &corev1.Pod{}
	err := r.Live.Get(ctx, client.ObjectKeyFromObject(p), live)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("read pod %s: %w", klog.KObj(p), err)
	}
	if !isFor(record, live) {
		return false, nil
	}
	if err := r.dropFinalizer(ctx, record); err != nil {
		return false, err
	}
	log.FromContext(ctx).Info("attachment was deleted while its pod lives, which keeps its addresses", "attachment", klog.KObj(record), "addresses", record.Spec.Summary.Addresses)
	return true, nil
}

// announce posts what became of the addresses on further networks, each time.
// On the default network it does so of a release that was not as usual: it had
// failed or been waited for, or the node had no part in it.
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

// awaitNode shows what a release waits for. A node that is well usually speaks
// within milliseconds, so of one nothing is written for a while.
func (r *Attachments) awaitNode(ctx context.Context, record *v1alpha1.PodAttachment, v proof.Verdict) (ctrl.Result, error) {
	result := ctrl.Result{RequeueAfter: v.Again}
	if left := r.left(ctx, record, nodeAnswer); v.Well && left > 0 {
		return sooner(result, ctrl.Result{RequeueAfter: left}), nil
	}
	return result, r.showUnreleased(ctx, record, v1alpha1.ReasonWaitingForNode, fmt.Sprintf("node %s has not said that nothing holds %s: %s",
		record.Spec.NodeName, record.Spec.Summary.Addresses, v.Text))
}

// askDeletion deletes the record unless somebody else is about to.
func (r *Attachments) askDeletion(ctx context.Context, record *v1alpha1.PodAttachment, p *corev1.Pod) (ctrl.Result, error) {
	left := r.left(ctx, record, ownerGrace)
	if r.marks.get(record.UID).deleted {
		return ctrl.Result{}, nil
	}
	ownerGone := p == nil || !slices.ContainsFunc(record.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == p.UID })
	if ownerGone && left > 0 {
		return ctrl.Result{RequeueAfter: left}, nil
	}
	r.remember(ctx, record, func(m *mark) { m.deleted = true })
	err := r.Client.Delete(ctx, record, client.Preconditions{UID: &record.UID})
	if client.IgnoreNotFound(err) != nil {
		r.marks.update(record.UID, func(m *mark) { m.deleted = false })
		return ctrl.Result{}, fmt.Errorf("delete PodAttachment %s: %w", klog.KObj(record), err)
	}
	return ctrl.Result{}, nil
}

// giveBack releases every interface, and does not stop at one that fails, which
// it posts.
func (r *Attachments) giveBack(ctx context.Context, record *v1alpha1.PodAttachment) error {
	var errs []error
	for _, ref := range refsOf(record) {
		d, err := r.driverNamed(ref.Interface.Driver)
		if err == nil {
			err = d.Driver.Release(ctx, ref)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("interface %s: %w", ref.Interface.Name, err))
			p := podRef(record)
			of := corev1.ObjectReference{APIVersion: p.APIVersion, Kind: p.Kind, Namespace: p.Namespace, Name: p.Name, UID: p.UID}
			r.told.Tell(of, "release "+ref.Interface.Name, eventFailed, "ReleaseNetwork",
				fmt.Sprintf("could not give back %s of interface %s on %s, trying again: %v", addressesOf(ref.Interface), ref.Interface.Name, r.networkOf(ref.Interface), err))
		}
	}
	return errors.Join(errs...)
}

// showUnreleased shows on the record why it is still there, when it does not
// say so already.
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
		return nil // the record has changed: it is looked at again
	}
	if err != nil {
		return fmt.Errorf("write condition %s: %w", v1alpha1.ConditionReleased, err)
	}
	return nil
}

// dropFinalizer lets the record go, and notes it until the cache shows it.
func (r *Attachments) dropFinalizer(ctx context.Context, record *v1alpha1.PodAttachment) error {
	after := record.DeepCopy()
	after.Finalizers = slices.DeleteFunc(after.Finalizers, func(f string) bool { return f == v1alpha1.ReleaseFinalizer })
	// Nobody needs to know who wrote what of an object that goes, and the API server
	// is quicker without (block.Kube.Update).
	after.ManagedFields = []metav1.ManagedFieldsEntry{{}}
	// The lock keeps the list from overwriting a finalizer of somebody else.
	r.remember(ctx, record, func(m *mark) { m.released = true })
	err := r.Client.Patch(ctx, after, client.MergeFromWithOptions(record, client.MergeFromWithOptimisticLock{}))
	if client.IgnoreNotFound(err) != nil {
		r.marks.update(record.UID, func(m *mark) { m.released = false })
		return fmt.Errorf("drop finalizer of PodAttachment %s: %w", klog.KObj(record), err)
	}
	return nil
}

// podRef is the pod of a record, for events: it may be gone.
func podRef(record *v1alpha1.PodAttachment) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: record.Namespace, Name: record.Spec.PodName, UID: record.OwnUID()},
	}
}

// interfaceRef names one interface of a record. Events that differ in nothing but
// their text become one, with the text of the first (client-go's events), so each
// interface's has to be about something of its own.
func interfaceRef(record *v1alpha1.PodAttachment, name string) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "PodAttachment", Namespace: record.Namespace, Name: record.Name, UID: record.UID,
		FieldPath: fmt.Sprintf("spec.interfaces{%s}", name),
	}
}

// addressesOf are an interface's addresses without prefix lengths.
func addressesOf(iface v1alpha1.Interface) string {
	var out []string
	for _, cidr := range iface.Addresses {
		a, _, _ := strings.Cut(cidr, "/")
		out = append(out, a)
	}
	return strings.Join(out, ",")
}

// networkOf names an interface's network, as far as it is known.
func (r *Attachments) networkOf(iface v1alpha1.Interface) string {
	if iface.Network != v1alpha1.UnknownNetwork {
		return "network " + iface.Network
	}
	const unknown = "a further network that is not known any more"
	if d := r.Drivers[iface.Driver]; d.Origin != nil {
		return unknown + ", of " + d.Origin(iface)
	}
	return unknown
}
