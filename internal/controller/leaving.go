package controller

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/controller/proof"
)

// leavingIndex is the cache index, by node, of what waits for a node's word or
// for what stands in for it: records that are being deleted, and pods that
// terminate. anyNode has all of them; no node is called so.
const (
	leavingIndex = "leaving"
	anyNode      = "*"
)

func indexLeaving(ctx context.Context, indexer client.FieldIndexer) error {
	of := func(o client.Object, node string) []string {
		if o.GetDeletionTimestamp() == nil || node == "" {
			return nil
		}
		return []string{node, anyNode}
	}
	err := indexer.IndexField(ctx, &v1alpha1.PodAttachment{}, leavingIndex, func(o client.Object) []string {
		return of(o, o.(*v1alpha1.PodAttachment).Spec.NodeName)
	})
	if err != nil {
		return fmt.Errorf("index PodAttachments that are being deleted by node: %w", err)
	}
	err = indexer.IndexField(ctx, &corev1.Pod{}, leavingIndex, func(o client.Object) []string {
		return of(o, o.(*corev1.Pod).Spec.NodeName)
	})
	if err != nil {
		return fmt.Errorf("index pods that terminate by node: %w", err)
	}
	return nil
}

// leavingOfNode maps a change of a node to the pods it may release.
func (r *Attachments) leavingOfNode(ctx context.Context, node client.Object) []reconcile.Request {
	// A standby notes it too, and goes on measuring when it leads.
	r.silences.since(node.(*corev1.Node), r.Now())
	return r.leaving(ctx, node.GetName())
}

func (r *Attachments) leaving(ctx context.Context, node string) []reconcile.Request {
	which := client.MatchingFields{leavingIndex: node}
	var (
		records v1alpha1.PodAttachmentList
		pods    corev1.PodList
		out     []reconcile.Request
	)
	if !r.Listed() {
		return nil // every record and every pod is about to be looked at
	}
	if r.Client.List(ctx, &records, which, client.UnsafeDisableDeepCopy) != nil ||
		r.Client.List(ctx, &pods, which, client.UnsafeDisableDeepCopy) != nil {
		return nil // the cache has ended with the program
	}
	for i := range records.Items {
		a := &records.Items[i]
		out = append(out, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: a.Namespace, Name: a.Spec.PodName}})
	}
	for i := range pods.Items {
		out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&pods.Items[i])})
	}
	return out
}

// nodeEvidence lets pass what may be evidence, and no heartbeat.
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
