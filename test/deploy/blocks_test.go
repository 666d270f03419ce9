package deploy

import (
	"context"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/cluster"
)

// testBlockDeletion tries, as an administrator, to delete blocks. A block in use can be
// deleted only with the annotation, alone or together with all others.
func testBlockDeletion(t *testing.T, c *cluster.Cluster) {
	block := func(third, used int) *v1alpha1.IPBlock {
		b := &v1alpha1.IPBlock{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("by-hand.4-0a63%02x00", third), Labels: map[string]string{"test": "by-hand"}}}
		b.Spec = v1alpha1.IPBlockSpec{Domain: "by-hand", CIDR: fmt.Sprintf("10.99.%d.0/26", third), Used: int32(used)}
		if used > 0 {
			b.Spec.Slots = []string{"1 A 1 1 uid-a shop/a/eth0 node-1"}
		}
		if err := c.Client.Create(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		return b
	}
	used, idle, allowed := block(1, 1), block(2, 0), block(3, 1)
	refused := func(err error) error {
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "addresses of this block are in use: 1 of 10.99.1.0/26") ||
			!strings.Contains(err.Error(), "fairlead.dev/allow-deletion=true") {
			return fmt.Errorf("error %w; want a refusal with the remedy", err)
		}
		return nil
	}
	// The API server takes a moment until a new policy is in force.
	c.Eventually(t, "the policy to be in force", func(ctx context.Context) error {
		return refused(c.Client.Delete(ctx, used, client.DryRunAll))
	})
	for _, without := range []string{"", "yes", "false"} {
		annotate(t, c, used, without)
		if err := refused(c.Client.Delete(t.Context(), used)); err != nil {
			t.Errorf("annotation %q: %v", without, err)
		}
	}
	if err := c.Client.Delete(t.Context(), idle); err != nil {
		t.Errorf("a block that is not in use: %v", err)
	}
	annotate(t, c, allowed, "true")
	if err := refused(c.Client.DeleteAllOf(t.Context(), &v1alpha1.IPBlock{}, client.MatchingLabels{"test": "by-hand"})); err != nil {
		t.Errorf("all at once: %v", err)
	}
	annotate(t, c, used, "true")
	if err := c.Client.DeleteAllOf(t.Context(), &v1alpha1.IPBlock{}, client.MatchingLabels{"test": "by-hand"}); err != nil {
		t.Errorf("annotated: %v", err)
	}
	var left v1alpha1.IPBlockList
	if err := c.Client.List(t.Context(), &left, client.MatchingLabels{"test": "by-hand"}); err != nil || len(left.Items) > 0 {
		t.Errorf("left are %d blocks, error %v", len(left.Items), err)
	}
}

func annotate(t *testing.T, c *cluster.Cluster, b *v1alpha1.IPBlock, allow string) {
	t.Helper()
	before := b.DeepCopy()
	b.Annotations = map[string]string{v1alpha1.AnnotationAllowDeletion: allow}
	if err := client.IgnoreNotFound(c.Client.Patch(t.Context(), b, client.MergeFrom(before))); err != nil {
		t.Fatal(err)
	}
}
