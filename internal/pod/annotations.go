package pod

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// limits are the maximum lengths of the annotations that Fairlead reads, in bytes. A
// valid value can be longer only by blanks, or by ignored keys in a list of networks.
var limits = map[string]int{
	corev1.MirrorPodAnnotationKey: 64,
	v1alpha1.AnnotationAddresses:  256,
	v1alpha1.AnnotationClaim:      4 * maxClaimText,
	v1alpha1.AnnotationPools:      8 << 10,
	AnnotationNetworks:            16 << 10,
	AnnotationDefaultNetwork:      1 << 10,
	AnnotationPrimaryClaim:        256,
	AnnotationBridged:             16,
	AnnotationLabelsLeftOut:       16,

	v1alpha1.AnnotationAdditionalPools: 8 << 10,
	v1alpha1.AnnotationSecurityGroups:  8 << 10,
	AnnotationAdditionalSubnets:        8 << 10,
}

// ofNamespaces are the annotations of namespaces that drivers read.
var ofNamespaces = []string{AnnotationProject, v1alpha1.AnnotationSecurityGroups}

// MaxLabels bounds the labels of a pod in bytes of keys and values, since each takes several
// times its size in a cache and Kubernetes bounds their number only by the size of the pod.
const MaxLabels = 16 << 10

// AnnotationLabelsLeftOut marks a pod whose labels are longer than that: a cache keeps none of
// them and sets this annotation to their length. Selectors would read such a pod wrongly, so
// it gets no interface. A user who sets it refuses her own pod.
const AnnotationLabelsLeftOut = "fairlead.dev/labels-left-out"

// labelsKept returns an error if the labels of a pod are longer than MaxLabels.
func labelsKept(p *corev1.Pod) error {
	size, leftOut := p.Annotations[AnnotationLabelsLeftOut]
	if !leftOut {
		return nil
	}
	return fmt.Errorf("labels: they have %.16s bytes: at most %d are read", size, MaxLabels)
}

// AnnotationProject is Kuryr's annotation of a namespace for the OpenStack project of its
// ports.
const AnnotationProject = "openstack.org/kuryr-project"

// AnnotationBridged is KubeVirt's annotation of a launcher whose guest has the address of the
// pod, and may migrate with it. Without it, the guest is behind the address of the pod.
const AnnotationBridged = "kubevirt.io/allow-pod-bridge-network-live-migration"

// maxOfNamespace bounds the value of an annotation of a namespace, in bytes.
const maxOfNamespace = 8 << 10

// KeptOfNamespace returns those annotations of a namespace that a cache keeps; nil if there
// are none. A value is kept up to one byte more than the limit, as with Kept.
func KeptOfNamespace(annotations map[string]string) map[string]string {
	var kept map[string]string
	for _, key := range ofNamespaces {
		if value, ok := annotations[key]; ok {
			if kept == nil {
				kept = map[string]string{}
			}
			kept[key] = value[:min(len(value), maxOfNamespace+1)]
		}
	}
	return kept
}

// Kept returns the part of an annotation's value that a cache keeps; ok is false for an
// annotation that Fairlead does not read. A value is kept up to one byte more than the
// limit, so that a longer value is still recognized as too long. Of the network status
// only the digest is kept: Fairlead compares it with that of the status it would write.
func Kept(annotation, value []byte) (kept string, ok bool) {
	if string(annotation) == AnnotationNetworkStatus {
		return Digest(string(value)), true
	}
	limit, ok := limits[string(annotation)]
	if !ok {
		return "", false
	}
	return string(value[:min(len(value), limit+1)]), true
}

// Digest returns a text of 16 bytes that differs if the value does.
func Digest(value string) string {
	sum := sha256.Sum256([]byte(value))
	return base64.RawURLEncoding.EncodeToString(sum[:12])
}

// annotation returns the value of an annotation, and whether the pod has it. It returns
// an error with the annotation's name and limit if the value is too long.
func annotation(p *corev1.Pod, key string) (value string, ok bool, err error) {
	value, ok = p.Annotations[key]
	if limit := limits[key]; len(value) > limit {
		return "", ok, fmt.Errorf("annotation %s: it has more than %d bytes, and begins with %.40q: at most %d are read", key, limit, value, limit)
	}
	return value, ok, nil
}
