// Package pod derives from a pod whether Fairlead serves it, its identity, and the
// interfaces that it requests. Pure functions; no I/O.
package pod

import (
	"crypto/sha256"
	"encoding/hex"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Wants reports whether a pod needs a network now: it is scheduled, does not use the
// host's network, and neither has finished nor is being deleted. A pod that is being
// deleted keeps its network but gets no new one: its node starts no further sandbox for
// it.
func Wants(p *corev1.Pod) bool {
	return Holds(p) && p.DeletionTimestamp == nil
}

// Holds reports whether a pod may still use its network: as Wants, but also while the pod
// is being deleted.
func Holds(p *corev1.Pod) bool {
	return p.Spec.NodeName != "" && !p.Spec.HostNetwork && !Finished(p)
}

// Finished reports whether all containers of a pod have ended for good.
func Finished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// CNIUID returns the UID in the runtime's CNI_ARGS for the pod. For a static pod that is
// the UID of its manifest, which its mirror pod has in an annotation. Every user can
// write that annotation, so the UID only matches requests and never proves ownership.
func CNIUID(p *corev1.Pod) types.UID {
	if uid := p.Annotations[corev1.MirrorPodAnnotationKey]; uid != "" {
		return types.UID(uid)
	}
	return p.UID
}

// AttachmentName returns the name of the PodAttachment of one incarnation of a pod: the
// pod's name and the start of its own UID, so a successor of the same name never waits
// for its predecessor's object. The name is always valid: if pod name and UID do not form
// a valid name, it is a hash of them.
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
