package npwg

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/pod"
)

// maxDevices is the number of interfaces of a pod for devices of one resource: the number
// of further interfaces that a PodAttachment may have.
const maxDevices = 31

// Devices implements pod.Source: it is the source "sriov", which Kuryr had under this name.
// It returns an interface for each device that the containers of a pod request, of a
// resource that a network names, without the devices for networks that the pod selects
// itself. The node assigns the devices.
func (n *Networks) Devices(p *corev1.Pod) ([]pod.Interface, error) {
	requests := pod.Requests(p)
	if len(requests) == 0 || !n.cfg.Attaches(p) {
		return nil, nil
	}
	selected, err := pod.Networks(p)
	if err != nil {
		return nil, err
	}
	for _, s := range selected {
		if known, err := n.get(keyOfNetwork(s)); err == nil { // the source npwg reports an error
			requests[resourceOf(known)]--
		}
	}
	var out []pod.Interface
	for _, resource := range slices.Sorted(maps.Keys(requests)) {
		if requests[resource] <= 0 {
			continue
		}
		more, err := n.devices(p, resource, requests[resource])
		if err != nil {
			return nil, fmt.Errorf("resource %s of a container: %w", resource, err)
		}
		out = append(out, more...)
	}
	return out, nil
}

// devices returns count interfaces for devices of a resource; none if no network names it.
func (n *Networks) devices(p *corev1.Pod, resource string, count int64) ([]pod.Interface, error) {
	s, ok, err := n.withResource(p, resource)
	if err != nil || !ok {
		return nil, err
	}
	if count > maxDevices {
		return nil, fmt.Errorf("%w: %d devices: at most %d interfaces: request fewer, or remove the annotation of network %s", fault.ErrInvalid, count, maxDevices, s.Network())
	}
	i, _, err := n.wanted(p, s)
	if err != nil {
		return nil, fmt.Errorf("network %s: %w", s.Network(), err)
	}
	i.Name = ""
	return slices.Repeat([]pod.Interface{i}, int(count)), nil
}

// withResource returns the network, selected by no name, that gives a pod devices of a
// resource: that of the pod's namespace, otherwise that of the operator's, and the first
// by name if there are several; ok is false if there is none. Errors:
// fault.ErrUnavailable while the networks are not known.
func (n *Networks) withResource(p *corev1.Pod, resource string) (s pod.Selection, ok bool, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.unread != nil {
		return s, false, fmt.Errorf("%w: %w", fault.ErrUnavailable, n.unread)
	}
	var found types.NamespacedName
	better := func(key types.NamespacedName) bool {
		switch {
		case found.Name == "":
			return true
		case key.Namespace != found.Namespace:
			return key.Namespace == p.Namespace
		}
		return key.Name < found.Name
	}
	for key, known := range n.m {
		if (key.Namespace == p.Namespace || key.Namespace == n.cfg.Namespace) && resourceOf(known) == resource && better(key) {
			found = key
		}
	}
	return pod.Selection{Namespace: found.Namespace, Name: found.Name}, found.Name != "", nil
}

// resourceOf returns the resource whose devices a network has; empty if it has none.
func resourceOf(known *network) string {
	if b := known.Binding; b != nil && b.HostDevice != nil && b.HostDevice.Resource != nil {
		return b.HostDevice.Resource.Name
	}
	return ""
}
