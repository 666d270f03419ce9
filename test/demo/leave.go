package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/harness"
)

// leaveTimeout bounds each step of leaving the user's cluster. Each step has its own
// timeout, so that a failed step takes no time from those after it.
const leaveTimeout = 45 * time.Second

// leaveCluster removes the objects of this run from the user's cluster.
func (w *testbed) leaveCluster(ctx context.Context) error {
	if !w.joined {
		return nil
	}
	w.Say("removing everything from the cluster")
	err := errors.Join(
		leaveStep(ctx, w.endNodes),
		w.stopNodes(),
		w.stopController(),
		// A node may have registered its Node again meanwhile.
		leaveStep(ctx, w.removeNodes),
		leaveStep(ctx, w.dropFinalizers),
		leaveStep(ctx, w.removeAddresses),
		leaveStep(ctx, w.removeNamespace),
		leaveStep(ctx, w.removeCRDs),
	)
	if err != nil {
		return fmt.Errorf("%w\nwhat is left in the cluster is named demo-%s or %s, or has the label %s=%s", err, w.ID, w.namespace(), demoLabel, w.ID)
	}
	return nil
}

func leaveStep(ctx context.Context, step func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, leaveTimeout, fmt.Errorf("not within %v", leaveTimeout))
	defer cancel()
	return step(ctx)
}

// retireNodes removes the run's nodes and all pods there from the user's cluster while
// Fairlead still runs on them.
func (w *testbed) retireNodes(ctx context.Context) error {
	if err := w.removeNodes(ctx); err != nil {
		return err
	}
	return w.await(ctx, "the attachments to go", w.attachmentsGone)
}

// endNodes removes the nodes, if Fairlead can still release their attachments. Otherwise
// dropFinalizers removes the attachments.
func (w *testbed) endNodes(ctx context.Context) error {
	if err := w.removeNodes(ctx); err != nil {
		return err
	}
	err := w.await(ctx, "the attachments to go", func(ctx context.Context) (string, error) {
		left, err := w.attachmentsGone(ctx)
		if err == nil && left != "" && !w.programsRun() {
			err = errors.New("not all of Fairlead's programs run any more")
		}
		return left, err
	})
	if err != nil {
		w.Say("%v; this demo ends them itself", err)
	}
	return nil
}

// programsRun reports whether all programs run that an attachment needs to end in order.
func (w *testbed) programsRun() bool {
	programs := []*harness.Process{w.control}
	for _, node := range w.nodes {
		programs = append(programs, node.Daemon, node.Runner)
	}
	return !slices.ContainsFunc(programs, func(p *harness.Process) bool {
		if p == nil {
			return true
		}
		select {
		case <-p.Done():
			return true
		default:
			return false
		}
	})
}

// removeNodes removes the run's Nodes and all pods there, also those that DaemonSets put
// there.
func (w *testbed) removeNodes(ctx context.Context) error {
	var errs []error
	for _, node := range w.nodes {
		errs = append(errs, w.remove(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.KubeName}}))
	}
	for _, node := range w.nodes {
		pods := &corev1.PodList{}
		if err := w.List(ctx, pods, client.MatchingFields{"spec.nodeName": node.KubeName}); err != nil {
			errs = append(errs, fmt.Errorf("list the pods of %s: %w", node.KubeName, err))
		}
		for i := range pods.Items {
			uid := pods.Items[i].UID
			errs = append(errs, w.remove(ctx, &pods.Items[i], client.GracePeriodSeconds(0), client.Preconditions{UID: &uid}))
		}
	}
	return errors.Join(errs...)
}

// attachments returns the attachments of the run's nodes, in all namespaces, because
// other pods may have been there.
func (w *testbed) attachments(ctx context.Context) ([]v1alpha1.PodAttachment, error) {
	var out []v1alpha1.PodAttachment
	for _, node := range w.nodes {
		list := &v1alpha1.PodAttachmentList{}
		if err := w.List(ctx, list, client.MatchingFields{"spec.nodeName": node.KubeName}); !isAbsent(err) {
			return nil, fmt.Errorf("list the attachments of %s: %w", node.KubeName, err)
		}
		out = append(out, list.Items...)
	}
	return out, nil
}

func (w *testbed) attachmentsGone(ctx context.Context) (string, error) {
	left, err := w.attachments(ctx)
	if len(left) == 0 {
		return "", err
	}
	return fmt.Sprintf("%d are left", len(left)), err
}

// dropFinalizers ends the attachments that Fairlead did not release. Their nodes are
// network namespaces of this demo, and nothing runs there any more.
func (w *testbed) dropFinalizers(ctx context.Context) error {
	left, err := w.attachments(ctx)
	if err != nil || len(left) == 0 {
		return err
	}
	w.Say("dropping the finalizers of %d attachments, whose nodes end here", len(left))
	var errs []error
	for i := range left {
		record := &left[i]
		before := record.DeepCopy()
		record.Finalizers = slices.DeleteFunc(record.Finalizers, func(f string) bool { return f == v1alpha1.ReleaseFinalizer })
		if err := w.Patch(ctx, record, client.MergeFrom(before)); !isAbsent(err) {
			errs = append(errs, fmt.Errorf("drop the finalizer of attachment %s: %w", record.Name, err))
		}
		errs = append(errs, w.remove(ctx, record))
	}
	return errors.Join(errs...)
}

// removeAddresses removes the objects that the controller made for the nodes, and the
// pool.
func (w *testbed) removeAddresses(ctx context.Context) error {
	var errs []error
	for _, node := range w.nodes {
		errs = append(errs,
			w.remove(ctx, &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: node.KubeName}}),
			w.remove(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: node.KubeName}}),
		)
	}
	blocks := &v1alpha1.IPBlockList{}
	if err := w.List(ctx, blocks, client.MatchingLabels{v1alpha1.LabelDomain: w.poolName()}); !isAbsent(err) {
		errs = append(errs, fmt.Errorf("list the blocks of the demo: %w", err))
	}
	for i := range blocks.Items {
		errs = append(errs, w.remove(ctx, &blocks.Items[i]))
	}
	return errors.Join(append(errs, w.remove(ctx, &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: w.poolName()}}))...)
}

func (w *testbed) removeNamespace(ctx context.Context) error {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace()}}
	if err := w.remove(ctx, namespace); err != nil {
		return err
	}
	return w.await(ctx, "the namespace to go", func(ctx context.Context) (string, error) {
		err := w.Get(ctx, client.ObjectKeyFromObject(namespace), namespace)
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "it is being removed", err
	})
}

// removeCRDs removes the CRDs that this run installed. It finds them by label, also a CRD
// whose creation was interrupted.
func (w *testbed) removeCRDs(ctx context.Context) error {
	return w.await(ctx, "the CRDs to go", func(ctx context.Context) (string, error) {
		crds := &apiextensionsv1.CustomResourceDefinitionList{}
		if err := w.List(ctx, crds, client.MatchingLabels{demoLabel: w.ID}); err != nil {
			return "", err
		}
		var errs []error
		for i := range crds.Items {
			errs = append(errs, w.remove(ctx, &crds.Items[i]))
		}
		if len(crds.Items) == 0 {
			return "", nil
		}
		return fmt.Sprintf("%d are left", len(crds.Items)), errors.Join(errs...)
	})
}

// isAbsent reports whether the object or its kind does not exist, or there was no error.
func isAbsent(err error) bool {
	return err == nil || apierrors.IsNotFound(err) || meta.IsNoMatchError(err)
}

func (w *testbed) remove(ctx context.Context, object client.Object, opts ...client.DeleteOption) error {
	// A conflict means that another object of the same name has replaced it.
	if err := w.Delete(ctx, object, opts...); !isAbsent(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("remove %T %s from the cluster: %w", object, object.GetName(), err)
	}
	return nil
}
