package soak

import (
	"net/netip"

	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// Peers returns, for each pod by its UID, the other pods on its further networks: their names
// by target, which is an address and the port. Interfaces whose addresses another plugin
// chooses, or that have none, have no peers.
func Peers(attachments []v1alpha1.PodAttachment, port uint16) map[types.UID]map[string]string {
	on := map[string]map[string]string{} // names by network and target
	each := func(do func(pa *v1alpha1.PodAttachment, network, target string)) {
		for i := range attachments {
			for _, o := range attachments[i].Spec.Interfaces {
				if o.Default {
					continue
				}
				for _, address := range o.Addresses {
					if prefix, err := netip.ParsePrefix(address); err == nil {
						do(&attachments[i], o.Network, netip.AddrPortFrom(prefix.Addr(), port).String())
					}
				}
			}
		}
	}
	each(func(pa *v1alpha1.PodAttachment, network, target string) {
		if on[network] == nil {
			on[network] = map[string]string{}
		}
		on[network][target] = pa.Spec.PodName
	})
	out := map[types.UID]map[string]string{}
	each(func(pa *v1alpha1.PodAttachment, network, _ string) {
		for target, name := range on[network] {
			if name == pa.Spec.PodName {
				continue
			}
			if out[pa.Spec.PodUID] == nil {
				out[pa.Spec.PodUID] = map[string]string{}
			}
			out[pa.Spec.PodUID][target] = name
		}
	})
	return out
}
