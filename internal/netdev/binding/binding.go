// Package binding has all kinds of binding of this build.
package binding

import (
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/netdev/plug/child"
	"fairlead.dev/fairlead/internal/netdev/plug/hostdevice"
)

// Kinds returns the kinds, over sockets on the host. Without OpenVSwitch they make no interface of
// plug.KindOVS.
func Kinds(s *link.Sockets) *plug.Kinds {
	return plug.NewKinds(s, plug.MemberOf, map[string]plug.Kind{
		plug.KindBridge:      plug.Bridge(s),
		plug.KindOVS:         plug.OVS(s, "", nil),
		plug.KindMacvlan:     child.Macvlan(s),
		plug.KindIPVLAN:      child.IPVLAN(s),
		plug.KindVLAN:        child.VLAN(s),
		plug.KindHostDevice:  hostdevice.New(s),
		plug.KindAddressOnly: plug.AddressOnly(),
	})
}
