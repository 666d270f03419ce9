// Package hostdevice makes devices of the host, and virtual functions of SR-IOV, the interfaces of
// sandboxes, and gives them back as they were.
package hostdevice

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
)

// hostDevice is the kind of interfaces that are devices of the host. A device is marked
// before it moves into the sandbox, and the mark is removed when it has its former state
// on the host again. So it can be given back after a crash at any point.
type hostDevice struct {
	*link.Sockets
	// sys is the root of sysfs.
	sys string
	// functions are the virtual functions of the host.
	functions functions
	// after is called after each change, in tests; it may end the goroutine.
	after func(change string)
	mu    sync.Mutex // held by Make and Remove: one of them at a time
}

// Changes of a device, in the order of a Make and a Remove.
const (
	deviceMarked   = "marked"
	deviceSetUp    = "set up by its physical function"
	deviceMoved    = "moved into the sandbox"
	deviceReturned = "returned to the host"
	deviceReset    = "reset by its physical function"
	deviceNamed    = "named as before"
	deviceUnmarked = "unmarked"
)

// New returns the kind plug.KindHostDevice, over sockets on the host.
func New(s *link.Sockets) plug.Kind { return newHostDevice(s) }

func newHostDevice(s *link.Sockets) *hostDevice {
	return &hostDevice{Sockets: s, sys: "/sys", functions: kernelFunctions{s}, after: func(string) {}}
}

func (d *hostDevice) Validate(i plug.Interface) error {
	err := i.ValidateUnlimited()
	if i.Binding.HostDevice == nil {
		return errors.Join(err, link.Invalid("binding", errors.New("must be hostDevice, with the name of a device")))
	}
	return errors.Join(err, checkDevice(i.Binding.HostDevice))
}

func (d *hostDevice) Plan(at link.Place, i plug.Interface) plug.Made {
	return plug.Made{Kind: plug.KindHostDevice, ContainerID: i.ContainerID, Name: i.Name, Namespace: at}
}

// BorrowsMAC is always true: the MAC is that of the device.
func (d *hostDevice) BorrowsMAC(v1alpha1.Binding) bool { return true }

// Resolve enters the state of the device. A device that is marked is returning, and its
// last sandbox has its state.
func (d *hostDevice) Resolve(i plug.Interface, m *plug.Made) error {
	all, err := d.Links(context.Background())
	if err != nil {
		return err
	}
	dev, err := d.onHost(i.Binding.HostDevice, all)
	if dev == nil || err != nil {
		return err
	}
	state := deviceOf(dev)
	if strings.HasPrefix(state.Alias, link.AliasPrefix) {
		return nil
	}
	change, err := d.changeFor(i)
	if err != nil {
		return err
	}
	state.VF = change.former.String()
	m.Device = &state
	return nil
}

func (d *hostDevice) Make(ctx context.Context, ns *link.Namespace, i plug.Interface) (err error) {
	if err := d.Validate(i); err != nil {
		return err
	}
	if err := d.RefuseHost(ns); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("plugging %s: %w", i.Name, err)
	}
	plan := d.Plan(ns.Place(), i)
	if err := d.returnFrom(ctx, ns, plan); err != nil { // of an earlier attempt
		return err
	}
	if i.Binding.HostDevice.VF != nil { // take does not restore it
		if err := d.restore(ctx, &plan); err != nil {
			return err
		}
	}
	dev, err := d.take(ctx, i)
	if err != nil {
		return err
	}
	if err := ns.NameIsFree(i.Name); err != nil {
		return err
	}
	change, err := d.changeFor(i)
	if err != nil {
		return err
	}
	former := deviceOf(dev)
	former.VF = change.former.String()
	alias, err := mark{containerID: i.ContainerID, name: i.Name, path: ns.Path(), former: former}.words()
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			undo := context.WithoutCancel(ctx)
			err = errors.Join(err, d.returnFrom(undo, ns, plan), d.restore(undo, &plan))
		}
	}()
	if err := d.move(ns, i, dev, alias, change); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("plugging %s: %w", i.Name, err)
	}
	return d.configure(ns, i)
}

// move marks a device, makes the settings of a virtual function, and moves the device into
// a namespace.
func (d *hostDevice) move(ns *link.Namespace, i plug.Interface, dev netlink.Link, alias string, change vfChange) error {
	host, err := d.Conn()
	if err != nil {
		return err
	}
	defer d.Release(host)
	index := dev.Attrs().Index
	what := fmt.Sprintf("%s for %s", dev.Attrs().Name, i.Name)
	if err := host.Do(link.AssignID(ns.FD()), setIndex(index, "marking "+what, nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(alias)))); err != nil {
		return err
	}
	d.after(deviceMarked)
	if err := setUp(d.functions, change.physical, change.number, change.wanted); err != nil {
		return err
	}
	if len(change.wanted) > 0 {
		d.after(deviceSetUp)
	}
	if err := host.Do(setIndex(index, "moving "+what, moveTo(ns, i.Name)...)); err != nil {
		return err
	}
	d.after(deviceMoved)
	return nil
}

// take returns the device of an interface on the host. Before that it gives back devices
// whose sandbox ended, since they may have its name. Errors: link.ErrInvalid if the host
// needs the device itself, link.ErrExists if a sandbox has it, link.ErrNoParent if it is
// missing, otherwise the kernel's.
func (d *hostDevice) take(ctx context.Context, i plug.Interface) (netlink.Link, error) {
	returning := d.restore(ctx, nil)
	h, err := d.Handle()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	all, err := link.Dump(ctx, "listing links", h.LinkList)
	if err != nil {
		return nil, err
	}
	b := i.Binding.HostDevice
	dev, err := d.onHost(b, all)
	if err != nil {
		return nil, err
	}
	outside, err := d.OutsideLinks(ctx)
	if err != nil {
		return nil, err
	}
	if dev == nil {
		return nil, errors.Join(d.held(b, outside), returning)
	}
	routes, err := link.Dump(ctx, "listing routes", func() ([]netlink.Route, error) { return h.RouteList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, err
	}
	if m, marked := parseMark(dev.Attrs().Alias); marked {
		return nil, errors.Join(fmt.Errorf("%w: %s is on its way back from container %s", link.ErrExists, deviceText(b), m.containerID), returning)
	}
	if why := refusal(dev, all, outside, routes); why != "" {
		return nil, link.Invalid(deviceText(b), fmt.Errorf("must not be %s: %s", dev.Attrs().Name, why))
	}
	return dev, nil
}

// configure sets MTU and MAC where they are requested, and the addresses.
func (d *hostDevice) configure(ns *link.Namespace, i plug.Interface) error {
	var steps []link.Step
	if i.MTU > 0 {
		steps = append(steps, link.SetLink(i.Name, "mtu", nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(i.MTU)))))
	}
	if i.MAC != nil {
		steps = append(steps, link.SetLink(i.Name, "mac", nl.NewRtAttr(unix.IFLA_ADDRESS, i.MAC)))
	}
	err := ns.With(func(c *link.Conn) error { return c.Do(steps...) })
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("%w: mtu or mac of %s: the device refuses it: %w", link.ErrInvalid, i.Name, err)
	}
	if err != nil {
		return err
	}
	return plug.Configure(ns, i)
}

// Remove gives the device back, also from a namespace that a process holds after its path
// is gone. If the namespace has ended, the kernel returns a device with hardware to the
// host, under another name.
func (d *hostDevice) Remove(ctx context.Context, m plug.Made) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	ns, err := m.Namespace.OpenHeld()
	switch {
	case err == nil:
		err = d.returnFrom(ctx, ns, m)
		_ = ns.Close()
	case errors.Is(err, link.ErrNotNamespace):
		err = nil
		if m.Namespace.Path != "" {
			err = d.unreachable(ctx, m)
		}
	}
	return errors.Join(err, d.restore(ctx, &m))
}

// Gone is true also for a device that was found on the host.
func (d *hostDevice) Gone(_ context.Context, m plug.Made) (bool, error) {
	return m.Namespace.Path == "" || m.Namespace.Gone(), nil
}

// Differences is always empty: the whole interface is in the sandbox.
func (d *hostDevice) Differences(context.Context, plug.Made, plug.Inspected) ([]string, error) {
	return nil, nil
}

// Find returns the devices that the kernel returned when their namespaces ended, and those
// of a Make that was killed.
func (d *hostDevice) Find(_ context.Context, all []netlink.Link) (found []plug.Found) {
	for _, l := range all {
		a := l.Attrs()
		if m, ok := parseMark(a.Alias); ok {
			found = append(found, plug.Found{
				Made:  plug.Made{Kind: plug.KindHostDevice, ContainerID: m.containerID, Name: m.name, HostLink: a.Name},
				Index: a.Index, Up: a.Flags&net.FlagUp != 0,
			})
		}
	}
	return found
}

// setIndex returns the step that changes a link by its index.
func setIndex(index int, what string, attrs ...*nl.RtAttr) link.Step {
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, 0)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index) //nolint:gosec // an index of the kernel
	req.AddData(msg)
	for _, a := range attrs {
		req.AddData(a)
	}
	return link.Step{What: what, Req: req}
}

// moveTo returns the attributes that move a link to a namespace under another name.
func moveTo(ns *link.Namespace, name string) []*nl.RtAttr {
	return []*nl.RtAttr{
		nl.NewRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(ns.FD()))), //nolint:gosec // a file descriptor
		nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)),
	}
}
