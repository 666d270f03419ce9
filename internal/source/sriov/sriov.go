// Package sriov finds the interfaces that pods ask for by requesting devices: the source
// "sriov", which Kuryr had under this name.
package sriov

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/pod"
)

// maxDevices is the number of interfaces of a pod for devices of one resource: the number
// of further interfaces that a PodAttachment may have.
const maxDevices = 31

// Networks are the networks that have devices of resources.
type Networks interface {
	// Attaches reports whether Fairlead makes the interfaces of a pod on networks.
	Attaches(p *corev1.Pod) bool
	// WithResource returns the network, selected by no name, that gives a pod devices of a
	// resource: that of the pod's namespace, otherwise that of the operator's; ok is false
	// if there is none. Errors: driver.ErrUnavailable while the networks are not known.
	WithResource(p *corev1.Pod, resource string) (s pod.Selection, ok bool, err error)
	// ResourceOf returns the resource of the devices of a selected network; empty if it
	// has none.
	ResourceOf(s pod.Selection) string
	// Interface returns the interface of a pod on a network. Errors: those of a Source.
	Interface(p *corev1.Pod, s pod.Selection) (pod.Interface, error)
}

// Source returns the source. It returns an interface for each device that the containers
// of a pod request, of a resource that a network names, without the devices for networks
// that the pod selects itself. The node assigns the devices.
func Source(networks Networks) pod.Source {
	return func(p *corev1.Pod) ([]pod.Interface, error) {
		requests := pod.Requests(p)
		if len(requests) == 0 || !networks.Attaches(p) {
			return nil, nil
		}
		selected, err := pod.Networks(p)
		if err != nil {
			return nil, err
		}
		for _, s := range selected {
			requests[networks.ResourceOf(s)]--
		}
		var out []pod.Interface
		for _, resource := range slices.Sorted(maps.Keys(requests)) {
			if requests[resource] <= 0 {
				continue
			}
			more, err := interfaces(networks, p, resource, requests[resource])
			if err != nil {
				return nil, fmt.Errorf("resource %s of a container: %w", resource, err)
			}
			out = append(out, more...)
		}
		return out, nil
	}
}

// interfaces returns count interfaces for devices of a resource; none if no network names
// it.
func interfaces(networks Networks, p *corev1.Pod, resource string, count int64) ([]pod.Interface, error) {
	s, ok, err := networks.WithResource(p, resource)
	if err != nil || !ok {
		return nil, err
	}
	if count > maxDevices {
		return nil, fmt.Errorf("%w: %d devices: at most %d interfaces: request fewer, or remove the annotation of network %s", driver.ErrInvalid, count, maxDevices, s.Network())
	}
	i, err := networks.Interface(p, s)
	if err != nil {
		return nil, fmt.Errorf("network %s: %w", s.Network(), err)
	}
	i.Name = ""
	return slices.Repeat([]pod.Interface{i}, int(count)), nil
}
