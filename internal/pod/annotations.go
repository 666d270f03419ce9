package pod

import (
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
}

// Keeps returns the number of bytes of an annotation's value that a cache must keep: one
// more than the limit, so that a longer value is still recognized as too long; 0 for an
// annotation that Fairlead does not read.
func Keeps(annotation string) int {
	limit, ok := limits[annotation]
	if !ok {
		return 0
	}
	return limit + 1
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
