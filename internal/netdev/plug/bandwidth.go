package plug

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
)

// Bandwidth limits the traffic of an interface. Rates are in bit/s, bursts in bit; a rate
// of 0 is no limit. Ingress is the traffic that the pod receives, egress the traffic that
// it sends.
type Bandwidth struct {
	IngressRate, IngressBurst uint64
	EgressRate, EgressBurst   uint64
}

const (
	// unsetBurst is the least burst that containerd and CRI-O pass if none was requested
	// (4294967295 and more). Taken literally, it lets half a gigabyte pass before the
	// first limit.
	unsetBurst = math.MaxUint32
	// burstTime is the part of the rate, in seconds, that passes at once if no burst is
	// given. minBurst is the least burst in bytes: the size of a packet that the kernel
	// has not segmented yet.
	burstTime = 0.1
	minBurst  = 64 << 10
	// tbfLatency is how long a packet may wait for its turn, in seconds.
	tbfLatency = 0.025
	// minRate is the least rate in bit/s, one byte.
	minRate = 8
)

// shaperPrefix begins the name of a shaper, the link that delays the packets from a pod.
// The rest of the name is that of the pod's host end.
const shaperPrefix = "fb"

func shaperName(hostName string) string {
	return shaperPrefix + strings.TrimPrefix(hostName, HostPrefix)
}

func (b *Bandwidth) validate() error {
	for _, r := range []struct {
		name        string
		rate, burst uint64
	}{{"ingress", b.IngressRate, b.IngressBurst}, {"egress", b.EgressRate, b.EgressBurst}} {
		switch {
		case r.rate > 0 && r.rate < minRate:
			return fmt.Errorf("%w: bandwidth: %s rate %d: must be 0 or at least %d bit/s", link.ErrInvalid, r.name, r.rate, minRate)
		case r.rate == 0 && r.burst > 0:
			return fmt.Errorf("%w: bandwidth: %s burst %d: needs a rate", link.ErrInvalid, r.name, r.burst)
		}
	}
	return nil
}

// shape limits an interface at its host end. Packets to the pod leave the host by the
// host end, so a queue there delays them (tc-tbf(8)). Packets from the pod are redirected
// through a shaper (ifb): no other way delays them beyond the pod's control.
func (v *Veths) shape(plan Pair, p Interface) error {
	h, err := v.Handle()
	if err != nil {
		return err
	}
	defer h.Close()
	end, err := h.LinkByName(plan.Host)
	if err != nil {
		return fmt.Errorf("looking at %s: %w", plan.Host, err)
	}
	b := p.Bandwidth
	if b.IngressRate > 0 {
		if err := h.QdiscReplace(tbf(end.Attrs().Index, b.IngressRate, b.IngressBurst)); err != nil {
			return fmt.Errorf("limiting what %s receives: %w", p.Name, err)
		}
	}
	if b.EgressRate == 0 {
		return nil
	}
	shaper, err := v.addShaper(h, shaperName(plan.Host), link.OwnerAlias(p.ContainerID, p.Name), p.MTU)
	if err != nil {
		return fmt.Errorf("limiting what %s sends: %w", p.Name, err)
	}
	ingress := &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: end.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS,
	}}
	redirect := netlink.NewMirredAction(shaper)
	redirect.MirredAction = netlink.TCA_EGRESS_REDIR
	redirect.Action = netlink.TC_ACT_STOLEN
	all := &netlink.U32{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: end.Attrs().Index, Parent: ingress.Handle, Priority: 1, Protocol: unix.ETH_P_ALL,
		},
		ClassId: netlink.MakeHandle(1, 1),
		Actions: []netlink.Action{redirect},
	}
	if err := errors.Join(h.QdiscReplace(tbf(shaper, b.EgressRate, b.EgressBurst)), h.QdiscAdd(ingress), h.FilterAdd(all)); err != nil {
		return fmt.Errorf("limiting what %s sends: %w", p.Name, err)
	}
	return nil
}

// addShaper makes a shaper and returns its index.
func (v *Veths) addShaper(h *netlink.Handle, name, alias string, mtu int) (int, error) {
	dev := &netlink.Ifb{LinkAttrs: netlink.NewLinkAttrs()}
	dev.Name, dev.MTU = name, mtu
	err := h.LinkAdd(dev)
	if errors.Is(err, unix.EEXIST) { // of an earlier attempt
		if err := v.removeShaper(name); err != nil {
			return 0, err
		}
		err = h.LinkAdd(dev)
	}
	if err != nil {
		return 0, fmt.Errorf("creating %s: %w", name, err)
	}
	steps := []link.Step{nameHost(name, alias, v.IPv6), link.Raise(name)}
	c, err := v.Conn()
	if err != nil {
		return 0, err
	}
	defer v.Release(c)
	if err := c.Do(steps...); err != nil {
		return 0, err
	}
	return c.Index(name)
}

// removeShaper removes a shaper, if it is there.
func (v *Veths) removeShaper(name string) error {
	c, err := v.Conn()
	if err != nil {
		return err
	}
	defer v.Release(c)
	if index, err := c.Index(name); err != nil || index == 0 {
		return err
	}
	if err := c.Do(link.Remove(name)); err != nil && !errors.Is(err, unix.ENODEV) {
		return err
	}
	return nil
}

// tbf returns the queue for a rate in bit/s and a burst in bit.
func tbf(link int, rate, burst uint64) *netlink.Tbf {
	bytes := float64(rate) / 8
	size := float64(burst) / 8
	if burst == 0 || burst >= unsetBurst {
		size = bytes * burstTime
	}
	size = min(max(size, minBurst), math.MaxUint32/2)
	// The kernel takes the burst as its duration, in ticks.
	ticks := size / bytes * 1e6 * netlink.TickInUsec()
	return &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       rate / 8,
		Limit:      uint32(min(bytes*tbfLatency+size, math.MaxUint32)),
		Buffer:     uint32(min(ticks, math.MaxUint32)),
	}
}

// Shapers returns the interfaces of a kind that only have their shaper left. The kernel removes the
// host end with the pod's namespace, but not the shaper. nameOf names the host ends of the kind.
func Shapers(links []netlink.Link, kind string, nameOf func(containerID, ifname string) string) []Found {
	there := map[string]bool{}
	for _, l := range links {
		there[l.Attrs().Name] = true
	}
	var left []Found
	for _, l := range links {
		a := l.Attrs()
		digits, ok := strings.CutPrefix(a.Name, shaperPrefix)
		name := HostPrefix + digits
		if !ok || l.Type() != "ifb" || !IsHostName(name) || there[name] {
			continue
		}
		id, ifname, _, ours := link.ParseAlias(a.Alias)
		if ours && nameOf(id, ifname) == name {
			left = append(left, Found{Made: Made{Kind: kind, ContainerID: id, Name: ifname, HostLink: name}, Index: a.Index, Shaper: true})
		}
	}
	return left
}
