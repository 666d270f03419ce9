package nad

import (
	"errors"
	"fmt"
)

// Selected is a pod's selection of a network, as far as the network decides about it.
type Selected struct {
	// Wishes are the capabilities that the pod needs.
	Wishes []string
	// ClaimReference names an IPAMClaim, DeviceID a device; empty for none.
	ClaimReference, DeviceID string
}

// Attachable returns nil if Fairlead can attach a pod to the network as the pod selects it,
// otherwise the reason, in words for the pod's owner. It does not depend on the parts of the
// nodes that are open to the network.
func (n Network) Attachable(s Selected) error {
	switch {
	case n.Refused != nil:
		return n.Refused
	case n.Type == "":
		return errors.New("spec.config: empty: its configuration would be a file on the nodes, which Fairlead does not read: write the configuration into spec.config")
	case n.Whereabouts != nil && len(n.Whereabouts.Addresses) > 0:
		return fmt.Errorf("ipam.addresses: %v: is not served where Fairlead attaches the pods: remove it, or use ipam.type static for a network whose interfaces have the same address", n.Whereabouts.Addresses[0].Prefix)
	case s.ClaimReference != "" && !n.Served():
		return fmt.Errorf("ipam-claim-reference: %q: the network's addresses are not Fairlead's (ipam.type %q): leave it out, or use fairlead-ipam", s.ClaimReference, n.IPAM)
	case s.DeviceID != "" && n.Resource() == "":
		return fmt.Errorf("deviceID: %q: the network has no devices to choose from: remove deviceID, or annotate the network with %s", s.DeviceID, AnnotationResource)
	}
	for _, wish := range s.Wishes {
		if !n.capabilities[wish] {
			return fmt.Errorf("the pod requests %s, and no plugin of the network has this capability: remove it from the annotation, or declare it in the plugin's \"capabilities\"", wish)
		}
	}
	return nil
}

// Resource returns the name of the resource that provides the network's devices; empty for
// none.
func (n Network) Resource() string {
	if b := n.Binding; b != nil && b.HostDevice != nil && b.HostDevice.Resource != nil {
		return b.HostDevice.Resource.Name
	}
	return ""
}
