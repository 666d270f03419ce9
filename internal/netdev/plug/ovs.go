package plug

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/ovsdb"
)

const (
	// defaultOVSBridge is the bridge of a binding that names none: the integration bridge
	// of Neutron.
	defaultOVSBridge = "br-int"
	// ovsWord precedes the bridge in the alias of a host end. It distinguishes the host end
	// from one on a Linux bridge, whose name has no colon.
	ovsWord = "ovs:"
	// findTimeout bounds the search for rows without links.
	findTimeout = time.Second
)

// Shutter keeps the packets that come in by a link from the host's own network stack. Other
// programs read them from a packet socket (packet(7)).
type Shutter interface {
	// Shut has the kernel drop these packets. It may be called again.
	Shut(ctx context.Context, link string) error
	// IsShut reports whether the kernel drops these packets.
	IsShut(ctx context.Context, link string) (bool, error)
	// Forget removes what Shut has made, also after the link is gone. It returns nil if
	// there is nothing.
	Forget(ctx context.Context, link string) error
}

// OVSPort describes the port of an interface in Open vSwitch.
type OVSPort struct {
	// PortID is the port's ID in Neutron, MAC its MAC.
	PortID string `json:"portID"`
	MAC    string `json:"mac"`
}

// ovs is the kind of interfaces that are one end of a veth whose other end, the host end, is
// a port of an Open vSwitch bridge. The host end has the row of an interface and that of a
// port in the database of Open vSwitch, both with its name.
//
// An internal port of Open vSwitch in place of the veth would lose its carrier when the
// ovs-vswitchd of a userspace datapath ends. The next one does not find it in the pod.
type ovs struct {
	*bridge // the veth is the same
	db      *ovsdb.Client
	shutter Shutter
	// after is called after each change, in tests; it may end the goroutine.
	after func(change string)
}

// Changes of a port, in the order of a Make and a Remove.
const (
	ovsLinked  = "the veth is there"
	ovsRowed   = "the row is there"
	ovsShut    = "the host end is shut"
	ovsForgot  = "the host end is open again"
	ovsUnrowed = "the row is removed"
)

// OVS returns the kind KindOVS, over sockets on the host and the socket of ovsdb-server.
// shutter shuts host ends on a userspace datapath.
func OVS(s *link.Sockets, socket string, shutter Shutter) Kind { return newOVS(s, socket, shutter) }

func newOVS(s *link.Sockets, socket string, shutter Shutter) *ovs {
	return &ovs{bridge: newBridge(s), db: ovsdb.New(socket), shutter: shutter, after: func(string) {}}
}

func (*ovs) Validate(i Interface) error {
	errs := []error{i.Validate()}
	want := func(ok bool, field, must string) {
		if !ok {
			errs = append(errs, link.Invalid(field, errors.New(must)))
		}
	}
	want(i.Bandwidth == nil, "bandwidth of "+i.Name, "must not be set: a port of Neutron has a QoS policy")
	want(i.MAC != nil, "mac of "+i.Name, "must be that of the port in Neutron")
	want(i.MTU != 0, "mtu of "+i.Name, "must be that of the network in Neutron")
	b := i.Binding.OVS
	if b == nil {
		want(false, "binding", "must be ovs, with the ID of a port")
		return errors.Join(errs...)
	}
	want(b.PortID != "" && !strings.ContainsAny(b.PortID, " \x00\n"), fmt.Sprintf("ovs.portID %q", b.PortID), "must be the ID of a port")
	errs = append(errs, link.Invalid(fmt.Sprintf("ovs.bridge %q", b.Bridge), link.CheckName(ovsBridge(b))))
	words := link.OwnerAlias(i.ContainerID, i.Name) + " " + ovsWord + ovsBridge(b)
	want(len(words) <= link.MaxAliasLength, fmt.Sprintf("container ID %q", i.ContainerID), "is too long for the alias of a link")
	return errors.Join(errs...)
}

// ovsBridge returns the bridge of a binding.
func ovsBridge(b *v1alpha1.OVSBinding) string {
	if b.Bridge == "" {
		return defaultOVSBridge
	}
	return b.Bridge
}

func (*ovs) Plan(at link.Place, i Interface) Made {
	m := Made{Kind: KindOVS, ContainerID: i.ContainerID, Name: i.Name, Namespace: at, HostLink: HostName(i.ContainerID, i.Name)}
	if b := i.Binding.OVS; b != nil {
		m.Bridge, m.OVS = ovsBridge(b), &OVSPort{PortID: b.PortID, MAC: i.MAC.String()}
	}
	return m
}

// BorrowsMAC is always true: the MAC is that of the port in Neutron.
func (*ovs) BorrowsMAC(v1alpha1.Binding) bool { return true }

// Make makes the veth, its row, and last the pod's end ready to send: until then no packet
// comes in by the host end. It does not wait for ovs-vswitchd.
func (o *ovs) Make(ctx context.Context, ns *link.Namespace, i Interface) (err error) {
	if err := o.Validate(i); err != nil {
		return err
	}
	if err := o.RefuseHost(ns); err != nil {
		return err
	}
	end, err := o.begin(ctx, i.Name)
	if err != nil {
		return err
	}
	defer end()
	m := o.Plan(ns.Place(), i)
	sw, err := o.readSwitch(ctx, m)
	if err != nil {
		return err
	}
	if err := sw.accepts(m); err != nil {
		return err
	}
	if sw.row(m.HostLink) != nil { // of an earlier attempt
		if sw, err = o.retry(ctx, m); err != nil {
			return err
		}
	}
	host, err := o.Conn()
	if err != nil {
		return err
	}
	defer o.Release(host)
	created := false
	defer func() {
		if err != nil && (created || host.Broken()) {
			err = errors.Join(err, o.Remove(context.WithoutCancel(ctx), m))
		}
	}()
	go ns.Prepare() // while the kernel makes the pair
	plan := Pair{Host: m.HostLink, HostMAC: RandomMAC(), Group: link.GroupPort, Peer: i.Name, PeerMAC: i.MAC, MTU: i.MTU, Namespace: ns.FD()}
	if err := o.createPair(ctx, host, ns, plan); err != nil {
		return err
	}
	created = true
	alias := link.LongAlias(i.ContainerID, i.Name, ovsWord+m.Bridge)
	if err := host.Do(nameHost(m.HostLink, alias, o.IPv6)); err != nil {
		return err
	}
	o.after(ovsLinked)
	if err := o.putRow(ctx, sw, m); err != nil {
		return err
	}
	o.after(ovsRowed)
	if err := o.prepareUserspace(ctx, ns, sw, m); err != nil {
		return err
	}
	return Configure(ns, i)
}

// retry removes what an earlier attempt for the interface has made, and reads the state of
// Open vSwitch again.
func (o *ovs) retry(ctx context.Context, m Made) (*ovsSwitch, error) {
	if err := o.Remove(ctx, m); err != nil {
		return nil, err
	}
	if err := o.awaitRelease(ctx); err != nil {
		return nil, err
	}
	return o.readSwitch(ctx, m)
}

// prepareUserspace prepares both ends for a userspace datapath; for that of the kernel it does
// nothing.
func (o *ovs) prepareUserspace(ctx context.Context, ns *link.Namespace, sw *ovsSwitch, m Made) error {
	if !sw.userspace {
		return nil
	}
	// ovs-vswitchd reads copies of the packets: without this the node would answer, too.
	if err := o.shutter.Shut(ctx, m.HostLink); err != nil {
		return err
	}
	o.after(ovsShut)
	if sw.offloads {
		return nil
	}
	// Its connection tracking drops TCP and UDP whose checksums are left to a device.
	return ns.With(func(c *link.Conn) error { return c.NoChecksumOffload(m.Name) })
}

// Remove removes the row and the veth. If ovsdb-server does not answer, it removes the veth
// and returns the error: the row has to be removed later. The row of an interface without a
// record is left to Find.
func (o *ovs) Remove(ctx context.Context, m Made) error {
	err := o.removeRow(ctx, m)
	if errors.Is(err, ovsdb.ErrUnavailable) && m.Bridge == "" {
		err = nil
	}
	return errors.Join(err, o.detach(ctx, m.HostLink))
}

// removeRow removes the row of an interface. The row is the record that the host end is
// shut, so the host end is opened first.
func (o *ovs) removeRow(ctx context.Context, m Made) error {
	sw, err := o.readSwitch(ctx, m)
	if err != nil {
		return err
	}
	row := sw.row(m.HostLink)
	if row != nil && !row.ours() {
		return nil
	}
	// A later sandbox with the same port has replaced a row that is missing.
	if row != nil && row.shut || row == nil && m.OVS != nil && sw.userspace {
		if err := o.setDown(m.HostLink); err != nil { // no packet may come in when it is open
			return err
		}
		if err := o.shutter.Forget(ctx, m.HostLink); err != nil {
			return err
		}
		o.after(ovsForgot)
	}
	if row == nil {
		return nil
	}
	if err := o.dropRow(ctx, row); err != nil {
		return err
	}
	o.after(ovsUnrowed)
	return nil
}

// setDown sets a host end down, if it is there.
func (o *ovs) setDown(name string) error {
	c, err := o.Conn()
	if err != nil {
		return err
	}
	defer o.Release(c)
	if index, err := c.Index(name); err != nil || index == 0 {
		return err
	}
	return c.Do(link.Lower(name))
}

func (o *ovs) Differences(ctx context.Context, m Made, inside Inspected) (diffs []string, err error) {
	_, diffs, ok, err := o.EndDifferences(m, inside)
	if err != nil || !ok {
		return diffs, err
	}
	if m.OVS == nil { // it was found on the host, without a record
		return diffs, nil
	}
	sw, err := o.readSwitch(ctx, m)
	if err != nil {
		return nil, err
	}
	return append(diffs, sw.differences(m)...), nil
}

// Repair sets the host end up, writes its row and shuts it again. It leaves a port alone that another
// interface has meanwhile.
func (o *ovs) Repair(ctx context.Context, m Made) (bool, error) {
	if m.OVS == nil { // it was found on the host, without a record
		return false, nil
	}
	end, err := o.LinkState(m.HostLink)
	if errors.Is(err, link.ErrNoLink) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	sw, err := o.readSwitch(ctx, m)
	if err != nil {
		return false, err
	}
	row, open := sw.row(m.HostLink), false
	if sw.userspace {
		shut, err := o.shutter.IsShut(ctx, m.HostLink)
		if err != nil {
			return false, err
		}
		open = !shut
	}
	if !sw.bridge || len(sw.holders(m)) > 0 || end.Up && row.is(m) && !open {
		return false, nil
	}
	if !row.is(m) {
		if err := o.putRow(ctx, sw, m); err != nil {
			return false, err
		}
	}
	if open {
		if err := o.shutter.Shut(ctx, m.HostLink); err != nil {
			return false, err
		}
	}
	c, err := o.Conn()
	if err != nil {
		return false, err
	}
	defer o.Release(c)
	return true, c.Do(link.Raise(m.HostLink))
}

// Find returns the interfaces that have a host end, and those that only have their row left.
// It does not find the latter while ovsdb-server does not answer: no pod uses them, and a
// later call finds them.
func (o *ovs) Find(ctx context.Context, all []netlink.Link) []Found {
	ctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	sw, err := o.readSwitch(ctx, Made{})
	var found []Found
	links := map[string]bool{}
	for _, l := range all {
		links[l.Attrs().Name] = true
		f, ok := foundOVS(l)
		if !ok {
			continue
		}
		if err == nil {
			f.Bridge = ""
			if row := sw.row(f.HostLink); row.ours() {
				f.Bridge, f.OVS = row.bridge, &row.port
			}
		}
		found = append(found, f)
	}
	if err != nil {
		return found
	}
	for _, row := range sw.rows {
		if row.ours() && !links[row.name] {
			found = append(found, Found{Made: Made{
				Kind: KindOVS, ContainerID: row.containerID, Name: row.ifname, HostLink: row.name, Bridge: row.bridge, OVS: &row.port,
			}})
		}
	}
	return found
}

// foundOVS returns the interface of a host end, false if the link is none of this kind.
func foundOVS(l netlink.Link) (Found, bool) {
	a := l.Attrs()
	containerID, name, rest, ok := link.ParseAlias(a.Alias)
	bridge, is := strings.CutPrefix(rest, ovsWord)
	if !ok || !is || l.Type() != "veth" || HostName(containerID, name) != a.Name {
		return Found{}, false
	}
	return Found{
		Made:  Made{Kind: KindOVS, ContainerID: containerID, Name: name, HostLink: a.Name, Bridge: bridge},
		Index: a.Index, Up: a.Flags&net.FlagUp != 0,
	}, true
}
