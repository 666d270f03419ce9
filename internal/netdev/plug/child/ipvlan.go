package child

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
)

var ipvlanModes = map[string]netlink.IPVlanMode{
	"l2": netlink.IPVLAN_MODE_L2, "l3": netlink.IPVLAN_MODE_L3, "l3s": netlink.IPVLAN_MODE_L3S,
}

// IPVLAN returns the kind plug.KindIPVLAN, over sockets on the host.
func IPVLAN(s *link.Sockets) plug.Kind {
	return &child{s, childType{
		kind: plug.KindIPVLAN, linkType: "ipvlan",
		parent: func(b v1alpha1.Binding) (parentLink, bool) {
			if b.IPVLAN == nil {
				return parentLink{}, false
			}
			return parentLink{name: b.IPVLAN.Parent}, true
		},
		check: checkIPVLAN,
		data: func(data *nl.RtAttr, b v1alpha1.Binding) {
			data.AddRtAttr(nl.IFLA_IPVLAN_MODE, nl.Uint16Attr(uint16(ipvlanModes[b.IPVLAN.Mode])))
		},
		borrows: func(v1alpha1.Binding) bool { return true },
	}}
}

func checkIPVLAN(i plug.Interface) error {
	var errs []error
	if i.MAC != nil {
		errs = append(errs, link.Invalid(fmt.Sprintf("mac %s of %s", i.MAC, i.Name), errors.New("must not be set: ipvlan has the MAC of its parent")))
	}
	if _, ok := ipvlanModes[i.Binding.IPVLAN.Mode]; !ok {
		errs = append(errs, link.Invalid(fmt.Sprintf("mode %q of %s", i.Binding.IPVLAN.Mode, i.Name), fmt.Errorf("must be one of %q", slices.Sorted(maps.Keys(ipvlanModes)))))
	}
	return errors.Join(errs...)
}
