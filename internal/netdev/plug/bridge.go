package plug

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
)

// bridge is the kind of interfaces that are one end of a veth. The other end, the host
// end, is a port of a bridge of the host.
type bridge struct {
	*Veths
	bridges sync.Mutex // held while a bridge is made or changed
}

// Bridge returns the kind KindBridge, over sockets on the host.
func Bridge(s *link.Sockets) Kind { return newBridge(s) }

func newBridge(s *link.Sockets) *bridge {
	return &bridge{Veths: NewVeths(s)}
}

func (*bridge) Validate(i Interface) error { return validateBridge(i) }

func (*bridge) Plan(at link.Place, i Interface) Made {
	m := Made{Kind: KindBridge, ContainerID: i.ContainerID, Name: i.Name, Namespace: at, HostLink: HostName(i.ContainerID, i.Name)}
	if b := i.Binding.Bridge; b != nil {
		m.Bridge, m.Port = b.Name, portOf(b)
	}
	return m
}

// Make takes three exchanges with the kernel, four if the interface has addresses of both
// families. The start of a pod waits for them.
func (b *bridge) Make(ctx context.Context, ns *link.Namespace, i Interface) error {
	if err := validateBridge(i); err != nil {
		return err
	}
	return b.MakePair(ctx, ns, i, func(host *link.Conn, i *Interface) (Pair, error) {
		if err := b.prepareBridge(ctx, *i); err != nil {
			return Pair{}, err
		}
		bridge, err := findBridge(host, i)
		return Pair{Host: HostName(i.ContainerID, i.Name), HostMAC: RandomMAC(), Group: link.GroupPort, Bridge: bridge}, err
	}, func(host *link.Conn, _ int, i Interface, plan Pair) error {
		port := portOf(i.Binding.Bridge)
		alias := link.LongAlias(i.ContainerID, i.Name, i.Binding.Bridge.Name)
		if err := host.Do(ownHost(plan.Host, alias, port, b.IPv6)); err != nil {
			return err
		}
		return b.setPort(plan.Host, port)
	})
}

func (b *bridge) Differences(_ context.Context, m Made, inside Inspected) (diffs []string, err error) {
	add := func(format string, args ...any) { diffs = append(diffs, fmt.Sprintf(format, args...)) }
	end, diffs, ok, err := b.EndDifferences(m, inside)
	if err != nil || !ok {
		return diffs, err
	}
	if m.Bridge == "" { // it was found on the host, without a record
		return diffs, nil
	}
	if end.Master != m.Bridge {
		add("host end %s of %s is a port of %q, not of bridge %s", m.HostLink, m.Name, end.Master, m.Bridge)
	}
	state, err := b.LinkState(m.Bridge)
	switch {
	case errors.Is(err, link.ErrNoLink) || err == nil && !state.Up:
		add("bridge %s of %s is missing or down", m.Bridge, m.Name)
	case err != nil:
		return nil, err
	}
	return diffs, nil
}

// Repair sets the host end up and makes it a port of its bridge again. It cannot replace a
// missing host end: the pod has to be made again.
func (b *bridge) Repair(_ context.Context, m Made) (bool, error) {
	if m.Bridge == "" { // it was found on the host, without a record
		return false, nil
	}
	is, err := b.LinkState(m.HostLink)
	if errors.Is(err, link.ErrNoLink) || err == nil && is.Type != "veth" || err == nil && is.Up && is.Master == m.Bridge && is.Group == m.EndGroup() {
		return false, nil
	}
	// An error of LinkState recurs in the attempt.
	if err := b.repairHostEnd(m.HostLink, m.Bridge, m.Port); err != nil {
		return false, err
	}
	return true, nil
}

// Find returns the interfaces that have a host end, and those that only have their shaper
// left.
func (*bridge) Find(_ context.Context, all []netlink.Link) []Found {
	names := make(map[int]string, len(all))
	for _, l := range all {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	var found []Found
	for _, l := range all {
		if f, word, ok := EndOf(l, KindBridge, HostName); ok && !strings.HasPrefix(word, ovsWord) {
			f.Bridge = names[l.Attrs().MasterIndex]
			found = append(found, f)
		}
	}
	return append(found, Shapers(all, KindBridge, HostName)...)
}

// validateBridge returns all errors of an interface on a bridge. Errors: ErrInvalid.
func validateBridge(p Interface) error {
	if p.Binding.Bridge == nil {
		return errors.Join(p.Validate(), link.Invalid("binding", errors.New("must be bridge, with the name of a bridge")))
	}
	return errors.Join(p.Validate(), checkBridge(p.Binding.Bridge))
}

// findBridge returns the index of the bridge of an interface, and sets an MTU of 0 to that
// of the bridge.
func findBridge(host *link.Conn, p *Interface) (int, error) {
	name := p.Binding.Bridge.Name
	index, err := host.Index(name)
	if err != nil {
		return 0, err
	}
	mtu, err := host.MTU(name)
	if err != nil {
		return 0, err
	}
	if index == 0 || mtu == 0 {
		return 0, fmt.Errorf("%w: %s", link.ErrNoBridge, name)
	}
	return index, p.FitMTU(mtu, "bridge "+name)
}

// repairHostEnd sets a host end up and makes it a port of the bridge again, as Make did.
// Errors: link.ErrNoBridge, otherwise the kernel's.
func (b *bridge) repairHostEnd(hostName, bridge string, port *Port) error {
	if !IsHostName(hostName) {
		return fmt.Errorf("%w: %q must be the name of a host end", link.ErrInvalid, hostName)
	}
	c, err := b.Conn()
	if err != nil {
		return err
	}
	defer b.Release(c)
	index, err := c.Index(bridge)
	if err != nil {
		return err
	}
	if index == 0 {
		return fmt.Errorf("%w: %s", link.ErrNoBridge, bridge)
	}
	master := link.SetLink(hostName, "bridge", nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(index))))
	if err := c.Do(link.Lower(hostName), link.SetGroup(hostName, link.GroupPort), master); err != nil { // without its settings it must carry nothing
		return err
	}
	end, err := c.Index(hostName)
	if err != nil {
		return err
	}
	if err := c.Do(reflect(end, port)); err != nil { // these settings were lost with the bridge
		return err
	}
	if err := b.setPort(hostName, port); err != nil {
		return err
	}
	return c.Do(link.Raise(hostName))
}
