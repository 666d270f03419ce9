package pod

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// maxResources is the number of resources of device plugins that are read of a pod.
const maxResources = 16

// DeviceResource reports whether a resource may be that of a device plugin: its name has a
// domain, which is not Kubernetes' own.
func DeviceResource(name string) bool {
	domain, _, ok := strings.Cut(name, "/")
	return ok && domain != "kubernetes.io" && !strings.HasSuffix(domain, ".kubernetes.io")
}

// AddRequests adds what one container requests of device plugins to the sum for its pod,
// which is kept in spec.resources: Kubernetes allows no such resource there.
func AddRequests(spec *corev1.PodSpec, requests corev1.ResourceList) {
	for name, amount := range requests {
		if !DeviceResource(string(name)) {
			continue
		}
		if spec.Resources == nil {
			spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{}}
		}
		sum := spec.Resources.Requests
		had, ok := sum[name]
		if !ok && len(sum) == maxResources {
			continue
		}
		sum[name] = *resource.NewQuantity(had.Value()+amount.Value(), resource.DecimalSI)
	}
}

// Requests returns how many devices of each resource a pod's containers request, without
// its init containers.
func Requests(p *corev1.Pod) map[string]int64 {
	spec := &p.Spec
	if len(spec.Containers) > 0 { // a pod that is not the cache's
		spec = &corev1.PodSpec{}
		for _, c := range p.Spec.Containers {
			AddRequests(spec, c.Resources.Requests)
		}
	}
	if spec.Resources == nil {
		return nil
	}
	out := map[string]int64{}
	for name, amount := range spec.Resources.Requests {
		if DeviceResource(string(name)) {
			out[string(name)] = amount.Value()
		}
	}
	return out
}
