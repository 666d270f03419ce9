package pod

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// maxPools is the number of pools that a pod may name.
const maxPools = 16

// Pools returns the pools that a pod requests on the default network, in order; nil if it
// has no such annotation. An error names the annotation, the value and the accepted form.
func Pools(p *corev1.Pod) ([]string, error) {
	text, ok, err := annotation(p, v1alpha1.AnnotationPools)
	if err != nil || !ok {
		return nil, err
	}
	bad := func(problem string) error {
		return fmt.Errorf("annotation %s: %q %s: write names of IPPools, separated by commas, as in %q",
			v1alpha1.AnnotationPools, text, problem, "web,overflow")
	}
	if strings.Count(text, ",") >= maxPools {
		return nil, bad(fmt.Sprintf("has more than %d entries", maxPools))
	}
	var names []string
	for name := range strings.SplitSeq(text, ",") {
		name = strings.TrimSpace(name)
		switch {
		case len(validation.IsDNS1123Subdomain(name)) > 0:
			return nil, bad(fmt.Sprintf("has %q, which is no name of an IPPool", name))
		case slices.Contains(names, name):
			return nil, bad(fmt.Sprintf("has %q twice", name))
		}
		names = append(names, name)
	}
	return names, nil
}
