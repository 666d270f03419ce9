package pod

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// maxPools is the number of pools that a pod may name.
const maxPools = 16

// AnnotationAdditionalSubnets is the annotation of Kuryr for further interfaces. It has
// the form of fairlead.dev/additional-pools, and names IPPools as well.
const AnnotationAdditionalSubnets = "openstack.org/kuryr-additional-subnets"

// Pools returns the pools that a pod requests on the default network, in order; nil if it
// has no such annotation. An error names the annotation, the value and the accepted form.
func Pools(p *corev1.Pod) ([]string, error) {
	text, ok, err := annotation(p, v1alpha1.AnnotationPools)
	if err != nil || !ok {
		return nil, err
	}
	names, err := poolNames(text)
	if err != nil {
		return nil, fmt.Errorf("annotation %s: %q %w: write names of IPPools, separated by commas, as in %q", v1alpha1.AnnotationPools, text, err, "web,overflow")
	}
	return names, nil
}

// AdditionalPools returns the pools of further interfaces that a pod requests, in order;
// nil if it requests none. An error names the annotation, the value and the accepted form.
func AdditionalPools(p *corev1.Pod) ([]string, error) {
	key := v1alpha1.AnnotationAdditionalPools
	text, ok, err := annotation(p, key)
	former, also, errAlso := annotation(p, AnnotationAdditionalSubnets)
	switch {
	case ok && also:
		return nil, fmt.Errorf("annotation %s: %.40q stands beside %s: %.40q: leave one of them out", key, text, AnnotationAdditionalSubnets, former)
	case also:
		key, text, err = AnnotationAdditionalSubnets, former, errAlso
	case !ok:
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	names, err := listedPools(strings.TrimSpace(text))
	if err != nil {
		return nil, fmt.Errorf("annotation %s: %q %w: write names of IPPools, as in %q or %q", key, text, err, "storage,backup", `["storage","backup"]`)
	}
	return names, nil
}

// FromAdditionalPools is a Source: "additional-subnets", which Kuryr had under this name. It
// returns one interface on the default network for each pool of AdditionalPools. The driver
// of the default network obtains and plugs it like the default interface, if the pool serves
// the pod; it has no default route.
func FromAdditionalPools(p *corev1.Pod) ([]Interface, error) {
	pools, err := AdditionalPools(p)
	if err != nil {
		return nil, err
	}
	var out []Interface
	for _, pool := range pools {
		out = append(out, Interface{Network: v1alpha1.DefaultNetwork, Pools: []string{pool}, OwnGateways: true})
	}
	return out, nil
}

// listedPools reads names separated by commas, or a JSON list of them. No text and an
// empty list are no names.
func listedPools(text string) ([]string, error) {
	if text == "" {
		return nil, nil
	}
	if !strings.HasPrefix(text, "[") {
		return poolNames(text)
	}
	var names []string
	if err := json.Unmarshal([]byte(text), &names); err != nil {
		return nil, errors.New("is no JSON list of texts")
	}
	return checkedPools(names)
}

func poolNames(text string) ([]string, error) {
	if strings.Count(text, ",") >= maxPools {
		return nil, fmt.Errorf("has more than %d entries", maxPools)
	}
	return checkedPools(strings.Split(text, ","))
}

// checkedPools returns the names without blanks around them. An error is in words that
// follow the value.
func checkedPools(listed []string) ([]string, error) {
	if len(listed) > maxPools {
		return nil, fmt.Errorf("has more than %d entries", maxPools)
	}
	var names []string
	for _, name := range listed {
		name = strings.TrimSpace(name)
		switch {
		case len(validation.IsDNS1123Subdomain(name)) > 0:
			return nil, fmt.Errorf("has %q, which is no name of an IPPool", name)
		case slices.Contains(names, name):
			return nil, fmt.Errorf("has %q twice", name)
		}
		names = append(names, name)
	}
	return names, nil
}
