package plug

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/singleflight"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
)

// LinkGroup is the group of the host ends of pods (ip-link(8)): the packet filter
// knows them by it, even before it knows whose they are.
const LinkGroup = 158

// maxPlugging is how many interfaces are plugged at once. The kernel changes one
// link after the other (rtnl_mutex), so with one at work and one ready more are not
// faster: each that waits in the kernel keeps a thread and, for a while, a processor
// busy, and here only a goroutine.
const maxPlugging = 2

// Kernel plugs the interfaces of sandboxes. Its methods may be called from many
// goroutines at once.
type Kernel struct {
	*link.Sockets
	// plugging has an entry for each interface that is being plugged.
	plugging chan struct{}
	removals singleflight.Group // by name of the host end
}

// New returns what plugs, over sockets on the host.
func New(s *link.Sockets) *Kernel {
	return &Kernel{Sockets: s, plugging: make(chan struct{}, maxPlugging)}
}

// Attach plugs one interface into the namespace and returns what the kernel
// made of it. It is all or nothing: after an error nothing of the attempt
// is left. Errors: ErrInvalid, ErrNoBridge, ErrExists, else the kernel's.
//
// It takes three exchanges with the kernel, four with addresses of both
// families: a pod's start waits for this.
func (k *Kernel) Attach(ctx context.Context, ns *link.Namespace, p Interface) (Plugged, error) {
	if err := p.validate(); err != nil {
		return Plugged{}, err
	}
	if host := k.Namespace(); host != nil && host.ID() == ns.ID() {
		return Plugged{}, link.NotNamespace(ns.Path(), "it is the host's")
	}
	select {
	case k.plugging <- struct{}{}:
	case <-ctx.Done():
		return Plugged{}, fmt.Errorf("waiting to plug %s: %w", p.Name, ctx.Err())
	}
	defer func() { <-k.plugging }()
	return k.attach(ctx, ns, p)
}

func (k *Kernel) attach(ctx context.Context, ns *link.Namespace, p Interface) (_ Plugged, err error) {
	host, err := k.Conn()
	if err != nil {
		return Plugged{}, err
	}
	defer k.Release(host)

	bridge, err := findBridge(host, p)
	if err != nil {
		return Plugged{}, err
	}
	plan := pair{
		host: HostName(p.ContainerID, p.Name), hostMAC: RandomMAC(), bridge: bridge,
		peer: p.Name, peerMAC: p.MAC, mtu: p.MTU, namespace: ns.FD(),
	}
	if plan.peerMAC == nil {
		plan.peerMAC = RandomMAC()
	}
	created := false
	defer func() {
		if err != nil && (created || host.Broken()) { // broken: it may have been created
			err = errors.Join(err, k.Detach(context.WithoutCancel(ctx), plan.host))
		}
	}()
	go ns.Prepare() // while the kernel makes the pair
	if err := k.createPair(ctx, host, ns, plan); err != nil {
		return Plugged{}, err
	}
	created = true
	index, err := host.Index(plan.host)
	if err != nil {
		return Plugged{}, err
	}
	if err := host.Do(k.hostSteps(p, plan)...); err != nil {
		return Plugged{}, err
	}
	if err := ctx.Err(); err != nil {
		return Plugged{}, fmt.Errorf("plugging %s: %w", p.Name, err)
	}
	if p.Bandwidth != nil {
		if err := k.shape(plan, p); err != nil {
			return Plugged{}, err
		}
	}
	if err := configure(ns, p); err != nil {
		return Plugged{}, err
	}
	now, err := host.Index(plan.host)
	if err == nil && now != index {
		err = fmt.Errorf("%w: host end %s was removed while %s was being plugged", link.ErrNoLink, plan.host, p.Name)
	}
	return Plugged{HostName: plan.host, HostIndex: index, MAC: plan.peerMAC.String(), MTU: p.MTU}, err
}

func findBridge(host *link.Conn, p Interface) (int, error) {
	index, err := host.Index(p.Bridge)
	if err != nil {
		return 0, err
	}
	mtu, err := host.MTU(p.Bridge)
	if err != nil {
		return 0, err
	}
	if index == 0 || mtu == 0 {
		return 0, fmt.Errorf("%w: %s", link.ErrNoBridge, p.Bridge)
	}
	if p.MTU > mtu {
		return 0, fmt.Errorf("%w: mtu %d of %s must not be above the %d bytes of bridge %s", link.ErrInvalid, p.MTU, p.Name, mtu, p.Bridge)
	}
	return index, nil
}

// createPair makes the veth. When a link of ours is in the way, left by an
// attempt that never came to be recorded, it is removed first.
func (k *Kernel) createPair(ctx context.Context, host *link.Conn, ns *link.Namespace, plan pair) error {
	err := host.Do(create(plan))
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	cleared, lookErr := k.clearLeftover(ctx, ns, plan.host)
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

// clearLeftover removes the host end of that name if it is ours and belongs to
// this sandbox or to none; false means that there is none.
func (k *Kernel) clearLeftover(ctx context.Context, ns *link.Namespace, name string) (bool, error) {
	h, err := k.Handle()
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
	// The alias follows the creation at once but not in one step.
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
	return true, k.Detach(ctx, name)
}

func (k *Kernel) hostSteps(p Interface, plan pair) []link.Step {
	steps := []link.Step{ownHost(plan.host, hostAlias(p.ContainerID, p.Name), k.IPv6)}
	for _, a := range p.Addresses {
		if a.IsSingleIP() {
			steps = append(steps, knowNeighbour(plan.bridge, a.Addr(), plan.peerMAC))
		}
	}
	return steps
}

// configure gives the interface its addresses and routes, in the namespace.
func configure(ns *link.Namespace, p Interface) error {
	return ns.With(func(c *link.Conn) error {
		index, err := c.Index(p.Name)
		if err != nil {
			return err
		}
		if index == 0 {
			return fmt.Errorf("%w: %s vanished from the namespace at %q", link.ErrNoLink, p.Name, ns.Path())
		}
		loUp, err := c.Up("lo")
		if err != nil {
			return err
		}
		steps := []link.Step{link.Raise(p.Name)}
		if !loUp {
			steps = append(steps, link.Raise("lo"))
		}
		steps = append(steps, familySteps(p, index, netip.Addr.Is4)...)
		v6 := familySteps(p, index, netip.Addr.Is6)
		if !p.has(netip.Addr.Is4) {
			steps, v6 = append(steps, v6...), nil
		}
		err = c.Do(steps...)
		if err == nil {
			err = c.Do(v6...)
		}
		if v6 == nil {
			v6 = familySteps(p, index, netip.Addr.Is6)
		}
		if errors.Is(err, unix.EACCES) && len(v6) > 0 { // IPv6 is switched off here, so none of its steps was done
			return enableIPv6(ns, c, p, v6)
		}
		if errors.Is(err, unix.EOPNOTSUPP) && len(v6) > 0 {
			return fmt.Errorf("%w (does this kernel have IPv6?)", err)
		}
		return err
	})
}

// enableIPv6 switches IPv6 on for this one interface and tries again. Some
// runtimes switch it off in every namespace they make.
func enableIPv6(ns *link.Namespace, c *link.Conn, p Interface, steps []link.Step) error {
	setting := "net/ipv6/conf/" + p.Name + "/disable_ipv6"
	err := ns.Do(func() error {
		_, err := link.SetSysctl(setting, "0")
		return err
	})
	if err != nil {
		return fmt.Errorf("%s has an IPv6 address and IPv6 is switched off in the namespace at %q: %w", p.Name, ns.Path(), err)
	}
	return c.Do(steps...)
}

func familySteps(p Interface, index int, of func(netip.Addr) bool) []link.Step {
	var steps []link.Step
	for _, a := range p.Addresses {
		if of(a.Addr()) {
			steps = append(steps, link.AddAddress(index, a, netlink.SCOPE_UNIVERSE))
		}
	}
	ways := p.ways(of)
	for _, g := range ways {
		steps = append(steps, podRoute(index, Route{Destination: netip.PrefixFrom(g, g.BitLen())}, true))
	}
	for _, r := range p.Routes {
		if of(r.Destination.Addr()) {
			steps = append(steps, podRoute(index, r, !r.Gateway.IsValid() || p.onLink(r.Gateway) || slices.Contains(ways, r.Gateway)))
		}
	}
	for _, g := range p.Gateways {
		if of(g) {
			steps = append(steps, podRoute(index, Route{Destination: defaultRoute(g), Gateway: g}, p.onLink(g) || slices.Contains(ways, g)))
		}
	}
	return steps
}

// ways are the gateways that need a route of their own: they are on no address's link.
// A default route could name such one as on-link instead, but nobody who adds a route
// later could use it, as the plugin sbr does.
func (p *Interface) ways(of func(netip.Addr) bool) (ways []netip.Addr) {
	add := func(g netip.Addr) {
		there := func(r Route) bool { return r.Destination == netip.PrefixFrom(g, g.BitLen()) }
		if g.IsValid() && of(g) && !p.onLink(g) && !slices.Contains(ways, g) && !slices.ContainsFunc(p.Routes, there) {
			ways = append(ways, g)
		}
	}
	for _, g := range p.Gateways {
		add(g)
	}
	for _, r := range p.Routes {
		add(r.Gateway)
	}
	return ways
}

func defaultRoute(gateway netip.Addr) netip.Prefix {
	if gateway.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// RandomMAC is what the kernel would choose (eth_random_addr): a local address
// of one station. Chosen here it needs no reading back, and no udev rule takes
// it for one to be replaced.
func RandomMAC() net.HardwareAddr {
	mac := make(net.HardwareAddr, 6)
	_, _ = rand.Read(mac) // never fails: it ends the program first
	mac[0] = mac[0]&^1 | 2
	return mac
}
