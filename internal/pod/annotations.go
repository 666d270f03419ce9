package pod

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// limits are how long the annotations that are read may be, in bytes: no valid one is
// longer but for blanks and what is not read of a list of networks.
var limits = map[string]int{
	corev1.MirrorPodAnnotationKey: 64,
	v1alpha1.AnnotationAddresses:  256,
	v1alpha1.AnnotationClaim:      4 * maxClaimText,
	v1alpha1.AnnotationPools:      8 << 10,
	AnnotationNetworks:            16 << 10,
	AnnotationDefaultNetwork:      1 << 10,
}

// Keeps is how many bytes of an annotation's value a cache has to keep: of one that is
// too long, one more than may be, by which it is known; none of one that is not read.
func Keeps(annotation string) int {
	limit, ok := limits[annotation]
	if !ok {
		return 0
	}
	return limit + 1
}

// annotation returns the value of an annotation, and whether the pod has it. Its error
// names the annotation and how long it may be.
func annotation(p *corev1.Pod, key string) (value string, ok bool, err error) {
	value, ok = p.Annotations[key]
	if limit := limits[key]; len(value) > limit {
		return "", ok, fmt.Errorf("annotation %s: it has more than %d bytes, and begins with %.40q: at most %d are read", key, limit, value, limit)
	}
	return value, ok, nil
}
