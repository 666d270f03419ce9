package migrate

import (
	"encoding/json"
	"net/netip"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/pod"
)

// statusAnnotation is the annotation in which Multus lists a pod's interfaces (Kubernetes
// Network Custom Resource Definition De-facto Standard, section 4.2).
const statusAnnotation = "k8s.v1.cni.cncf.io/network-status"

// attached is one entry of the network-status.
type attached struct {
	Name      string   `json:"name"`
	Interface string   `json:"interface"`
	IPs       []string `json:"ips"`
	Default   bool     `json:"default"`
}

// Bounds of a PodAttachment. A user who may write a pod may write its network-status, so
// values beyond these bounds are ignored.
const (
	maxInterfaces = 32
	maxAddresses  = 16
	maxNetwork    = 317
)

var interfaceName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,14}$`)

// statusOf returns a pod's network-status; ok is false if the pod has none or it cannot
// be parsed. The pod's interfaces are unknown then.
func statusOf(p *corev1.Pod) (entries []attached, ok bool) {
	raw, ok := p.Annotations[statusAnnotation]
	if !ok || json.Unmarshal([]byte(raw), &entries) != nil {
		return nil, false
	}
	return entries, true
}

// use is an interface of a running pod with an address.
type use struct {
	pod *corev1.Pod
	// iface is empty if only the pod's own addresses are known.
	iface   string
	network string
	// silent is true if the address is only recorded, and the pod does not show the
	// addresses of the interface.
	silent bool
}

// shown yields the addresses that a pod shows, with the interface: those of its
// network-status, otherwise the pod's own.
func shown(p *corev1.Pod, yield func(a netip.Addr, iface, network string)) {
	entries, ok := statusOf(p)
	if !ok {
		for _, ip := range p.Status.PodIPs {
			if a, err := netip.ParseAddr(ip.IP); err == nil {
				yield(a.Unmap(), "", v1alpha1.DefaultNetwork)
			}
		}
		return
	}
	for _, e := range entries[:min(len(entries), maxInterfaces)] {
		if !interfaceName.MatchString(e.Interface) || e.Name == "" || len(e.Name) > maxNetwork {
			continue
		}
		if e.Default {
			e.Name = v1alpha1.DefaultNetwork
		}
		for _, text := range e.IPs[:min(len(e.IPs), maxAddresses)] {
			a, err := netip.ParseAddr(text)
			if err != nil {
				continue
			}
			yield(a.Unmap(), e.Interface, e.Name)
		}
	}
}

// hidden returns the entry of an interface without an address, as an interface outside
// the kernel (DPDK, userspace) has; Name is its network. An empty iface matches any
// interface.
func hidden(entries []attached, iface string) (attached, bool) {
	for _, e := range entries[:min(len(entries), maxInterfaces)] {
		if matches(e, iface) && len(e.IPs) == 0 && e.Name != "" && len(e.Name) <= maxNetwork {
			if e.Default {
				e.Name = v1alpha1.DefaultNetwork
			}
			return e, true
		}
	}
	return attached{}, false
}

// lists reports whether a pod's network-status has an entry for an interface.
func lists(entries []attached, iface string) bool {
	return slices.ContainsFunc(entries, func(e attached) bool { return matches(e, iface) })
}

// matches reports whether an entry is of an interface. Versions of whereabouts before
// 0.6.2 recorded no interface: an empty iface matches every entry but the default
// network's.
func matches(e attached, iface string) bool {
	return e.Interface == iface || iface == "" && !e.Default
}

// started reports whether a pod runs, so that its network is complete.
func started(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning && pod.Holds(p) }
