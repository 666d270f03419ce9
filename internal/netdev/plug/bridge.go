package plug

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
)

// Plugged is what the kernel made of an Interface.
type Plugged struct {
	HostName  string
	HostIndex int
	MAC       string
	MTU       int
}

// Attach plugs one interface into the namespace and returns what the kernel
// made of it. It is all or nothing: after an error nothing of the attempt
// is left. Errors: ErrInvalid, ErrNoBridge, ErrExists, else the kernel's.
//
// It takes three exchanges with the kernel, four with addresses of both
// families: a pod's start waits for this.
func (k *Kernel) Attach(ctx context.Context, ns *link.Namespace, p Interface) (Plugged, error) {
	if err := validateBridge(p); err != nil {
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

// validateBridge returns everything that is wrong with an interface on a bridge.
// Errors: ErrInvalid.
func validateBridge(p Interface) error {
	if p.Binding.Bridge == nil {
		return errors.Join(p.validate(), invalid("binding", errors.New("must be bridge, with the name of a bridge")))
	}
	name := p.Binding.Bridge.Name
	return errors.Join(p.validate(), invalid(fmt.Sprintf("bridge name %q", name), link.CheckName(name)))
}

func findBridge(host *link.Conn, p Interface) (int, error) {
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
	if p.MTU > mtu {
		return 0, fmt.Errorf("%w: mtu %d of %s must not be above the %d bytes of bridge %s", link.ErrInvalid, p.MTU, p.Name, mtu, name)
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

// MendHostEnd sets a host end up and makes it a port of the bridge again, as Attach
// did. Errors:
// ErrNoBridge, else the kernel's.
func (k *Kernel) MendHostEnd(hostName, bridge string) error {
	if !isHostName(hostName) {
		return fmt.Errorf("%w: %q must be the name of a host end", link.ErrInvalid, hostName)
	}
	c, err := k.Conn()
	if err != nil {
		return err
	}
	defer k.Release(c)
	index, err := c.Index(bridge)
	if err != nil {
		return err
	}
	if index == 0 {
		return fmt.Errorf("%w: %s", link.ErrNoBridge, bridge)
	}
	up := link.Raise(hostName)
	up.Req.AddData(nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(index))))
	if err := c.Do(up); err != nil {
		return err
	}
	end, err := c.Index(hostName)
	if err != nil {
		return err
	}
	return c.Do(Reflect(end)) // which went with the bridge
}
