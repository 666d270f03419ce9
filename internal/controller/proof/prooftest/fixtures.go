// Package prooftest has a PodAttachment and its node to weigh proof by.
package prooftest

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// Now is the moment of all judgements below. The record was written an hour
// before and plugged at once, in boot-1; it is being deleted for a minute.
var Now = time.Date(2026, 1, 2, 15, 0, 0, 0, time.UTC)

// Ago is so long before Now.
func Ago(d time.Duration) metav1.Time { return metav1.NewTime(Now.Add(-d)) }

// Plugged is a record of a pod that was plugged on the node n1 and is being deleted.
func Plugged(with ...func(*v1alpha1.PodAttachment)) *v1alpha1.PodAttachment {
	deletion, at := Ago(time.Minute), metav1.NewMicroTime(Now.Add(-time.Hour))
	record := &v1alpha1.PodAttachment{
		ObjectMeta: metav1.ObjectMeta{CreationTimestamp: Ago(time.Hour), DeletionTimestamp: &deletion},
		Spec:       v1alpha1.PodAttachmentSpec{NodeName: "n1"},
		Status:     v1alpha1.PodAttachmentStatus{Sandbox: &v1alpha1.Sandbox{ID: "c0ffee", BootID: "boot-1", State: v1alpha1.SandboxAttached, AttachedAt: &at}},
	}
	for _, change := range with {
		change(record)
	}
	return record
}

// NodeOf is a node that is well, in boot-1, and older than the record.
func NodeOf(with ...func(*corev1.Node)) *corev1.Node {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", CreationTimestamp: Ago(24 * time.Hour)},
		Status: corev1.NodeStatus{
			NodeInfo: corev1.NodeSystemInfo{BootID: "boot-1"},
			Conditions: []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: Ago(time.Second), LastTransitionTime: Ago(10 * time.Minute),
			}},
		},
	}
	for _, change := range with {
		change(node)
	}
	return node
}

// InState gives a node another condition Ready.
func InState(status corev1.ConditionStatus) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Status.Conditions[0].Status = status }
}

// InBoot gives a node another boot ID.
func InBoot(id string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Status.NodeInfo.BootID = id }
}

// Made makes a node so much older than Now.
func Made(before time.Duration) func(*corev1.Node) {
	return func(n *corev1.Node) { n.CreationTimestamp = Ago(before) }
}

// Reported is when the kubelet last reported, before Now.
func Reported(before time.Duration) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Status.Conditions[0].LastHeartbeatTime = Ago(before) }
}

// UID gives a node a UID.
func UID(of types.UID) func(*corev1.Node) {
	return func(n *corev1.Node) { n.UID = of }
}

// MadeForIt is a record that says it was made for the Node with the UID 1.
func MadeForIt(r *v1alpha1.PodAttachment) { r.Spec.NodeUID = "1" }

// Tainted taints a node.
func Tainted(key string, effect corev1.TaintEffect) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Value: "shutdown", Effect: effect})
	}
}

// NeverPlugged is a record of which no sandbox is known.
func NeverPlugged(r *v1alpha1.PodAttachment) { r.Status.Sandbox = nil }

// DeletedFor makes a record be deleted for so long.
func DeletedFor(d time.Duration) func(*v1alpha1.PodAttachment) {
	return func(r *v1alpha1.PodAttachment) { deletion := Ago(d); r.DeletionTimestamp = &deletion }
}
