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

// recordsKind is the one CRD whose objects stay when it is deleted: each has a finalizer.
const recordsKind = "podattachments.fairlead.dev"

// TestAllKindsDeleted deletes all CRDs while pods live, and brings them back as the
// operator's guide says: first those that are gone, and when the blocks say again who has
// what that of the records. No address is given twice, and everybody keeps his.
func TestAllKindsDeleted(t *testing.T) {
	c := cluster.Exclusive(t)
	freeLease(t, c)
	t.Cleanup(func() { freeLease(t, c) }) // whoever leads at the end is killed
	h := newHands(t, c)
	t.Cleanup(func() { makeKinds(context.WithoutCancel(t.Context()), t, c) }) // others need them
	for range 2 {
		p := supervise(t, c.Account(cluster.ControllerAccount, ""), fmt.Sprintf(longLease, freePort(t)), "gcInterval: 10s")
		p.apiCrashes = true // no record is made while their kind is on its way out
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
	c.Eventually(t, "the blocks to say what the records do", func(ctx context.Context) error {
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

	// Now a record can go without its address.
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
	c.Eventually(t, "everybody's own address in records and blocks", func(ctx context.Context) error { return h.agree(ctx, pods) })
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

// makeKinds makes those CRDs that are not there.
func makeKinds(ctx context.Context, t *testing.T, c *cluster.Cluster) {
	t.Helper()
	for _, crd := range kinds(t) {
		if err := c.Client.Create(ctx, crd); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Error(err)
		}
	}
}

// installKinds makes those CRDs that are not there, and waits until their objects can be
// listed.
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

// gone waits until a CRD is.
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
