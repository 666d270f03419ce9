package cluster

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// patience is how long Eventually waits for a condition.
	patience = time.Minute
	// tick is the time between two checks of a condition.
	tick = 10 * time.Millisecond
)

// Node creates a Node that is ready and takes pods; with changes it before. Under New the
// name must be unique among all tests, for example the test's namespace. The Node is
// removed after the test.
func (c *Cluster) Node(name string, with ...func(*corev1.Node)) *corev1.Node {
	c.tb.Helper()
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("64"),
		corev1.ResourceMemory: resource.MustParse("256Gi"),
		corev1.ResourcePods:   resource.MustParse("500"),
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:   name,
			Labels: map[string]string{ownedLabel: "true", corev1.LabelHostname: name, corev1.LabelOSStable: "linux"},
		},
		Status: corev1.NodeStatus{
			Capacity:    capacity,
			Allocatable: capacity,
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Test"}},
		},
	}
	for _, change := range with {
		change(node)
	}
	err := c.Client.Create(c.tb.Context(), node)
	if apierrors.IsAlreadyExists(err) {
		c.tb.Fatalf("node %s exists: another test made it; choose a name of this test's own", name)
	}
	if err != nil {
		c.tb.Fatalf("creating node %s: %v", name, err)
	}
	c.cleanup(func(ctx context.Context) {
		if err := c.Client.Delete(ctx, node.DeepCopy()); client.IgnoreNotFound(err) != nil {
			c.tb.Errorf("removing node %s: %v", name, err)
		}
	})
	// Admission gives every new node the not-ready taint, and no controller removes it
	// here.
	untaint := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"taints":null}}`))
	if err := c.Client.Patch(c.tb.Context(), node, untaint); err != nil {
		c.tb.Fatalf("removing the taints of node %s: %v", name, err)
	}
	return node
}

// Pod creates a pod in the test's namespace, bound to a node, or left to the scheduler if
// node is empty; with changes it before. It has one container, which never runs, and
// deleting it takes no grace period.
func (c *Cluster) Pod(name, node string, with ...func(*corev1.Pod)) *corev1.Pod {
	c.tb.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: name},
		Spec: corev1.PodSpec{
			NodeName:                      node,
			AutomountServiceAccountToken:  new(false),
			TerminationGracePeriodSeconds: new(int64(0)),
			Containers:                    []corev1.Container{{Name: "main", Image: "none"}},
		},
	}
	for _, change := range with {
		change(pod)
	}
	if err := c.Client.Create(c.tb.Context(), pod); err != nil {
		c.tb.Fatalf("creating pod %s: %v", name, err)
	}
	return pod
}

// Eventually waits until check returns nil, for a minute at most, and then fails the test
// with the last error. what names the awaited condition: "an attachment for pod web".
func (c *Cluster) Eventually(tb testing.TB, what string, check func(ctx context.Context) error) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	var last error
	for {
		err := check(ctx)
		if err == nil {
			return
		}
		if last == nil || ctx.Err() == nil { // the end of the time is no reason
			last = err
		}
		select {
		case <-ctx.Done():
			tb.Fatalf("waited %v for %s: %v", patience, what, last)
		case <-ticker.C:
		}
	}
}
