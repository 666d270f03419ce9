package controller

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/cluster"
)

// The blocks of the pods' addresses. The default network has one block of each family, both
// routed to the node; the network blue has a block that all nodes share.
const (
	block4      = "10.1.0.0/26"
	block6      = "fd00:1::/122"
	blockShared = "10.2.0.0/26"
)

// TestKilledAtEveryStep kills the controller with SIGKILL before and after each write that
// it makes in three phases: to give a pod its networks, to release them, and to release the
// blocks of a deleted node. Another process continues. At no time do two records name one
// address, or does the slot of an address name another pod than the record. At the end
// nothing is left.
func TestKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	c := cluster.Exclusive(t)
	c.Network("blue", `{"type": "bridge", "ipam": {"type": "fairlead-ipam", "pools": ["blue"]}}`)
	k := newKiller(t, c)
	phases := []struct {
		name    string
		moments []moment
	}{
		{giving, []moment{
			{method: http.MethodPost, resource: "ipblocks", block: block4},
			{method: http.MethodPost, resource: "ipblocks", block: block6},
			{method: http.MethodPost, resource: "ipblocks", block: blockShared},
			{method: http.MethodPut, resource: "ipblocks", block: block4},
			{method: http.MethodPut, resource: "ipblocks", block: block6},
			{method: http.MethodPut, resource: "ipblocks", block: blockShared},
			{method: http.MethodPost, resource: "podattachments"},
			{method: http.MethodPost, resource: "nodenetworks"},
			{method: http.MethodPatch, resource: "nodenetworks"},
			{method: http.MethodPatch, resource: "ippools", subresource: "status"},
		}},
		{takingBack, []moment{
			{method: http.MethodDelete, resource: "podattachments"},
			{method: http.MethodPatch, resource: "podattachments", subresource: "status"},
			{method: http.MethodPut, resource: "ipblocks", block: block4},
			{method: http.MethodPut, resource: "ipblocks", block: block6},
			{method: http.MethodPut, resource: "ipblocks", block: blockShared},
			{method: http.MethodPatch, resource: "podattachments"},
		}},
		{afterTheNode, []moment{
			{method: http.MethodDelete, resource: "ipblocks", block: block4},
		}},
	}
	n := 0
	for _, phase := range phases {
		for _, at := range phase.moments {
			for _, at.after = range []bool{false, true} {
				n++
				l := &killCase{cluster: c, killer: k, at: at, phase: phase.name, name: fmt.Sprintf("run-%d", n)}
				if !t.Run(phase.name+"/"+at.String(), l.run) {
					return // the next case would find the remains of this case
				}
			}
		}
	}
}

// The phases of a case.
const (
	giving       = "giving"
	takingBack   = "taking back"
	afterTheNode = "after the node"
)

// killCase is one case: three pods on a new node. The controller is killed once, when the moment
// first comes in the phase.
type killCase struct {
	cluster *cluster.Cluster
	killer  *killer
	at      moment
	phase   string
	// name is the name of the node and of the domain. The name of a pod adds "-" and a letter.
	name string

	program *program
	fired   <-chan struct{}
}

func (l *killCase) run(t *testing.T) {
	c := l.cluster
	freeLease(t, c)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: l.name}}
	l.create(t, node)
	l.pool(t, "default", v1alpha1.PlacementPerNode, block4, block6)
	l.pool(t, "blue", v1alpha1.PlacementShared, blockShared)
	w := l.watch(t)
	l.program = supervise(t, l.killer.kubeconfig(t), "multiVIFSources: [npwg]")
	l.program.setOnExit(func() { freeLease(t, c) })

	l.begin(giving)
	// Wait for the NodeNetwork before the first pod. Otherwise it might be created with the
	// pod's block already in it, and the write that adds a block would never happen.
	c.Eventually(t, "the node's network", func(ctx context.Context) error {
		return c.Client.Get(ctx, client.ObjectKey{Name: l.name}, &v1alpha1.NodeNetwork{})
	})
	pods := []*corev1.Pod{l.pod("a")}
	c.Eventually(t, "the first record", func(ctx context.Context) error { return w.recorded(ctx, pods) })
	pods = append(pods, l.pod("b"), l.pod("c"))
	c.Eventually(t, "all records", func(ctx context.Context) error { return w.recorded(ctx, pods) })
	l.end(t, giving)

	l.begin(takingBack)
	// One pod finishes, so the controller itself deletes the record. The records of deleted
	// pods are usually deleted by Kubernetes' garbage collector first.
	finished := pods[2].DeepCopy()
	finished.Status.Phase = corev1.PodSucceeded
	if err := c.Client.Status().Patch(t.Context(), finished, client.MergeFrom(pods[2])); err != nil {
		t.Fatal(err)
	}
	for _, p := range pods[:2] {
		if err := c.Client.Delete(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	c.Eventually(t, "everything to be given back", w.empty)
	l.end(t, takingBack)

	if l.phase != afterTheNode {
		return // the last phase lasts until the addresses have cooled down
	}
	l.begin(afterTheNode)
	if err := c.Client.Delete(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	// The addresses cool down before the kill, and once more after it: the new process
	// measures the cooldown from its own start.
	l.end(t, afterTheNode)
	c.Eventually(t, "the node's blocks to go", l.noBlockOfANode)
}

// begin arms the killer if the moment is in this phase.
func (l *killCase) begin(phase string) {
	if phase == l.phase {
		l.fired = l.killer.arm(l.at, l.program)
	}
}

// end waits until the controller was killed, if the moment is in this phase.
func (l *killCase) end(t *testing.T, phase string) {
	t.Helper()
	if phase != l.phase {
		return
	}
	l.cluster.Eventually(t, "the controller to have been killed", func(context.Context) error {
		select {
		case <-l.fired:
			return nil
		default:
			return fmt.Errorf("it never made the write %s", l.at)
		}
	})
}

// watch plays the node, which sets Detached. A release that waits for the node sets the
// condition Released at once. If the moment is that write, the node waits for the condition
// first.
func (l *killCase) watch(t *testing.T) *observer {
	w := &observer{c: l.cluster, domain: l.name}
	waits := l.at.resource == "podattachments" && l.at.subresource == "status"
	w.repeat(t, 10*time.Millisecond, func(ctx context.Context) {
		w.detach(ctx, slices.DeleteFunc(w.inspect(ctx), func(r v1alpha1.PodAttachment) bool {
			return waits && meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionReleased) == nil
		}))
	})
	return w
}

// pod creates a pod on both networks.
func (l *killCase) pod(letter string) *corev1.Pod {
	return l.cluster.Pod(l.name+"-"+letter, l.name, func(p *corev1.Pod) {
		p.Annotations = map[string]string{"k8s.v1.cni.cncf.io/networks": "blue"}
	})
}

func (l *killCase) pool(t *testing.T, name string, placement v1alpha1.Placement, ranges ...string) {
	t.Helper()
	l.create(t, &v1alpha1.IPPool{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.IPPoolSpec{Domain: l.name, Ranges: ranges, Placement: placement, NetworkNamespaceSelector: &metav1.LabelSelector{}},
	})
}

// create creates an object and deletes it at the end of the case.
func (l *killCase) create(t *testing.T, o client.Object) {
	t.Helper()
	if err := l.cluster.Client.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.cluster.Client.Delete(context.Background(), o) })
}

func (l *killCase) noBlockOfANode(ctx context.Context) error {
	var list v1alpha1.IPBlockList
	if err := l.cluster.Client.List(ctx, &list, client.MatchingLabels{v1alpha1.LabelDomain: l.name}); err != nil {
		return err
	}
	var errs []error
	for _, b := range list.Items {
		if b.Spec.Node != "" {
			errs = append(errs, fmt.Errorf("block %s is there", b.Name))
		}
	}
	return errors.Join(errs...)
}

// freeLease deletes the Lease, so that a controller does not wait for the lease of a killed
// process to expire.
func freeLease(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.AccountNamespace, Name: leaseName}}
	if err := client.IgnoreNotFound(c.Client.Delete(context.Background(), lease)); err != nil {
		t.Error(err)
	}
}
