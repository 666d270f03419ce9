package pod

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// AnnotationNetworkStatus is the annotation that shows the interfaces of a pod (NPWG
// multi-network specification 1.3, section 4.2).
const AnnotationNetworkStatus = "k8s.v1.cni.cncf.io/network-status"

// defaultName is the name of the default network in the annotation: that of the network
// configuration for the runtime.
const defaultName = "fairlead"

// networkStatus is one element of the annotation, with the keys of
// github.com/k8snetworkplumbingwg/network-attachment-definition-client.
type networkStatus struct {
	Name       string      `json:"name"`
	Interface  string      `json:"interface,omitempty"`
	IPs        []string    `json:"ips,omitempty"`
	MAC        string      `json:"mac,omitempty"`
	MTU        int32       `json:"mtu,omitempty"`
	Default    bool        `json:"default,omitempty"`
	DNS        statusDNS   `json:"dns"`
	DeviceInfo *deviceInfo `json:"device-info,omitempty"`
	Gateway    []string    `json:"gateway,omitempty"`
}

type statusDNS struct {
	Nameservers []string `json:"nameservers,omitempty"`
	Domain      string   `json:"domain,omitempty"`
	Search      []string `json:"search,omitempty"`
	Options     []string `json:"options,omitempty"`
}

// deviceInfo describes a device in version 1.1.0 of the device information specification.
type deviceInfo struct {
	Type    string    `json:"type"`
	Version string    `json:"version"`
	PCI     pciDevice `json:"pci"`
}

type pciDevice struct {
	Address string `json:"pci-address"`
}

// NetworkStatus returns the value of the annotation for a pod with a record; empty if the
// pod gets none: it has the default interface of the cluster alone and always had, another
// program makes its interfaces, or its sandbox is not plugged yet. An interface that the
// node has not plugged, or has unplugged, is not in it. The annotation repeats the record.
// Nothing in Fairlead reads it.
func NetworkStatus(p *corev1.Pod, r *v1alpha1.PodAttachment) (string, error) {
	further := func(i v1alpha1.Interface) bool {
		return !i.Internal && (!i.Default || i.Network != v1alpha1.DefaultNetwork)
	}
	others := func(i v1alpha1.Interface) bool { return i.Binding.AddressOnly != nil }
	s := r.Status.Sandbox
	if s == nil || s.State != v1alpha1.SandboxAttached || slices.ContainsFunc(r.Spec.Interfaces, others) {
		return "", nil
	}
	changed := s.Generation > 1 // the pod's interfaces follow its annotation, and it may have had further ones
	if !changed && (len(s.Links) == 0 || !slices.ContainsFunc(r.Spec.Interfaces, further)) {
		return "", nil
	}
	plugged := func(i v1alpha1.Interface) bool {
		return !i.Internal && (i.Default || slices.ContainsFunc(s.Links, func(l v1alpha1.SandboxLink) bool { return l.Name == i.Name }))
	}
	all := make([]networkStatus, 0, len(r.Spec.Interfaces))
	for _, i := range r.Spec.Interfaces {
		if plugged(i) {
			all = append(all, statusOf(i, s.Links))
		}
	}
	slices.SortStableFunc(all, func(a, b networkStatus) int { return rank(a) - rank(b) })
	raw, err := json.Marshal(all)
	if err != nil {
		return "", fmt.Errorf("network status of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return string(raw), nil
}

// rank puts the default interface first.
func rank(s networkStatus) int {
	if s.Default {
		return 0
	}
	return 1
}

func statusOf(i v1alpha1.Interface, links []v1alpha1.SandboxLink) networkStatus {
	out := networkStatus{Name: i.Network, Interface: i.Name, MAC: i.MAC, MTU: i.MTU, Default: i.Default, Gateway: i.Gateways}
	if i.Network == v1alpha1.DefaultNetwork {
		out.Name = defaultName
	}
	if i.DNS != nil {
		out.DNS = statusDNS{i.DNS.Nameservers, i.DNS.Domain, i.DNS.Search, i.DNS.Options}
	}
	addresses := i.Addresses
	if n := slices.IndexFunc(links, func(l v1alpha1.SandboxLink) bool { return l.Name == i.Name }); n >= 0 {
		l := links[n]
		if len(l.Addresses) > 0 {
			addresses = l.Addresses
		}
		if l.MAC != "" {
			out.MAC = l.MAC
		}
		if l.MTU != 0 {
			out.MTU = l.MTU
		}
		if l.PCIAddress != "" {
			out.DeviceInfo = &deviceInfo{Type: "pci", Version: "1.1.0", PCI: pciDevice{l.PCIAddress}}
		}
	}
	for _, cidr := range addresses {
		address, _, _ := strings.Cut(cidr, "/")
		out.IPs = append(out.IPs, address)
	}
	return out
}
