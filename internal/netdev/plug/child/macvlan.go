package child

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/vishvananda/netlink/nl"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
)

// macvlanPassthru is the mode in which the interface takes the parent over, with its MAC.
const macvlanPassthru = "passthru"

var macvlanModes = map[string]uint32{
	"bridge": nl.MACVLAN_MODE_BRIDGE, "private": nl.MACVLAN_MODE_PRIVATE, "vepa": nl.MACVLAN_MODE_VEPA, macvlanPassthru: nl.MACVLAN_MODE_PASSTHRU,
}

// Macvlan returns the kind plug.KindMacvlan, over sockets on the host.
func Macvlan(s *link.Sockets) plug.Kind {
	return &child{s, childType{
		kind: plug.KindMacvlan, linkType: "macvlan",
		parent: func(b v1alpha1.Binding) (parentLink, bool) {
			if b.Macvlan == nil {
				return parentLink{}, false
			}
			return parentLink{b.Macvlan.Parent, b.Macvlan.ParentMAC}, true
		},
		check: checkMacvlan,
		data: func(data *nl.RtAttr, b v1alpha1.Binding) {
			data.AddRtAttr(nl.IFLA_MACVLAN_MODE, nl.Uint32Attr(macvlanModes[b.Macvlan.Mode]))
		},
		borrows: func(b v1alpha1.Binding) bool { return b.Macvlan.Mode == macvlanPassthru },
	}}
}

func checkMacvlan(i plug.Interface) error {
	mode := i.Binding.Macvlan.Mode
	if _, ok := macvlanModes[mode]; !ok {
		return link.Invalid(fmt.Sprintf("mode %q of %s", mode, i.Name), fmt.Errorf("must be one of %q", slices.Sorted(maps.Keys(macvlanModes))))
	}
	if mode == macvlanPassthru && i.MAC != nil {
		return link.Invalid(fmt.Sprintf("mac %s of %s", i.MAC, i.Name), errors.New("must not be set: macvlan in mode passthru has the MAC of its parent"))
	}
	return nil
}
