package cluster

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// sweep removes the remains of tests: everything in the namespaces of tests, all objects
// of our kinds in the cluster, and the nodes that tests created. The namespace of c
// stays.
func (c *Cluster) sweep(ctx context.Context) error {
	owned := client.MatchingLabels{ownedLabel: "true"}
	var namespaces corev1.NamespaceList
	if err := c.Client.List(ctx, &namespaces, owned); err != nil {
		return err
	}
	var errs []error
	for i := range namespaces.Items {
		namespace := &namespaces.Items[i]
		if namespace.Name == c.Namespace || namespace.DeletionTimestamp != nil {
			errs = append(errs, c.emptyNamespace(ctx, namespace.Name))
		} else {
			errs = append(errs, c.removeNamespace(ctx, namespace.Name))
		}
	}
	errs = append(errs,
		c.removeOurs(ctx, apiextensionsv1.ClusterScoped),
		c.Client.DeleteAllOf(ctx, &corev1.Node{}, owned),
	)
	return errors.Join(errs...)
}

// removeNamespace removes a namespace, and the objects in it that Kubernetes cannot
// remove. Kubernetes removes the others later.
func (c *Cluster) removeNamespace(ctx context.Context, name string) error {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	return errors.Join(
		c.emptyNamespace(ctx, name),
		client.IgnoreNotFound(c.Client.Delete(ctx, namespace)),
	)
}

// emptyNamespace removes pods, which no kubelet ends, and objects of our kinds, which may
// have finalizers and no controller.
func (c *Cluster) emptyNamespace(ctx context.Context, name string) error {
	return errors.Join(
		c.Client.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(name), client.GracePeriodSeconds(0)),
		c.removeOurs(ctx, apiextensionsv1.NamespaceScoped, client.InNamespace(name)),
	)
}

// removeOurs removes all objects of our kinds of one scope.
func (c *Cluster) removeOurs(ctx context.Context, scope apiextensionsv1.ResourceScope, which ...client.ListOption) error {
	crds, err := v1alpha1.CRDs()
	if err != nil {
		return err
	}
	var errs []error
	for _, crd := range crds {
		if crd.Spec.Scope != scope {
			continue
		}
		list := newList(crd)
		errs = append(errs, c.Client.List(ctx, list, which...))
		errs = append(errs, c.removeAll(ctx, list.Items))
	}
	return errors.Join(errs...)
}

// removeAll removes objects, some at a time: there may be a thousand.
func (c *Cluster) removeAll(ctx context.Context, objects []metav1.PartialObjectMetadata) error {
	var group errgroup.Group
	group.SetLimit(16)
	for i := range objects {
		group.Go(func() error { return c.removeObject(ctx, &objects[i]) })
	}
	return group.Wait()
}

// removeObject removes an object despite its finalizers.
func (c *Cluster) removeObject(ctx context.Context, object *metav1.PartialObjectMetadata) error {
	if len(object.Finalizers) > 0 {
		strip := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
		if err := c.Client.Patch(ctx, object, strip); err != nil {
			return client.IgnoreNotFound(err)
		}
	}
	return client.IgnoreNotFound(c.Client.Delete(ctx, object))
}

// RemoveBlock removes a block; no error if it is gone.
func (c *Cluster) RemoveBlock(ctx context.Context, name string) error {
	object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name}}
	object.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("IPBlock"))
	return c.removeObject(ctx, object)
}

// newList returns an empty list of the kind that a CRD defines.
func newList(crd *apiextensionsv1.CustomResourceDefinition) *metav1.PartialObjectMetadataList {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(schema.GroupVersionKind{
		Group:   crd.Spec.Group,
		Version: crd.Spec.Versions[0].Name,
		Kind:    crd.Spec.Names.ListKind,
	})
	return list
}
