package controller

import (
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/migrate/apply"
	"fairlead.dev/fairlead/test/cluster"
)

// TestAfterAMigration lets the controller serve a network of whereabouts whose only pod was
// imported. The pod keeps its address, and no other pod gets it while the pod has it. The
// address is released when the node has set Detached.
func TestAfterAMigration(t *testing.T) {
	t.Parallel()
	c := cluster.Exclusive(t)
	const name = "migrated"
	c.Node(name, func(n *corev1.Node) { n.Status.NodeInfo.BootID = "boot-1" })
	c.Network("lan", `{"cniVersion": "1.0.0", "name": "lan", "type": "macvlan",
		"ipam": {"type": "whereabouts", "network_name": "migrated", "range": "10.1.0.0/29"}}`)
	asks := func(p *corev1.Pod) {
		p.Annotations = map[string]string{"k8s.v1.cni.cncf.io/networks": "lan"}
	}
	// No record of whereabouts is left; the address comes from the pod's annotation.
	before := c.Pod("before", name, asks, func(p *corev1.Pod) {
		p.Annotations["k8s.v1.cni.cncf.io/network-status"] = fmt.Sprintf(`[{"name": "%s/lan", "interface": "net1", "ips": ["10.1.0.3"]}]`, c.Namespace)
	})
	running := before.DeepCopy()
	running.Status.Phase = corev1.PodRunning
	if err := c.Client.Status().Patch(t.Context(), running, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	if _, plan, err := (apply.Migration{API: c.Client, Namespace: c.Namespace}).Import(t.Context()); err != nil || len(plan.Records) != 1 {
		t.Fatalf("import: %v, %+v", err, plan)
	}

	w := observe(t, c, name)
	supervise(t, c.Account(cluster.ControllerAccount, ""), "defaultNetwork: {driver: none}", "multiVIFSources: [npwg]")
	pods := []*corev1.Pod{before}
	for i := range 5 { // as many as the range has further addresses
		pods = append(pods, c.Pod(fmt.Sprintf("after-%d", i), name, asks))
	}
	c.Eventually(t, "all addresses in use", func(ctx context.Context) error { return w.holdsOnly(ctx, pods) })
	slots, err := w.slots(t.Context())
	if err != nil || len(slots) != len(pods) || slots["10.1.0.3"] != string(before.UID) {
		t.Errorf("addresses: %v, %v", slots, err)
	}

	if err := c.Client.Delete(t.Context(), before); err != nil {
		t.Fatal(err)
	}
	var record v1alpha1.PodAttachment
	c.Eventually(t, "the record to wait for its node", func(ctx context.Context) error {
		records, err := w.records(ctx)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(records, func(r v1alpha1.PodAttachment) bool { return r.Spec.PodUID == before.UID })
		if i < 0 {
			t.Fatal("the record is gone before the node has set Detached")
		}
		if record = records[i]; record.DeletionTimestamp == nil {
			return fmt.Errorf("record %s is not being deleted", record.Name)
		}
		return nil
	})
	if err := w.writeSandbox(t.Context(), &record, v1alpha1.Sandbox{BootID: "boot-1", State: v1alpha1.SandboxDetached}); err != nil {
		t.Fatal(err)
	}
	pods = append(pods[1:], c.Pod("last", name, asks))
	c.Eventually(t, "the address with the next pod", func(ctx context.Context) error { return w.holdsOnly(ctx, pods) })
	c.Eventually(t, "a clean audit", func(ctx context.Context) error { return audited(ctx, c) })
}
