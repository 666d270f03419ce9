// Package prooftest has a PodAttachment and its node for tests of package proof.
package prooftest

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// Now is the moment of all judgements below. The record was written an hour before and
// plugged at once, in boot-1. It is being deleted since a minute before.
var Now = time.Date(2026, 1, 2, 15, 0, 0, 0, time.UTC)

// Ago returns the time d before Now.
func Ago(d time.Duration) metav1.Time { return metav1.NewTime(Now.Add(-d)) }

// Plugged returns the record of a pod that was plugged on the node n1 and is being
// deleted.
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

// NodeOf returns a node that is well, in boot-1, and older than the record.
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

// InState sets the status of a node's condition Ready.
func InState(status corev1.ConditionStatus) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Status.Conditions[0].Status = status }
}

// InBoot sets a node's boot ID.
func InBoot(id string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Status.NodeInfo.BootID = id }
}

// Made sets a node's creation time, before Now.
func Made(before time.Duration) func(*corev1.Node) {
	return func(n *corev1.Node) { n.CreationTimestamp = Ago(before) }
}

// Reported sets when the kubelet last reported, before Now.
func Reported(before time.Duration) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Status.Conditions[0].LastHeartbeatTime = Ago(before) }
}

// UID sets a node's UID.
func UID(of types.UID) func(*corev1.Node) {
	return func(n *corev1.Node) { n.UID = of }
}

// MadeForIt sets the record's Node UID to 1.
func MadeForIt(r *v1alpha1.PodAttachment) { r.Spec.NodeUID = "1" }

// Tainted adds a taint to a node.
func Tainted(key string, effect corev1.TaintEffect) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Value: "shutdown", Effect: effect})
	}
}

// NeverPlugged removes the record's sandbox.
func NeverPlugged(r *v1alpha1.PodAttachment) { r.Status.Sandbox = nil }

// DeletedFor sets the record's deletion time, before Now.
func DeletedFor(d time.Duration) func(*v1alpha1.PodAttachment) {
	return func(r *v1alpha1.PodAttachment) { deletion := Ago(d); r.DeletionTimestamp = &deletion }
}
