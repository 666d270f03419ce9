package hostdevice

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/link"
)

// driversWithoutLinks are drivers that hand a device to a program in user space: it has
// no link.
var driversWithoutLinks = []string{"vfio-pci", "uio_pci_generic", "igb_uio", "pci-stub"}

// checkDevice returns all errors of the field that names a device. Errors:
// link.ErrInvalid.
func checkDevice(b *v1alpha1.HostDeviceBinding) error {
	given := 0
	for _, s := range []string{b.Name, b.MAC, b.KernelPath, b.PCIAddress} {
		if s != "" {
			given++
		}
	}
	switch {
	case given != 1:
		return link.Invalid("hostDevice", errors.New("must have one of name, mac, kernelPath and pciAddress"))
	case b.VF != nil && b.PCIAddress == "":
		return link.Invalid(deviceText(b), errors.New("must be named by its PCI address, as a virtual function of SR-IOV"))
	case b.Name != "":
		return link.Invalid(fmt.Sprintf("hostDevice.name %q", b.Name), link.CheckName(b.Name))
	case b.KernelPath != "" && (!strings.HasPrefix(b.KernelPath, "/sys/devices/") || path.Clean(b.KernelPath) != b.KernelPath):
		return link.Invalid(fmt.Sprintf("hostDevice.kernelPath %q", b.KernelPath), errors.New("must be a plain path below /sys/devices"))
	case strings.ContainsAny(b.PCIAddress, "/\x00"):
		return link.Invalid(fmt.Sprintf("hostDevice.pciAddress %q", b.PCIAddress), errors.New("must be like 0000:3b:00.1"))
	}
	return nil
}

// deviceText names a device as its binding does.
func deviceText(b *v1alpha1.HostDeviceBinding) string {
	switch {
	case b.Name != "":
		return "device " + b.Name
	case b.MAC != "":
		return "device with MAC " + b.MAC
	case b.KernelPath != "":
		return "device at " + b.KernelPath
	}
	return "device at PCI address " + b.PCIAddress
}

// onHost returns the device of a binding among the links of the host, nil if it is not
// there. Errors: link.ErrInvalid if several links fit, or if the device can have none.
func (d *hostDevice) onHost(b *v1alpha1.HostDeviceBinding, all []netlink.Link) (netlink.Link, error) {
	var is func(a *netlink.LinkAttrs) bool
	switch {
	case b.Name != "":
		is = func(a *netlink.LinkAttrs) bool { return a.Name == b.Name || slices.Contains(a.AltNames, b.Name) }
	case b.MAC != "":
		is = func(a *netlink.LinkAttrs) bool { return a.PermHWAddr.String() == b.MAC }
		if !slices.ContainsFunc(all, func(l netlink.Link) bool { return is(l.Attrs()) }) {
			is = func(a *netlink.LinkAttrs) bool { return a.HardwareAddr.String() == b.MAC }
		}
	default:
		names, err := d.linksOf(b)
		if err != nil {
			return nil, err
		}
		is = func(a *netlink.LinkAttrs) bool { return slices.Contains(names, a.Name) }
	}
	var found []netlink.Link
	var names []string
	for _, l := range all {
		if is(l.Attrs()) {
			found, names = append(found, l), append(names, l.Attrs().Name)
		}
	}
	switch len(found) {
	case 0:
		return nil, nil
	case 1:
		return found[0], nil
	}
	return nil, link.Invalid(deviceText(b), fmt.Errorf("must be one link, not %s", strings.Join(names, ", ")))
}

// linksOf returns the names of the links of a device by its place on a bus. Only the links
// in the host's namespace are listed there. Errors: link.ErrInvalid if the device is at a
// program in user space.
func (d *hostDevice) linksOf(b *v1alpha1.HostDeviceBinding) (names []string, err error) {
	dir := d.dirOf(b)
	for _, of := range []string{"net/*", "virtio*/net/*"} {
		links, err := filepath.Glob(filepath.Join(dir, of))
		if err != nil {
			return nil, err
		}
		for _, l := range links {
			names = append(names, filepath.Base(l))
		}
	}
	driver, err := os.Readlink(filepath.Join(dir, "driver"))
	if err == nil && len(names) == 0 && slices.Contains(driversWithoutLinks, filepath.Base(driver)) {
		return nil, link.Invalid(deviceText(b), fmt.Errorf("must have a link: its driver is %s, which gives it to a program in user space: do not select the network, since the container has the device without it", filepath.Base(driver)))
	}
	return names, nil
}

// dirOf returns the directory of a device that is named by its place on a bus.
func (d *hostDevice) dirOf(b *v1alpha1.HostDeviceBinding) string {
	if b.KernelPath != "" {
		return filepath.Join(d.sys, strings.TrimPrefix(b.KernelPath, "/sys"))
	}
	return filepath.Join(d.sys, "bus/pci/devices", b.PCIAddress)
}

// held returns the error about a device that is not on the host: link.ErrExists with the
// container that has it, otherwise link.ErrNoParent.
func (d *hostDevice) held(b *v1alpha1.HostDeviceBinding, outside []link.OutsideLink) error {
	at := []string{filepath.Base(d.dirOf(b))} // the names of the device on its buses
	virtio, err := filepath.Glob(filepath.Join(d.dirOf(b), "virtio*"))
	if err != nil {
		return err
	}
	for _, dir := range virtio {
		at = append(at, filepath.Base(dir))
	}
	for _, l := range outside {
		a := l.Attrs()
		m, marked := parseMark(a.Alias)
		var is bool
		switch {
		case b.Name != "":
			is = marked && m.former.Name == b.Name
		case b.MAC != "":
			is = a.PermHWAddr.String() == b.MAC || marked && m.former.MAC == b.MAC
		default:
			is = a.ParentDev != "" && slices.Contains(at, a.ParentDev)
		}
		switch {
		case is && marked:
			return fmt.Errorf("%w: %s is interface %s of container %s", link.ErrExists, deviceText(b), m.name, m.containerID)
		case is:
			return fmt.Errorf("%w: %s is in another namespace, as %s", link.ErrExists, deviceText(b), a.Name)
		}
	}
	return fmt.Errorf("%w: %s", link.ErrNoParent, deviceText(b))
}
