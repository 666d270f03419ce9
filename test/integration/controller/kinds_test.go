package controller

import (
	"context"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/cluster"
)

// recordsKind is the CRD of the PodAttachments. They are the only objects that stay when
// their CRD is deleted, since each has a finalizer.
const recordsKind = "podattachments.fairlead.dev"

// TestAllKindsDeleted deletes all CRDs while pods run, and restores them as the operator's
// guide describes: first the CRDs that are gone, and that of the PodAttachments when the
// blocks name the holders again. No address is given twice, and each pod keeps its address.
func TestAllKindsDeleted(t *testing.T) {
	t.Parallel()
	c := cluster.Exclusive(t)
	freeLease(t, c)
	t.Cleanup(func() { freeLease(t, c) }) // the last leader is killed and leaves its lease
	h := newEditor(t, c)
	t.Cleanup(func() { makeKinds(context.WithoutCancel(t.Context()), t, c) }) // other tests need the CRDs
	for range 2 {
		p := supervise(t, c.Account(cluster.ControllerAccount, ""), mediumLease, "gcInterval: 10s")
		p.apiCrashes = true // no record can be created while their CRD is being deleted
	}
	var pods []*corev1.Pod
	for i := range 6 {
		pods = append(pods, c.Pod(fmt.Sprintf("old-%d", i), h.node))
	}
	c.Eventually(t, "all records", func(ctx context.Context) error { return h.agree(ctx, pods) })

	for _, crd := range kinds(t) {
		if err := c.Client.Delete(t.Context(), crd); err != nil {
			t.Fatal(err)
		}
	}
	for _, crd := range kinds(t) {
		if crd.Name != recordsKind {
			gone(t, c, crd.Name)
		}
	}
	for i := range 6 {
		pods = append(pods, c.Pod(fmt.Sprintf("new-%d", i), h.node))
	}
	h.killLeader(t)
	installKinds(t, c)
	if err := c.Client.Create(t.Context(), h.pool()); err != nil {
		t.Fatal(err)
	}
	c.Eventually(t, "the blocks to agree with the records", func(ctx context.Context) error {
		records, err := h.records(ctx)
		if err != nil {
			return err
		}
		slots, err := h.slots(ctx)
		if err != nil {
			return err
		}
		for i := range records {
			r := &records[i]
			if got := slots[r.Spec.Summary.Addresses]; got != string(r.Spec.PodUID) {
				return fmt.Errorf("the record of pod %s names %s, which its block gives to %q", r.Spec.PodName, r.Spec.Summary.Addresses, got)
			}
		}
		if len(records) != 6 {
			return fmt.Errorf("%d records", len(records))
		}
		return nil
	})
	c.Eventually(t, "an audit that finds nothing before the last CRD is back", func(ctx context.Context) error { return audited(ctx, c) })

	// Now the blocks name the holders, so a record can be deleted without freeing its address.
	records, err := h.records(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range records {
		none := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
		if err := client.IgnoreNotFound(c.Client.Patch(t.Context(), &records[i], none)); err != nil {
			t.Fatal(err)
		}
	}
	gone(t, c, recordsKind)
	installKinds(t, c)
	c.Eventually(t, "each pod's own address in records and blocks", func(ctx context.Context) error { return h.agree(ctx, pods) })
	c.Eventually(t, "a clean audit", func(ctx context.Context) error { return audited(ctx, c) })
}

func kinds(t *testing.T) []*apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	crds, err := v1alpha1.CRDs()
	if err != nil {
		t.Fatal(err)
	}
	return crds
}

// makeKinds creates the CRDs that are missing.
func makeKinds(ctx context.Context, t *testing.T, c *cluster.Cluster) {
	t.Helper()
	for _, crd := range kinds(t) {
		if err := c.Client.Create(ctx, crd); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Error(err)
		}
	}
}

// installKinds creates the CRDs that are missing, and waits until their objects can be listed.
func installKinds(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	makeKinds(t.Context(), t, c)
	c.Eventually(t, "the kinds to be served", func(ctx context.Context) error {
		for _, crd := range kinds(t) {
			list := &metav1.PartialObjectMetadataList{}
			list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(crd.Spec.Names.ListKind))
			if err := c.Client.List(ctx, list, client.Limit(1)); err != nil {
				return err
			}
		}
		return nil
	})
}

// gone waits until a CRD is gone.
func gone(t *testing.T, c *cluster.Cluster, name string) {
	t.Helper()
	c.Eventually(t, name+" to be gone", func(ctx context.Context) error {
		err := c.Client.Get(ctx, client.ObjectKey{Name: name}, &apiextensionsv1.CustomResourceDefinition{})
		if err == nil {
			err = errors.New("it is there")
		}
		return client.IgnoreNotFound(err)
	})
}
