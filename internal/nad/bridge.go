package nad

import (
	"fmt"
	"slices"

	"fairlead.dev/fairlead/api/v1alpha1"
)

const (
	// defaultBridge is the bridge of a configuration that names none.
	defaultBridge = "cni0"
	maxVLAN       = 4094
	// maxTrunk and maxBridgeAddresses are bounds of a binding in the API.
	maxTrunk           = 64
	maxBridgeAddresses = 4
)

type bridgeOptions struct {
	common
	Bridge                    string        `json:"bridge"`
	IsGateway                 bool          `json:"isGateway"`
	IsDefaultGateway          bool          `json:"isDefaultGateway"`
	ForceAddress              bool          `json:"forceAddress"`
	IPMasq                    bool          `json:"ipMasq"`
	IPMasqBackend             string        `json:"ipMasqBackend"` // has an effect only with ipMasq
	MTU                       int           `json:"mtu"`
	HairpinMode               bool          `json:"hairpinMode"`
	PromiscMode               bool          `json:"promiscMode"`
	VLAN                      int32         `json:"vlan"`
	VLANTrunk                 []trunkOption `json:"vlanTrunk"`
	PreserveDefaultVLAN       bool          `json:"preserveDefaultVlan"`
	MACSpoofCheck             bool          `json:"macspoofchk"`
	EnableDAD                 bool          `json:"enabledad"`
	DisableContainerInterface bool          `json:"disableContainerInterface"`
	PortIsolation             bool          `json:"portIsolation"`
}

type trunkOption struct {
	MinID *int32 `json:"minID"`
	MaxID *int32 `json:"maxID"`
	ID    *int32 `json:"id"`
}

// readBridge reads the options of bridge.
func readBridge(r *reader, n *Network) v1alpha1.Binding {
	o := bridgeOptions{Bridge: defaultBridge}
	r.decode(&o)
	r.common(o.common, n)
	r.link("bridge", o.Bridge)
	r.refuse("forceAddress", o.ForceAddress, "remove it: a node adds addresses to a bridge, and removes none")
	r.refuse("ipMasq", o.IPMasq, "remove it, or use the default network, whose addresses the nodes masquerade")
	r.refuse("preserveDefaultVlan", o.PreserveDefaultVLAN, "remove it: with vlan or vlanTrunk the port leaves the default VLAN")
	r.refuse("enabledad", o.EnableDAD, "remove it: an interface uses its addresses at once")
	r.refuse("disableContainerInterface", o.DisableContainerInterface, "remove it: the interface in the pod is always up")
	if o.HairpinMode && o.PromiscMode {
		r.bad("hairpinMode", true, "must not be set together with promiscMode")
	}
	if o.VLAN < 0 || o.VLAN > maxVLAN {
		r.bad("vlan", o.VLAN, fmt.Sprintf("must be 0 to %d; 0 is none", maxVLAN))
	}
	b := &v1alpha1.BridgeBinding{
		Name: o.Bridge, Create: true, VLAN: o.VLAN, Trunk: r.trunk(o.VLANTrunk),
		Promiscuous: o.PromiscMode, NoHairpin: !o.HairpinMode, Isolated: o.PortIsolation,
	}
	if b.VLAN == 0 && len(b.Trunk) > 0 {
		b.VLAN = 1 // as with the reference plugin
	}
	switch {
	case n.fixed():
		b.SourceCheck = v1alpha1.SourceFull
	case o.MACSpoofCheck:
		b.SourceCheck = v1alpha1.SourceMAC
	default:
		b.SourceCheck = v1alpha1.SourceNone
	}
	if o.IsDefaultGateway {
		r.gateways("isDefaultGateway", b, n)
	} else if o.IsGateway {
		r.gateways("isGateway", b, n)
	}
	if r.static != nil {
		r.static.toGateways = o.IsDefaultGateway
	}
	n.MTU = r.mtu(o.MTU)
	return v1alpha1.Binding{Bridge: b}
}

// trunk reads the VLANs of a trunk. An element has a range, a single VLAN, or both.
func (r *reader) trunk(options []trunkOption) []v1alpha1.VLANRange {
	var out []v1alpha1.VLANRange
	for i, o := range options {
		field := fmt.Sprintf("vlanTrunk[%d]", i)
		add := func(name string, least, most int32) {
			if least < 1 || most > maxVLAN || least > most {
				r.bad(field+name, fmt.Sprintf("%d-%d", least, most), fmt.Sprintf("must be VLANs of 1 to %d, the lower one first", maxVLAN))
				return
			}
			out = append(out, v1alpha1.VLANRange{Min: least, Max: most})
		}
		if (o.MinID == nil) != (o.MaxID == nil) {
			r.bad(field, "only one of minID and maxID", "must have both or none")
			continue
		}
		if o.MinID != nil {
			add("", *o.MinID, *o.MaxID)
		}
		if o.ID != nil {
			add(".id", *o.ID, *o.ID)
		}
	}
	if len(out) > maxTrunk {
		r.bad("vlanTrunk", len(out), fmt.Sprintf("must have at most %d ranges", maxTrunk))
	}
	return out
}

// gateways puts the gateways of the addresses on the bridge. Without addresses the option
// has no effect, as with the reference plugin.
func (r *reader) gateways(option string, b *v1alpha1.BridgeBinding, n *Network) {
	switch {
	case n.IPAM == "":
		return
	case r.static == nil:
		r.bad(option, true, "is not served for bridge with ipam.type "+n.IPAM+
			": the bridge of every node would have the same address: remove it; a gateway of the pool is a router on the link")
		return
	case len(r.static.addresses) == 0:
		r.bad(option, true, "is not served for bridge without ipam.addresses, which name the gateway: add them, or remove it")
		return
	case b.VLAN != 0:
		r.bad(option, true, "is not served for bridge together with vlan or vlanTrunk: remove one of them")
		return
	}
	for _, p := range r.ownGateways() {
		if slices.ContainsFunc(r.static.addresses, func(a address) bool { return a.prefix.Addr() == p.Addr() }) {
			r.bad("ipam.addresses", p.String(), "must not be the gateway, which is put on the bridge")
		}
		b.Addresses = append(b.Addresses, p.String())
	}
	if len(b.Addresses) > maxBridgeAddresses {
		r.bad(option, fmt.Sprint(len(b.Addresses))+" gateways", fmt.Sprintf("must be at most %d", maxBridgeAddresses))
	}
}
