package plug

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sync/singleflight"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
)

// bridge is the kind of interfaces that are one end of a veth. The other end, the host
// end, is a port of a bridge of the host.
type bridge struct {
	*link.Sockets
	// plugging has an entry for each interface that is being plugged.
	plugging chan struct{}
	removals singleflight.Group // by name of the host end
	bridges  sync.Mutex         // held while a bridge is made or changed
}

// maxPlugging is how many interfaces are plugged at once. The kernel changes one link
// after the other (rtnl_mutex), so more than one at work and one ready are not faster.
// An interface that waits in the kernel keeps a thread and, for a while, a processor
// busy; here it keeps only a goroutine.
const maxPlugging = 2

// Bridge returns the kind KindBridge, over sockets on the host.
func Bridge(s *link.Sockets) Kind { return newBridge(s) }

func newBridge(s *link.Sockets) *bridge {
	return &bridge{Sockets: s, plugging: make(chan struct{}, maxPlugging)}
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
	if host := b.Namespace(); host != nil && host.ID() == ns.ID() {
		return link.NotNamespace(ns.Path(), "it is the host's")
	}
	select {
	case b.plugging <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("waiting to plug %s: %w", i.Name, ctx.Err())
	}
	defer func() { <-b.plugging }()
	return b.attach(ctx, ns, i)
}

func (b *bridge) Remove(ctx context.Context, m Made) error { return b.detach(ctx, m.HostLink) }

// Gone is true if the namespace has ended, or if neither end exists any more: the kernel
// removes both together. A host end under another name, or an interface in the namespace,
// proves that the pair still exists.
func (b *bridge) Gone(ctx context.Context, m Made) (bool, error) {
	if m.Namespace.Gone() {
		return true, nil
	}
	index, err := b.linkIndex(m.HostLink)
	if err != nil || index != 0 {
		return false, err
	}
	if renamed, err := b.renamed(ctx, m); err != nil || renamed {
		return false, err
	}
	ns, err := m.Namespace.Open()
	if err != nil { // it cannot be read, and the missing host end suffices as proof
		return true, nil
	}
	defer ns.Close() //nolint:errcheck // it was only read
	err = ns.With(func(c *link.Conn) error {
		index, err = c.Index(m.Name)
		return err
	})
	return err == nil && index == 0, err
}

// renamed reports whether the host end exists under another name.
func (b *bridge) renamed(ctx context.Context, m Made) (bool, error) {
	h, err := b.Handle()
	if err != nil {
		return false, err
	}
	defer h.Close()
	all, err := link.Dump(ctx, "listing links", h.LinkList)
	return slices.ContainsFunc(all, func(l netlink.Link) bool {
		containerID, name, _, ok := link.ParseAlias(l.Attrs().Alias)
		return ok && l.Type() == "veth" && containerID == m.ContainerID && name == m.Name
	}), err
}

func (b *bridge) Differences(_ context.Context, m Made, inside Inspected) (diffs []string, err error) {
	add := func(format string, args ...any) { diffs = append(diffs, fmt.Sprintf(format, args...)) }
	end, diffs, ok, err := b.endDifferences(m, inside)
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
	if errors.Is(err, link.ErrNoLink) || err == nil && is.Up && is.Master == m.Bridge {
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
		if f, ok := FoundEnd(l); ok {
			f.Bridge = names[l.Attrs().MasterIndex]
			found = append(found, f)
		}
	}
	return append(found, shapers(all)...)
}

// attach makes the pair and both its ends.
func (b *bridge) attach(ctx context.Context, ns *link.Namespace, p Interface) (err error) {
	host, err := b.Conn()
	if err != nil {
		return err
	}
	defer b.Release(host)

	if err := b.prepareBridge(ctx, p); err != nil {
		return err
	}
	bridge, err := findBridge(host, &p)
	if err != nil {
		return err
	}
	plan := pair{
		host: HostName(p.ContainerID, p.Name), hostMAC: RandomMAC(), bridge: bridge,
		port: portOf(p.Binding.Bridge), peer: p.Name, peerMAC: p.MAC, mtu: p.MTU, namespace: ns.FD(),
	}
	if plan.peerMAC == nil {
		plan.peerMAC = RandomMAC()
	}
	created := false
	defer func() {
		if err != nil && (created || host.Broken()) { // broken: the pair may have been created
			err = errors.Join(err, b.detach(context.WithoutCancel(ctx), plan.host))
		}
	}()
	go ns.Prepare() // while the kernel makes the pair
	if err := b.createPair(ctx, host, ns, plan); err != nil {
		return err
	}
	created = true
	index, err := host.Index(plan.host)
	if err != nil {
		return err
	}
	if err := host.Do(b.hostSteps(p, plan)...); err != nil {
		return err
	}
	if err := b.setPort(plan.host, plan.port); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("plugging %s: %w", p.Name, err)
	}
	if p.Bandwidth != nil {
		if err := b.shape(plan, p); err != nil {
			return err
		}
	}
	if err := Configure(ns, p); err != nil {
		return err
	}
	now, err := host.Index(plan.host)
	if err == nil && now != index {
		err = fmt.Errorf("%w: host end %s was removed while %s was being plugged", link.ErrNoLink, plan.host, p.Name)
	}
	return err
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

// createPair makes the veth. It first removes a link of Fairlead that has its name: an
// earlier attempt left it and was never recorded. Errors: link.ErrExists if a link of
// others has the name, otherwise the kernel's.
func (b *bridge) createPair(ctx context.Context, host *link.Conn, ns *link.Namespace, plan pair) error {
	err := host.Do(create(plan))
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	cleared, lookErr := b.clearLeftover(ctx, ns, plan.host)
	if lookErr != nil {
		return lookErr
	}
	if !cleared {
		return fmt.Errorf("%w: %s in the namespace at %q", link.ErrExists, plan.peer, ns.Path())
	}
	if err := host.Do(create(plan)); err != nil {
		if errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("%w: %s in the namespace at %q", link.ErrExists, plan.peer, ns.Path())
		}
		return err
	}
	return nil
}

// clearLeftover removes the host end with this name, and returns false if there is none.
// Errors: link.ErrExists if it is not Fairlead's or belongs to another sandbox, otherwise
// the kernel's.
func (b *bridge) clearLeftover(ctx context.Context, ns *link.Namespace, name string) (bool, error) {
	h, err := b.Handle()
	if err != nil {
		return false, err
	}
	defer h.Close()
	dev, err := h.LinkByName(name)
	if link.IsNoLink(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking at %s: %w", name, err)
	}
	a := dev.Attrs()
	// The alias is set right after the creation, in a second step.
	if dev.Type() != "veth" || (a.Alias != "" && !strings.HasPrefix(a.Alias, link.AliasPrefix)) {
		return false, fmt.Errorf("%w: host end %s is taken by a %s that is not ours (alias %q)", link.ErrExists, name, dev.Type(), a.Alias)
	}
	if a.NetNsID >= 0 {
		id, err := h.GetNetNsIdByFd(ns.FD())
		if err != nil {
			return false, fmt.Errorf("looking for the other end of %s: %w", name, err)
		}
		if id != a.NetNsID {
			return false, fmt.Errorf("%w: host end %s has its other end in another namespace than the one at %q", link.ErrExists, name, ns.Path())
		}
	}
	return true, b.detach(ctx, name)
}

func (b *bridge) hostSteps(p Interface, plan pair) []link.Step {
	steps := []link.Step{ownHost(plan.host, link.LongAlias(p.ContainerID, p.Name, p.Binding.Bridge.Name), plan.port, b.IPv6)}
	for _, a := range p.Addresses {
		if a.IsSingleIP() {
			steps = append(steps, knowNeighbour(plan.bridge, a.Addr(), plan.peerMAC))
		}
	}
	return steps
}

// repairHostEnd sets a host end up and makes it a port of the bridge again, as Make did.
// Errors: link.ErrNoBridge, otherwise the kernel's.
func (b *bridge) repairHostEnd(hostName, bridge string, port *Port) error {
	if !isHostName(hostName) {
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
	if err := c.Do(link.Lower(hostName), master); err != nil { // without its settings it must carry nothing
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

// The name of a host end is HostPrefix and HostDigits letters or digits.
const (
	HostPrefix = "fl"
	HostDigits = link.MaxNameLength - len(HostPrefix)
)

// lowerBase32 has only characters that need no quoting anywhere.
var lowerBase32 = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// HostName returns the name of the host end of an interface: "fl" and 65 bits of a hash
// in base 32, 15 bytes in all. The same arguments always give the same name, so the links
// of a crash between creation and record are known.
func HostName(containerID, ifname string) string {
	sum := sha256.Sum256([]byte(containerID + "\x00" + ifname))
	return HostPrefix + lowerBase32.EncodeToString(sum[:])[:HostDigits]
}

func isHostName(name string) bool {
	digits, ok := strings.CutPrefix(name, HostPrefix)
	if !ok || len(digits) != HostDigits {
		return false
	}
	return strings.Trim(digits, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

// detach removes the host end with this name, and with it the other end. It returns when
// the kernel has removed the link, for which the kernel waits some 30 ms; the waits of
// several removals overlap. It returns nil if there is no such link. If ctx ends first,
// the removal goes on. Errors: link.ErrInvalid if the name is not that of a host end,
// otherwise the kernel's.
func (b *bridge) detach(ctx context.Context, hostName string) error {
	if !isHostName(hostName) {
		return fmt.Errorf("%w: %q must be the name of a host end, %q and %d letters or digits", link.ErrInvalid, hostName, HostPrefix, HostDigits)
	}
	for {
		before, err := b.linkIndex(hostName)
		if err != nil {
			return err
		}
		if err := b.removeOnce(ctx, hostName); err != nil {
			return err
		}
		if err := b.removeShaper(shaperName(hostName)); err != nil {
			return err
		}
		// The shared removal may have been that of an earlier link of the same name.
		after, err := b.linkIndex(hostName)
		if err != nil || after == 0 || after != before {
			return err
		}
	}
}

// removeOnce removes the link with this name. Concurrent callers wait for one removal: a
// second removal would find the link gone while the first still waits for its end.
func (b *bridge) removeOnce(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("removing %s: %w", name, err)
	}
	done := b.removals.DoChan(name, func() (any, error) {
		c, err := b.Conn()
		if err != nil {
			return nil, err
		}
		defer b.Release(c)
		err = c.Do(link.Remove(name))
		if errors.Is(err, unix.ENODEV) {
			return nil, nil
		}
		return nil, err
	})
	select {
	case r := <-done:
		return r.Err
	case <-ctx.Done():
		return fmt.Errorf("removing %s: %w", name, ctx.Err())
	}
}

// linkIndex returns the index of the host's link with this name, 0 if there is none.
func (b *bridge) linkIndex(name string) (int, error) {
	c, err := b.Conn()
	if err != nil {
		return 0, err
	}
	defer b.Release(c)
	return c.Index(name)
}

// FoundEnd returns the interface of a host end, false if the link is no host end of
// Fairlead on a Linux bridge. A host end is a veth with a name of the right form. Its alias is set after
// its creation, so it may be empty, but must not contradict the name. Bridge is that of the
// alias, "" if the alias names none.
func FoundEnd(l netlink.Link) (Found, bool) {
	a := l.Attrs()
	if l.Type() != "veth" || !isHostName(a.Name) {
		return Found{}, false
	}
	f := Found{Made: Made{Kind: KindBridge, HostLink: a.Name}, Index: a.Index, Up: a.Flags&net.FlagUp != 0}
	if a.Alias == "" {
		return f, true
	}
	containerID, name, bridge, ok := link.ParseAlias(a.Alias)
	f.ContainerID, f.Name, f.Bridge = containerID, name, bridge
	return f, ok && HostName(containerID, name) == a.Name && !strings.HasPrefix(bridge, ovsWord)
}

// endDifferences returns the differences between the host end of a pair and its record. ok is
// false if the end is missing, and nothing else can be compared.
func (b *bridge) endDifferences(m Made, inside Inspected) (end link.State, diffs []string, ok bool, err error) {
	end, err = b.LinkState(m.HostLink)
	switch {
	case errors.Is(err, link.ErrNoLink):
		return end, []string{fmt.Sprintf("host end %s of %s is missing", m.HostLink, m.Name)}, false, nil
	case err != nil:
		return end, nil, false, err
	case inside.Peer != end.Index:
		diffs = append(diffs, fmt.Sprintf("interface %s does not lead to its host end %s", m.Name, m.HostLink))
	}
	if !end.Up {
		diffs = append(diffs, fmt.Sprintf("host end %s of %s is down", m.HostLink, m.Name))
	}
	return end, diffs, true, nil
}
