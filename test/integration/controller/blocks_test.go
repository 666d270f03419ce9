package controller

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/cluster"
)

// wantEvent waits for an event on a pod with this reason and this text in its note.
func wantEvent(t *testing.T, c *cluster.Cluster, p *corev1.Pod, reason, text string) {
	t.Helper()
	c.Eventually(t, fmt.Sprintf("the event %s of pod %s", reason, p.Name), func(ctx context.Context) error {
		var list eventsv1.EventList
		if err := c.Client.List(ctx, &list, client.InNamespace(p.Namespace)); err != nil {
			return err
		}
		var seen []string
		for _, e := range list.Items {
			if e.Regarding.UID != p.UID {
				continue
			}
			if e.Reason == reason && strings.Contains(e.Note, text) {
				return nil
			}
			seen = append(seen, e.Reason+": "+e.Note)
		}
		return fmt.Errorf("its events are %q", seen)
	})
}

// recorded waits for the record of a pod.
func recorded(t *testing.T, c *cluster.Cluster, p *corev1.Pod) {
	t.Helper()
	c.Eventually(t, "the record of pod "+p.Name, func(ctx context.Context) error {
		var list v1alpha1.PodAttachmentList
		if err := c.Client.List(ctx, &list, client.InNamespace(p.Namespace)); err != nil {
			return err
		}
		for _, r := range list.Items {
			if r.Spec.PodName == p.Name && len(r.Spec.Interfaces) > 0 {
				return nil
			}
		}
		return fmt.Errorf("there are %d records of other pods", len(list.Items))
	})
}

func blocks(t *testing.T, c *cluster.Cluster) (byNode map[string]int) {
	t.Helper()
	var list v1alpha1.IPBlockList
	if err := c.Client.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	byNode = map[string]int{}
	for _, b := range list.Items {
		byNode[b.Spec.Node]++
	}
	return byNode
}

func perNodePool(t *testing.T, c *cluster.Cluster, spec v1alpha1.IPPoolSpec) {
	t.Helper()
	spec.Placement, spec.Cooldown = v1alpha1.PlacementPerNode, &metav1.Duration{Duration: 5 * time.Second}
	if err := c.Client.Create(t.Context(), &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: spec}); err != nil {
		t.Fatal(err)
	}
}

// Pods that are bound to nodes that do not exist take no blocks. A pod gets its network when
// its Node is created.
func TestGhostNodes(t *testing.T) {
	t.Parallel()
	c := cluster.Exclusive(t)
	c.Node("node-x")
	perNodePool(t, c, v1alpha1.IPPoolSpec{Ranges: []string{"10.1.0.0/24"}})
	supervise(t, c.Account(cluster.ControllerAccount, ""))
	var ghosts []*corev1.Pod
	for i := range 8 {
		ghosts = append(ghosts, c.Pod(fmt.Sprintf("ghost-%d", i), fmt.Sprintf("ghost-%d", i)))
	}
	for _, p := range ghosts {
		wantEvent(t, c, p, "NodeUnknown", fmt.Sprintf("there is no Node %q", p.Spec.NodeName))
	}
	recorded(t, c, c.Pod("good", "node-x"))
	if got := blocks(t, c); len(got) != 1 || got["node-x"] != 1 {
		t.Errorf("blocks by node: %v, want one of node-x", got)
	}
	c.Node("ghost-3")
	recorded(t, c, ghosts[3])
	if got := blocks(t, c); len(got) != 2 || got["ghost-3"] != 1 {
		t.Errorf("blocks by node: %v, want one of node-x and one of ghost-3", got)
	}
}

// A tenant requests one address of each block. Her node gets spec.maxBlocksPerNode blocks,
// the events on the refused pods give the reason, and a pod on another node gets its
// network.
func TestAddressOfEachBlock(t *testing.T) {
	t.Parallel()
	c := cluster.Exclusive(t)
	c.Node("node-x")
	c.Node("node-y")
	perNodePool(t, c, v1alpha1.IPPoolSpec{Ranges: []string{"10.1.0.0/22"}, MaxBlocksPerNode: 3})
	supervise(t, c.Account(cluster.ControllerAccount, ""))
	asking := func(i int, node string) *corev1.Pod {
		return c.Pod(fmt.Sprintf("b%d-%s", i, node), node, func(p *corev1.Pod) {
			p.Annotations = map[string]string{v1alpha1.AnnotationAddresses: fmt.Sprintf("10.1.%d.%d", i/4, i%4*64+9)}
		})
	}
	for i := range 16 {
		p := asking(i, "node-x")
		if i < 3 {
			recorded(t, c, p)
		} else {
			wantEvent(t, c, p, "NetworkExhausted", "node node-x has 3 IPv4 blocks of pool default already, and spec.maxBlocksPerNode allows 3")
		}
	}
	recorded(t, c, c.Pod("good", "node-y"))
	wantEvent(t, c, asking(0, "node-y"), "NetworkConflict", "is routed to node node-x, and the pod is on node node-y")
	if got := blocks(t, c); got["node-x"] != 3 || got["node-y"] != 1 {
		t.Errorf("blocks by node: %v", got)
	}
}
