package block_test

import (
	"context"
	"net/netip"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block"
	"fairlead.dev/fairlead/test/cluster"
)

// TestNobodyTracksBlocks checks that an updated block has no managed fields.
func TestNobodyTracksBlocks(t *testing.T) {
	c := cluster.New(t)
	store := block.Kube{Writer: c.Client, Live: c.Client}
	prefix := netip.MustParsePrefix("10.0.0.0/26")
	made, err := store.Create(t.Context(), &v1alpha1.IPBlock{
		ObjectMeta: metav1.ObjectMeta{
			Name: ipam.BlockName(c.Namespace, prefix), Labels: map[string]string{v1alpha1.LabelDomain: c.Namespace},
		},
		Spec: v1alpha1.IPBlockSpec{Domain: c.Namespace, CIDR: prefix.String()},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.RemoveBlock(context.WithoutCancel(t.Context()), made.Name); err != nil {
			t.Error(err)
		}
	})
	if len(made.ManagedFields) == 0 {
		t.Error("a new block has no managed fields, so there is nothing to see here")
	}
	made.Spec.Used = 1
	updated, err := store.Update(t.Context(), made)
	if err != nil || len(updated.ManagedFields) > 0 || updated.Spec.Used != 1 {
		t.Fatalf("updated: %+v, %v", updated, err)
	}
	updated.Spec.Used = 2
	if updated, err = store.Update(t.Context(), updated); err != nil || len(updated.ManagedFields) > 0 || updated.Spec.Used != 2 {
		t.Errorf("updated again: %+v, %v", updated, err)
	}
}
