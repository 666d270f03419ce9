package plug

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/link"
)

const (
	// defaultMTU is the MTU of a new bridge, in bytes, if the interface has none.
	defaultMTU = 1500
	// defaultVLAN is the VLAN that the kernel gives to every port of a bridge.
	defaultVLAN = 1
)

// portOf returns the settings of the port of a bridge, nil if they are those of a binding
// without options.
func portOf(b *v1alpha1.BridgeBinding) *Port {
	if !b.NoHairpin && !b.Isolated && !tagged(b) {
		return nil
	}
	return &Port{NoHairpin: b.NoHairpin, Isolated: b.Isolated, VLAN: b.VLAN, Trunk: b.Trunk}
}

// tagged reports whether the bridge has to distinguish VLANs.
func tagged(b *v1alpha1.BridgeBinding) bool { return b.VLAN != 0 || len(b.Trunk) > 0 }

// checkBridge returns all errors of a binding. Errors: link.ErrInvalid.
func checkBridge(b *v1alpha1.BridgeBinding) error {
	errs := []error{link.Invalid(fmt.Sprintf("bridge name %q", b.Name), link.CheckName(b.Name))}
	for _, s := range b.Addresses {
		if a, err := netip.ParsePrefix(s); err != nil || a.Addr().Is4In6() || a.Addr().IsMulticast() || a.Addr().IsUnspecified() {
			errs = append(errs, link.Invalid(fmt.Sprintf("address %q of bridge %s", s, b.Name), errors.New("must be the address of a host with a prefix length")))
		}
	}
	check := func(what string, id int32, least int32) {
		if id < least || id > link.MaxVLAN {
			errs = append(errs, link.Invalid(fmt.Sprintf("%s %d on bridge %s", what, id, b.Name), fmt.Errorf("must be %d to %d", least, link.MaxVLAN)))
		}
	}
	check("VLAN", b.VLAN, 0)
	for _, r := range b.Trunk {
		check("trunk VLAN", r.Min, 1)
		check("trunk VLAN", r.Max, r.Min)
	}
	return errors.Join(errs...)
}

// prepareBridge makes the bridge of an interface, and changes its settings, as the binding
// asks. Errors: link.ErrExists if another link has the name, link.ErrInvalid if the bridge cannot
// distinguish VLANs, otherwise the kernel's.
func (b *bridge) prepareBridge(ctx context.Context, p Interface) error {
	want := p.Binding.Bridge
	if !want.Create && len(want.Addresses) == 0 && !want.Promiscuous && !tagged(want) { // as a rule
		return nil
	}
	b.bridges.Lock()
	defer b.bridges.Unlock()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("plugging %s: %w", p.Name, err)
	}
	h, err := b.Handle()
	if err != nil {
		return err
	}
	defer h.Close()
	dev, err := h.LinkByName(want.Name)
	switch {
	case link.IsNoLink(err) && want.Create:
		if dev, err = newBridgeLink(h, p); err != nil {
			return err
		}
	case link.IsNoLink(err):
		return nil // findBridge returns the error
	case err != nil:
		return fmt.Errorf("looking at bridge %s: %w", want.Name, err)
	}
	is, ok := dev.(*netlink.Bridge)
	if !ok {
		return fmt.Errorf("%w: %s is a %s, and must be a bridge", link.ErrExists, want.Name, dev.Type())
	}
	if tagged(want) && (is.VlanFiltering == nil || !*is.VlanFiltering) {
		return link.Invalid("VLAN on bridge "+want.Name, errors.New("must not be set: the bridge does not distinguish VLANs (ip link set "+want.Name+" type bridge vlan_filtering 1)"))
	}
	return prepareBridge(h, is, want)
}

// newBridgeLink makes a bridge. It returns the bridge also if another program has made it
// at the same time.
func newBridgeLink(h *netlink.Handle, p Interface) (netlink.Link, error) {
	want := p.Binding.Bridge
	mtu := p.MTU
	if mtu == 0 {
		mtu = defaultMTU
	}
	dev := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs()}
	// A bridge whose MAC is set does not change it with its ports.
	dev.Name, dev.HardwareAddr, dev.MTU = want.Name, RandomMAC(), mtu-1
	if tagged(want) {
		dev.VlanFiltering = new(true)
	}
	err := h.LinkAdd(dev)
	switch {
	case errors.Is(err, unix.EEXIST):
	case errors.Is(err, unix.EOPNOTSUPP) && tagged(want):
		return nil, link.Invalid("VLAN on bridge "+want.Name, errors.New("must not be set: this kernel has no bridges that distinguish VLANs (CONFIG_BRIDGE_VLAN_FILTERING)"))
	case err != nil:
		return nil, fmt.Errorf("creating bridge %s: %w", want.Name, err)
	default:
		// A bridge keeps its MTU when ports come and go only if it was set to another value.
		if err := h.LinkSetMTU(dev, mtu); err != nil {
			return nil, fmt.Errorf("setting the mtu of bridge %s: %w", want.Name, err)
		}
	}
	return h.LinkByName(want.Name)
}

// prepareBridge adds the addresses of a binding to a bridge, and sets it up and to
// promiscuous mode.
func prepareBridge(h *netlink.Handle, dev *netlink.Bridge, want *v1alpha1.BridgeBinding) error {
	if want.Create {
		if err := h.LinkSetUp(dev); err != nil {
			return fmt.Errorf("setting up bridge %s: %w", want.Name, err)
		}
	}
	if want.Promiscuous {
		if err := h.SetPromiscOn(dev); err != nil {
			return fmt.Errorf("setting bridge %s to promiscuous mode: %w", want.Name, err)
		}
	}
	for _, s := range want.Addresses {
		a, err := netip.ParsePrefix(s)
		if err != nil {
			return link.Invalid("address "+s, err)
		}
		address := &netlink.Addr{IPNet: link.ToIPNet(a)}
		if a.Addr().Is6() {
			address.Flags = unix.IFA_F_NODAD
		}
		if err := h.AddrAdd(dev, address); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("adding %s to bridge %s: %w", a, want.Name, err)
		}
	}
	return nil
}

// setPort sets the VLANs of a port, and checks that the kernel has isolated it; for a nil
// port it does nothing. The port carries no frame before: the other end is down.
func (b *bridge) setPort(hostName string, port *Port) error {
	if port == nil {
		return nil
	}
	h, err := b.Handle()
	if err != nil {
		return err
	}
	defer h.Close()
	end, err := h.LinkByName(hostName)
	if err != nil {
		return fmt.Errorf("looking at %s: %w", hostName, err)
	}
	if port.Isolated {
		info, err := h.LinkGetProtinfo(end)
		if err != nil {
			return fmt.Errorf("looking at the port %s: %w", hostName, err)
		}
		if !info.Isolated {
			return link.Invalid("isolated", errors.New("must not be set: this kernel does not isolate the ports of a bridge"))
		}
	}
	if port.VLAN == 0 && len(port.Trunk) == 0 {
		return nil
	}
	if err := setVLANs(h, end, port); err != nil {
		return fmt.Errorf("setting the VLANs of %s: %w", hostName, err)
	}
	return nil
}

// setVLANs replaces the VLANs of a port.
func setVLANs(h *netlink.Handle, end netlink.Link, port *Port) error {
	const self, master = false, true
	if err := h.BridgeVlanDel(end, defaultVLAN, true, true, self, master); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	for _, r := range port.Trunk {
		var err error
		first, last := uint16(r.Min), uint16(r.Max) //nolint:gosec // 1 to 4094
		if first == last {                          // the kernel takes it for no range
			err = h.BridgeVlanAdd(end, first, false, false, self, master)
		} else {
			err = h.BridgeVlanAddRange(end, first, last, false, false, self, master)
		}
		if err != nil {
			return err
		}
	}
	if port.VLAN == 0 {
		return nil
	}
	return h.BridgeVlanAdd(end, uint16(port.VLAN), true, true, self, master) //nolint:gosec // 1 to 4094
}
