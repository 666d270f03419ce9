package main

import (
	"context"
	"errors"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// retireNodes takes the run's nodes out of the user's cluster while Fairlead
// still runs on them, with all pods: DaemonSets put theirs on every node.
func (w *world) retireNodes(ctx context.Context) error {
	if w.retired {
		return nil
	}
	var errs []error
	for _, node := range w.nodes {
		errs = append(errs, w.remove(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.kubeName}}))
	}
	for _, node := range w.nodes {
		pods := &corev1.PodList{}
		if err := w.kube.List(ctx, pods, client.MatchingFields{"spec.nodeName": node.kubeName}); err != nil {
			errs = append(errs, fmt.Errorf("list the pods of %s: %w", node.kubeName, err))
		}
		for i := range pods.Items {
			uid := pods.Items[i].UID
			errs = append(errs, w.remove(ctx, &pods.Items[i], client.GracePeriodSeconds(0), client.Preconditions{UID: &uid}))
		}
	}
	errs = append(errs, w.kube.await(ctx, "the attachments to go", w.Reporter, w.attachmentsGone))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	w.retired = true
	return nil
}

// attachmentsGone looks at all namespaces: pods of others may have been on our
// nodes.
func (w *world) attachmentsGone(ctx context.Context) (string, bool, error) {
	left := 0
	for _, node := range w.nodes {
		list := &v1alpha1.PodAttachmentList{}
		if err := w.kube.List(ctx, list, client.MatchingFields{"spec.nodeName": node.kubeName}); err != nil {
			return "", false, err
		}
		left += len(list.Items)
	}
	return fmt.Sprintf("%d are left", left), left == 0, nil
}

// leaveCluster removes from the user's cluster what this run made.
func (w *world) leaveCluster(ctx context.Context) error {
	if !w.joined {
		return nil
	}
	w.Say("removing everything from the cluster")
	var errs []error
	errs = append(errs, w.retireNodes(ctx), w.stopNodes(), w.stopController())
	for _, node := range w.nodes {
		errs = append(errs,
			w.remove(ctx, &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: node.kubeName}}),
			w.remove(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: node.kubeName}}),
		)
	}
	err := w.kube.DeleteAllOf(ctx, &v1alpha1.IPBlock{}, client.MatchingLabels{v1alpha1.LabelDomain: w.poolName()})
	if err != nil && !apierrors.IsNotFound(err) {
		errs = append(errs, fmt.Errorf("remove the blocks from the cluster: %w", err))
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace()}}
	errs = append(errs,
		w.remove(ctx, &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: w.poolName()}}),
		w.remove(ctx, namespace),
	)
	for _, name := range w.crds {
		errs = append(errs, w.remove(ctx, &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
	errs = append(errs, w.kube.await(ctx, "the namespace to go", w.Reporter, func(ctx context.Context) (string, bool, error) {
		err := w.kube.Get(ctx, client.ObjectKeyFromObject(namespace), namespace)
		return "it is being removed", apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	}))
	return errors.Join(errs...)
}

func (w *world) remove(ctx context.Context, object client.Object, opts ...client.DeleteOption) error {
	err := w.kube.Delete(ctx, object, opts...)
	// A conflict says that it was replaced by another of the same name.
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("remove %T %s from the cluster: %w", object, object.GetName(), err)
	}
	return nil
}
