package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"

	"github.com/vishvananda/netlink"

	"fairlead.dev/fairlead/test/netlab"
)

// Port is a port of Neutron that is bound to a chassis.
type Port struct {
	ID      string
	MAC     string
	Address netip.Prefix
	Gateway netip.Addr // the zero value omits the default route
	MTU     int
}

// Machine is a network namespace with a port that is plugged by hand. To Neutron it is a
// virtual machine or a pod. Its only link but loopback is eth0.
type Machine struct {
	*netlab.Namespace
	// Tap is the other end of eth0: a port of br-int, in the namespace of the chassis.
	Tap string

	chassis *Chassis
}

// Plug makes a machine on the chassis. Its port becomes ACTIVE afterwards. On an error
// nothing is left.
func (c *Chassis) Plug(ctx context.Context, port Port) (*Machine, error) {
	const short = 11 // of an ID, in the name of its tap
	if len(port.ID) < short {
		return nil, fmt.Errorf("plug port %q; its ID must be a UUID", port.ID)
	}
	inside, err := netlab.NewNamespace()
	if err != nil {
		return nil, err
	}
	m := &Machine{Namespace: inside, Tap: "tap" + port.ID[:short], chassis: c}
	err = m.link(port)
	if err == nil {
		err = m.completeChecksums(ctx)
	}
	if err == nil {
		_, err = c.VSCtl(ctx, "add-port", "br-int", m.Tap, "--", "set", "Interface", m.Tap,
			"external_ids:iface-id="+port.ID, fmt.Sprintf("external_ids:attached-mac=%q", port.MAC))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("plug port %s on chassis %s: %w", port.ID, c.Name, err), m.Unplug(context.WithoutCancel(ctx)))
	}
	return m, nil
}

// Unplug removes the machine, not the port in Neutron.
func (m *Machine) Unplug(ctx context.Context) error {
	_, err := m.chassis.VSCtl(ctx, "--if-exists", "del-port", "br-int", m.Tap)
	return errors.Join(err, m.removeTap(), m.Close())
}

// Open opens the network namespace of the chassis. The caller closes it.
func (c *Chassis) Open() (*netlab.Namespace, error) {
	return netlab.OpenNamespace("/run/netns/" + c.Namespace)
}

// netlink opens netlink in the namespace of the chassis.
func (c *Chassis) netlink() (*netlink.Handle, error) {
	ns, err := c.Open()
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	return ns.Netlink()
}

// link makes eth0 and its tap.
func (m *Machine) link(port Port) error {
	mac, err := net.ParseMAC(port.MAC)
	if err != nil {
		return err
	}
	outside, err := m.chassis.netlink()
	if err != nil {
		return err
	}
	defer outside.Close()
	inside, err := os.Open(m.Path())
	if err != nil {
		return err
	}
	defer inside.Close()
	tap := &netlink.Veth{
		LinkAttrs:        netlink.LinkAttrs{Name: m.Tap, MTU: port.MTU},
		PeerName:         "eth0",
		PeerHardwareAddr: mac,
		PeerNamespace:    netlink.NsFd(int(inside.Fd())),
	}
	if err := outside.LinkAdd(tap); err != nil {
		return fmt.Errorf("make %s: %w", m.Tap, err)
	}
	if err := outside.LinkSetUp(tap); err != nil {
		return fmt.Errorf("set %s up: %w", m.Tap, err)
	}
	return m.configure(port)
}

// configure gives eth0 what the port has.
func (m *Machine) configure(port Port) error {
	handle, err := m.Netlink()
	if err != nil {
		return err
	}
	defer handle.Close()
	eth0, err := handle.LinkByName("eth0")
	if err != nil {
		return fmt.Errorf("find eth0: %w", err)
	}
	address := &netlink.Addr{IPNet: &net.IPNet{
		IP:   port.Address.Addr().AsSlice(),
		Mask: net.CIDRMask(port.Address.Bits(), port.Address.Addr().BitLen()),
	}}
	if err := errors.Join(handle.LinkSetMTU(eth0, port.MTU), handle.AddrAdd(eth0, address), handle.LinkSetUp(eth0)); err != nil {
		return fmt.Errorf("configure eth0 with MTU %d and address %v: %w", port.MTU, port.Address, err)
	}
	if !port.Gateway.IsValid() {
		return nil
	}
	route := &netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: port.Gateway.AsSlice()}
	if err := handle.RouteAdd(route); err != nil {
		return fmt.Errorf("add a default route via %v: %w", port.Gateway, err)
	}
	return nil
}

// completeChecksums has the kernel complete the checksums of packets that leave eth0. Open
// vSwitch, which reads them in its own process, drops those that are incomplete.
func (m *Machine) completeChecksums(ctx context.Context) error {
	var out bytes.Buffer
	ethtool := exec.CommandContext(ctx, "ethtool", "-K", "eth0", "tx", "off")
	ethtool.Stdout, ethtool.Stderr = &out, &out
	if err := m.Start(ethtool); err != nil {
		return err
	}
	if err := ethtool.Wait(); err != nil {
		return fmt.Errorf("ethtool -K eth0 tx off: %w: %s", err, bytes.TrimSpace(out.Bytes()))
	}
	return nil
}

// removeTap removes both ends. It returns nil if there are none.
func (m *Machine) removeTap() error {
	handle, err := m.chassis.netlink()
	if err != nil {
		return err
	}
	defer handle.Close()
	tap, err := handle.LinkByName(m.Tap)
	if _, missing := errors.AsType[netlink.LinkNotFoundError](err); missing {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find %s: %w", m.Tap, err)
	}
	if err := handle.LinkDel(tap); err != nil {
		return fmt.Errorf("remove %s: %w", m.Tap, err)
	}
	return nil
}
