package plugtest

import (
	"net/netip"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/plug"
)

// Default returns an interface of a pod of the default network.
func Default(b v1alpha1.Binding) plug.Interface {
	return plug.Interface{
		ContainerID: "c1", Name: "eth0", MTU: 1400, Binding: b,
		Addresses: []netip.Prefix{netip.MustParsePrefix("10.244.1.5/32")},
		Gateways:  []netip.Addr{netip.MustParseAddr("169.254.1.1")},
	}
}

// Further returns an interface of a pod beside that of the default network.
func Further(b v1alpha1.Binding) plug.Interface {
	i := Default(b)
	i.Name, i.Gateways = "net1", nil
	i.Addresses = append(i.Addresses, netip.MustParsePrefix("fd00:1::5/64"))
	return i
}

// Changed returns an interface with a change.
func Changed(i plug.Interface, change func(*plug.Interface)) plug.Interface {
	change(&i)
	return i
}
