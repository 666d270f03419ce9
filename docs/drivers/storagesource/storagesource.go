// Package storagesource is the example of a source of interfaces: each pod with the label
// example.com/storage gets an interface on the storage network of the class that the label
// names. The operator has one IPPool for each class.
package storagesource

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/pod"
)

// Name of the source in multiVIFSources.
const Name = "storage"

// Label of a pod that names the class of storage: "fast".
const Label = "example.com/storage"

// Source implements pod.Source. The pool storage-<class> gives the address.
func Source(p *corev1.Pod) ([]pod.Interface, error) {
	class, ok := p.Labels[Label]
	if !ok {
		return nil, nil
	}
	pool := "storage-" + class
	if len(validation.IsDNS1123Subdomain(pool)) > 0 {
		return nil, fmt.Errorf("label %s: %q: must name a class of storage, as %q", Label, class, "fast")
	}
	return []pod.Interface{{
		Name: "storage0", Network: v1alpha1.DefaultNetwork, Pools: []string{pool},
		OwnGateways: true, // the default route stays on eth0
	}}, nil
}
