package npwg

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/pod"
)

// Attaches implements sriov.Networks.
func (n *Networks) Attaches(p *corev1.Pod) bool { return n.cfg.Attaches(p) }

// Interface implements sriov.Networks.
func (n *Networks) Interface(p *corev1.Pod, s pod.Selection) (pod.Interface, error) {
	w, _, err := n.wanted(p, s)
	return w, err
}

// ResourceOf implements sriov.Networks.
func (n *Networks) ResourceOf(s pod.Selection) string {
	known, err := n.get(keyOfNetwork(s))
	if err != nil {
		return "" // the source npwg reports it
	}
	return resourceOf(known)
}

// WithResource implements sriov.Networks. If several networks of a namespace name the
// resource, it returns the first by name.
func (n *Networks) WithResource(p *corev1.Pod, resource string) (s pod.Selection, ok bool, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.unread != nil {
		return s, false, fmt.Errorf("%w: %w", driver.ErrUnavailable, n.unread)
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
