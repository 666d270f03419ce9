package hostdevice

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
)

// returnFrom moves the device from a namespace to the host, if it is there. On the host it
// has a name of its own until restore, since its former name may be taken.
func (d *hostDevice) returnFrom(ctx context.Context, ns *link.Namespace, m plug.Made) error {
	all, err := ns.Links(ctx)
	if err != nil {
		return err
	}
	n := slices.IndexFunc(all, func(l netlink.Link) bool { return isDevice(&m, l.Attrs()) })
	if n < 0 {
		return nil
	}
	home, err := d.Home()
	if err != nil {
		return err
	}
	index := all[n].Attrs().Index
	err = ns.With(func(c *link.Conn) error {
		if alias := all[n].Attrs().Alias; m.Device != nil && !marks(&m, alias) { // the sandbox has changed the mark
			words, err := mark{containerID: m.ContainerID, name: m.Name, path: m.Namespace.Path, former: *m.Device}.words()
			if err != nil {
				return err
			}
			if err := c.Do(setIndex(index, "marking "+m.Name+" again", nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(words)))); err != nil {
				return err
			}
		}
		return c.Do(setIndex(index, "returning "+m.Name, moveTo(home, returnName(m))...))
	})
	if err == nil {
		d.after(deviceReturned)
	}
	return err
}

// returnName is the name of a device between its return and its restore.
func returnName(m plug.Made) string {
	return "fd" + strings.TrimPrefix(plug.HostName(m.ContainerID, m.Name), plug.HostPrefix)
}

// marks reports whether an alias is the mark of the interface.
func marks(m *plug.Made, alias string) bool {
	has, ok := parseMark(alias)
	return ok && has.containerID == m.ContainerID && has.name == m.Name
}

// isDevice reports whether a link in the sandbox is the device. The sandbox may have
// changed the mark, but not the MAC of the hardware. A virtual function gets that from its
// physical function, so its place on the bus counts.
func isDevice(m *plug.Made, a *netlink.LinkAttrs) bool {
	if changesFunction(m) {
		return a.ParentDev == m.Device.PCIAddress
	}
	if m.Device != nil && m.Device.PermanentMAC != "" {
		return a.PermHWAddr.String() == m.Device.PermanentMAC
	}
	return marks(m, a.Alias)
}

// unreachable returns an error if the device is in a namespace that cannot be entered.
func (d *hostDevice) unreachable(ctx context.Context, m plug.Made) error {
	all, err := d.OutsideLinks(ctx)
	if err != nil {
		return err
	}
	for _, l := range all {
		if marks(&m, l.Attrs().Alias) {
			return fmt.Errorf("interface %s of container %s is a device in a namespace that has not ended, although its path %q is gone: the kernel is still removing it, or a process holds it that this program does not see: end that process", m.Name, m.ContainerID, m.Namespace.Path)
		}
	}
	return nil
}

// restore gives marked devices of the host their former state: the device of an interface,
// or all if m is nil. A marked device on the host is in no sandbox. A virtual function waits
// for its own interface, whose record has its former VLAN: the sandbox may have changed
// the mark.
func (d *hostDevice) restore(ctx context.Context, m *plug.Made) error {
	all, err := d.Links(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range all {
		has, marked := parseMark(l.Attrs().Alias)
		former := has.former
		if m == nil {
			marked = marked && !d.isFunction(l.Attrs().Name)
		} else {
			marked = marks(m, l.Attrs().Alias) || cameBack(m, l.Attrs())
			if m.Device != nil {
				former = *m.Device
			}
		}
		if marked {
			errs = append(errs, d.giveBack(l, former, all))
		}
	}
	return errors.Join(errs...)
}

// cameBack reports whether a link of the host is the device, without the mark: the sandbox
// had removed it. MAC and place on the bus are those of the hardware.
func cameBack(m *plug.Made, a *netlink.LinkAttrs) bool {
	if changesFunction(m) { // its name may be the former one, and its settings those of the sandbox
		return a.ParentDev == m.Device.PCIAddress && !strings.HasPrefix(a.Alias, link.AliasPrefix)
	}
	return m.Device != nil && m.Device.PermanentMAC != "" && m.Device.PCIAddress != "" &&
		a.PermHWAddr.String() == m.Device.PermanentMAC && a.ParentDev == m.Device.PCIAddress && a.Name != m.Device.Name
}

// changesFunction reports whether the device is a virtual function that was set up for the
// interface.
func changesFunction(m *plug.Made) bool {
	return m.Device != nil && m.Device.VF != "" && m.Device.PCIAddress != ""
}

// giveBack gives a device its former state. all are the links of the host. Errors:
// link.ErrExists if another link has the former name, otherwise the kernel's.
func (d *hostDevice) giveBack(l netlink.Link, former plug.Device, all []netlink.Link) error {
	a := l.Attrs()
	for _, o := range all {
		if other := o.Attrs(); other.Index != a.Index && (other.Name == former.Name || slices.Contains(other.AltNames, former.Name)) {
			return fmt.Errorf("%w: device %s cannot get its former name %s back, which another link has: rename that link", link.ErrExists, a.Name, former.Name)
		}
	}
	if err := d.reset(a.Name, former.VF); err != nil {
		return err
	}
	var back []*nl.RtAttr
	if a.Name != former.Name { // older kernels refuse the name that a link has, if it is up
		back = append(back, nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(former.Name)))
	}
	if a.MTU != former.MTU {
		back = append(back, nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(former.MTU)))) //nolint:gosec // 0 to 65535
	}
	if mac, err := net.ParseMAC(former.MAC); err == nil && a.HardwareAddr.String() != former.MAC {
		back = append(back, nl.NewRtAttr(unix.IFLA_ADDRESS, mac))
	}
	steps := []link.Step{setIndex(a.Index, "restoring "+former.Name, back...)}
	if a.Flags&net.FlagUp != 0 && a.Name != former.Name { // older kernels rename no link that is up
		steps = append([]link.Step{setFlags(a.Index, 0)}, steps...)
	}
	if former.Up {
		steps = append(steps, setFlags(a.Index, unix.IFF_UP))
	}
	c, err := d.Conn()
	if err != nil {
		return err
	}
	defer d.Release(c)
	if err := c.Do(steps...); err != nil {
		return err
	}
	d.after(deviceNamed)
	if err := c.Do(setIndex(a.Index, "removing the mark of "+former.Name, nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(former.Alias)))); err != nil {
		return err
	}
	d.after(deviceUnmarked)
	return nil
}

// setFlags returns the step that sets a link up or down.
func setFlags(index int, up uint32) link.Step {
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, 0)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index) //nolint:gosec // an index of the kernel
	msg.Flags, msg.Change = up, unix.IFF_UP
	req.AddData(msg)
	return link.Step{What: "setting a device up or down", Req: req}
}
