// Package subnets finds the interfaces that pods ask for by naming IPPools: the source
// "additional-subnets", which Kuryr had under this name.
package subnets

import (
	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/pod"
)

// Source implements pod.Source. It returns one interface on the default network for each
// pool that the pod names in an annotation. The driver of the default network obtains and
// plugs it like the default interface, if the pool serves the pod; it has no default
// route.
func Source(p *corev1.Pod) ([]pod.Interface, error) {
	pools, err := pod.AdditionalPools(p)
	if err != nil {
		return nil, err
	}
	var out []pod.Interface
	for _, pool := range pools {
		out = append(out, pod.Interface{Network: v1alpha1.DefaultNetwork, Pools: []string{pool}, OwnGateways: true})
	}
	return out, nil
}
