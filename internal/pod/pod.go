// Package pod says what a pod asks of Fairlead: whether it is ours to serve,
// under which identity, and which interfaces it wants. Pure functions of the
// pod; no I/O.
package pod

import (
	"crypto/sha256"
	"encoding/hex"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Wants reports whether a pod needs a network now: it is scheduled, has a
// network of its own, and neither has finished nor is being deleted. A pod
// that is being deleted keeps the network it has but gets no new one: its node
// starts no sandbox for it any more.
func Wants(p *corev1.Pod) bool {
	return Holds(p) && p.DeletionTimestamp == nil
}

// Holds reports whether a pod may still be using its network: all of Wants,
// or being deleted but not yet gone.
func Holds(p *corev1.Pod) bool {
	return p.Spec.NodeName != "" && !p.Spec.HostNetwork && !Finished(p)
}

// Finished reports whether all containers of a pod have ended for good.
func Finished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// CNIUID is the UID under which the runtime will ask for the pod, in CNI_ARGS. For a
// static pod that is the one of its manifest, which its mirror carries in an
// annotation. Any user can write that annotation: the UID says only what is asked
// for, and never whose something is.
func CNIUID(p *corev1.Pod) types.UID {
	if uid := p.Annotations[corev1.MirrorPodAnnotationKey]; uid != "" {
		return types.UID(uid)
	}
	return p.UID
}

// AttachmentName is the name of the PodAttachment of one incarnation of a pod, by the
// pod's own UID: a successor of the same name never waits for its predecessor's
// object. Every name and UID makes a valid name: one that they would not make as they
// are is made of their hash.
func AttachmentName(podName string, uid types.UID) string {
	const suffix = 8
	short := string(uid)
	if len(short) > suffix {
		short = short[:suffix]
	}
	front := podName
	if longest := validation.DNS1123SubdomainMaxLength - suffix - 1; len(front) > longest {
		front = front[:longest]
	}
	if name := front + "-" + short; len(validation.IsDNS1123Subdomain(name)) == 0 {
		return name
	}
	sum := sha256.Sum256([]byte(podName + "/" + string(uid)))
	return "pod-" + hex.EncodeToString(sum[:16])
}
