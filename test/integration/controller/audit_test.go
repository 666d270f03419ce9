package controller

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/internal/cli"
	"fairlead.dev/fairlead/test/cluster"
)

// audited returns an error if `fairlead ipam audit` finds something.
func audited(ctx context.Context, c *cluster.Cluster) error {
	var out bytes.Buffer
	program := cli.New("fairlead", &out, &out) //nolint:contextcheck // its commands get the context from Run
	if code := program.Run(ctx, []string{"ipam", "audit", "--kubeconfig", c.Kubeconfig}); code != 0 {
		return fmt.Errorf("fairlead ipam audit ends with code %d:\n%s", code, &out)
	}
	return nil
}

// TestAuditWhilePodsComeAndGo checks that an audit reports no address as lost while pods are
// being created or deleted.
func TestAuditWhilePodsComeAndGo(t *testing.T) {
	t.Parallel()
	c := cluster.Exclusive(t)
	const name = "audit"
	w := oneNode(t, c, name)
	supervise(t, c.Account(cluster.ControllerAccount, ""))
	for wave := range 2 {
		var pods []*corev1.Pod
		for i := range 12 {
			pods = append(pods, c.Pod(fmt.Sprintf("web-%d-%d", wave, i), name))
		}
		if err := audited(t.Context(), c); err != nil {
			t.Errorf("while pods of wave %d are created: %v", wave, err)
		}
		c.Eventually(t, "all records", func(ctx context.Context) error { return w.recorded(ctx, pods) })
		if err := c.Client.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace(c.Namespace), client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
		if err := audited(t.Context(), c); err != nil {
			t.Errorf("while pods of wave %d are deleted: %v", wave, err)
		}
	}
	c.Eventually(t, "everything to be given back", w.empty)
	c.Eventually(t, "a clean audit", func(ctx context.Context) error { return audited(ctx, c) })
}
