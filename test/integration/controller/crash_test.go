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

// The blocks that the pods of a life have addresses of: on the default network
// one of each family, which are routed to the node, and on another network one
// that all nodes share.
const (
	block4      = "10.1.0.0/26"
	block6      = "fd00:1::/122"
	blockShared = "10.2.0.0/26"
)

// TestKilledAtEveryStep kills the controller with SIGKILL on either side of
// each write that it makes to give a pod its networks, to take them back, and to
// take the blocks of a node back that is gone, and lets another process go on.
// Afterwards nothing is left, and at no time do two records name one address, or
// a record an address that its slot does not.
func TestKilledAtEveryStep(t *testing.T) {
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
				l := &life{cluster: c, killer: k, at: at, phase: phase.name, name: fmt.Sprintf("run-%d", n)}
				if !t.Run(phase.name+"/"+at.String(), l.run) {
					return // the next would find what this one left
				}
			}
		}
	}
}

// The phases of a life.
const (
	giving       = "giving"
	takingBack   = "taking back"
	afterTheNode = "after the node"
)

// life is that of three pods on a new node, during which the controller is
// killed once, at the first such moment of a phase.
type life struct {
	cluster *cluster.Cluster
	killer  *killer
	at      moment
	phase   string
	// name of the node, of the domain, and of the pods but for their last letter.
	name string

	program *program
	fired   <-chan struct{}
}

func (l *life) run(t *testing.T) {
	c := l.cluster
	freeLease(t, c)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: l.name}}
	l.create(t, node)
	l.pool(t, "default", v1alpha1.PlacementPerNode, block4, block6)
	l.pool(t, "blue", v1alpha1.PlacementShared, blockShared)
	world := l.watch(t)
	l.program = supervise(t, l.killer.kubeconfig(t), "multiVIFSources: [npwg]")
	l.program.buried(func() { freeLease(t, c) })

	l.begin(giving)
	// Only once the node has its NodeNetwork: it would be created with the first
	// pod's block already in it, and the write that adds a block never be made.
	c.Eventually(t, "the node's network", func(ctx context.Context) error {
		return c.Client.Get(ctx, client.ObjectKey{Name: l.name}, &v1alpha1.NodeNetwork{})
	})
	pods := []*corev1.Pod{l.pod("a")}
	c.Eventually(t, "the first record", func(ctx context.Context) error { return world.recorded(ctx, pods) })
	pods = append(pods, l.pod("b"), l.pod("c"))
	c.Eventually(t, "all records", func(ctx context.Context) error { return world.recorded(ctx, pods) })
	l.end(t, giving)

	l.begin(takingBack)
	// One pod finishes: its record's deletion is for the controller to ask for.
	// Of the others Kubernetes' garbage collector is usually first.
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
	c.Eventually(t, "everything to be given back", world.empty)
	l.end(t, takingBack)

	if l.phase != afterTheNode {
		return // it takes until the addresses have rested
	}
	l.begin(afterTheNode)
	if err := c.Client.Delete(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	// The addresses rest before the kill, and once more for the process after it, as
	// that goes by what it has seen itself.
	l.end(t, afterTheNode)
	c.Eventually(t, "the node's blocks to go", l.noBlockOfANode)
}

// begin arms the killer if the phase is the one of the moment.
func (l *life) begin(phase string) {
	if phase == l.phase {
		l.fired = l.killer.arm(l.at, l.program)
	}
}

// end waits for the kill of the phase.
func (l *life) end(t *testing.T, phase string) {
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

// watch plays the node, which has not reported: a release that waits for it says
// so at once. Where that write is the moment the node waits for it.
func (l *life) watch(t *testing.T) *world {
	w := &world{c: l.cluster, domain: l.name}
	waits := l.at.resource == "podattachments" && l.at.subresource == "status"
	w.keep(t, 10*time.Millisecond, func(ctx context.Context) {
		w.detach(ctx, slices.DeleteFunc(w.look(ctx), func(r v1alpha1.PodAttachment) bool {
			return waits && meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionReleased) == nil
		}))
	})
	return w
}

// pod makes a pod on both networks.
func (l *life) pod(letter string) *corev1.Pod {
	return l.cluster.Pod(l.name+"-"+letter, l.name, func(p *corev1.Pod) {
		p.Annotations = map[string]string{"k8s.v1.cni.cncf.io/networks": "blue"}
	})
}

func (l *life) pool(t *testing.T, name string, placement v1alpha1.Placement, ranges ...string) {
	t.Helper()
	l.create(t, &v1alpha1.IPPool{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.IPPoolSpec{Domain: l.name, Ranges: ranges, Placement: placement, NetworkNamespaceSelector: &metav1.LabelSelector{}},
	})
}

// create makes an object, which goes when the life ends.
func (l *life) create(t *testing.T, o client.Object) {
	t.Helper()
	if err := l.cluster.Client.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.cluster.Client.Delete(context.Background(), o) })
}

func (l *life) noBlockOfANode(ctx context.Context) error {
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

// freeLease spares a controller from waiting for one that was killed.
func freeLease(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.AccountNamespace, Name: leaseName}}
	if err := client.IgnoreNotFound(c.Client.Delete(context.Background(), lease)); err != nil {
		t.Error(err)
	}
}
