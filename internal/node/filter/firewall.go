package filter

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/host"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/nft"
	"fairlead.dev/fairlead/internal/node/fault"
	"fairlead.dev/fairlead/internal/node/hostnet"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/internal/run"
)

// goneTimeout bounds how long the removal of a sandbox waits, each time that it
// is tried, for its host ports to be gone from the packet filter.
const goneTimeout = 5 * time.Second

// Kernel is what the packet filter asks of the kernel, beside its rules.
type Kernel interface {
	// WatchTables calls notify for each change of the nftables of that name, with
	// the revision that is written with it, and others for each change of any other,
	// until ctx ends.
	WatchTables(ctx context.Context, table string, notify func(revision uint32), others func(host.RuleChange)) error
	// ForgetUDP makes the kernel forget the UDP flows to ports of the host.
	ForgetUDP(ctx context.Context, ports []netip.AddrPort) error
	// ForgetMasqueraded makes the kernel forget the flows from some networks to others
	// whose source was translated.
	ForgetMasqueraded(ctx context.Context, from, to []netip.Prefix) error
	// AllowLocalhost lets the bridge carry packets of 127.0.0.0/8.
	AllowLocalhost(bridge string) error
}

// Masquerade says whether what pods send out of the cluster carries an address of
// the node, and where else it does not.
type Masquerade struct {
	Enabled bool
	Exclude []netip.Prefix
}

// Firewall keeps the node's packet filter as the records and the NodeNetworks say.
type Firewall struct {
	kernel     Kernel
	keeper     *nft.Keeper
	bridge     string
	masquerade Masquerade
	tunnel     nft.Tunnel
	flows      *flows
	// others is told of changes in other programs' rules.
	others func(host.RuleChange)
	// localhost is set as soon as some sandbox has a host port.
	localhost atomic.Bool
}

// New returns the packet filter of a node whose bridge and tunnel these are. others is
// told of changes in other programs' rules.
func New(k Kernel, keeper *nft.Keeper, bridge string, m Masquerade, t nft.Tunnel, others func(host.RuleChange)) *Firewall {
	return &Firewall{kernel: k, keeper: keeper, bridge: bridge, masquerade: m, tunnel: t, others: others, flows: newFlows(k, keeper)}
}

// Run keeps the packet filter until ctx ends. What it wrote stays.
func (f *Firewall) Run(ctx context.Context) error {
	var g errgroup.Group
	g.Go(func() error { return f.keeper.Run(ctx) })
	g.Go(func() error { return f.flows.Run(ctx) })
	g.Go(func() error {
		run.KeepWatching(ctx, "watch of nftables", func(ctx context.Context) error {
			return f.kernel.WatchTables(ctx, nft.Table, f.keeper.Noticed, f.others)
		})
		return nil
	})
	return g.Wait()
}

// SetNode takes in what the NodeNetworks say. The bridge is there.
func (f *Firewall) SetNode(own *v1alpha1.NodeNetwork, all []v1alpha1.NodeNetwork, t *host.Tunnel) error {
	n := planFilter(f.bridge, f.masquerade, own, all)
	n.Tunnel = f.tunnel
	if t != nil {
		n.Underlay = t.Underlay
		n.Peers = slices.DeleteFunc(n.Peers, func(a netip.Addr) bool { return slices.Contains(t.Underlay, a) })
	}
	f.keeper.SetNode(n)
	f.flows.setNode(n)
	if !f.localhost.Load() {
		return nil
	}
	return f.kernel.AllowLocalhost(f.bridge)
}

// planFilter works out what the packet filter needs to know of the node. What of
// a NodeNetwork cannot be read planHost tells of.
func planFilter(bridge string, m Masquerade, own *v1alpha1.NodeNetwork, all []v1alpha1.NodeNetwork) nft.Node {
	n := nft.Node{Bridge: bridge, LinkGroup: plug.LinkGroup, Masquerade: m.Enabled, Cluster: append([]netip.Prefix{}, m.Exclude...)}
	for _, s := range own.Spec.Blocks {
		if p, err := netip.ParsePrefix(s); err == nil {
			n.Local = append(n.Local, p)
		}
	}
	for _, nn := range all {
		for _, s := range nn.Spec.Blocks {
			if p, err := netip.ParsePrefix(s); err == nil {
				n.Cluster = append(n.Cluster, p)
			}
		}
		believed, _ := hostnet.UnderlayOf(&nn)
		for _, p := range believed {
			n.Cluster = append(n.Cluster, netip.PrefixFrom(p.Addr(), p.Addr().BitLen()))
			if nn.Name != own.Name {
				n.Peers = append(n.Peers, p.Addr())
			}
		}
	}
	return n
}

// Add has the packet filter let a sandbox send, and lead its host ports to it.
// It does not wait for that.
func (f *Firewall) Add(containerID string, add *ledger.Add) {
	if len(add.HostPorts) > 0 {
		f.localhost.Store(true)
	}
	f.keeper.SetPod(containerID, filterPod(containerID, add))
}

// filterPod is what the packet filter needs to know of a sandbox.
func filterPod(containerID string, add *ledger.Add) nft.Pod {
	p := nft.Pod{Ports: add.HostPorts}
	for n, i := range add.Interfaces {
		if i.Made.HostLink == "" { // no packet of it passes the host
			continue
		}
		parsed, err := i.Parse(containerID)
		if err != nil || i.Binding == (v1alpha1.Binding{}) { // rebuilt from the kernel: no more is known of it
			p.Links = append(p.Links, nft.Link{Name: i.Made.HostLink, Unchecked: true})
			continue
		}
		link := nft.Link{Name: i.Made.HostLink, MAC: parsed.MAC}
		for _, a := range parsed.Addresses {
			link.Addresses = append(link.Addresses, a.Addr())
		}
		p.Links = append(p.Links, link)
		if n > 0 {
			continue
		}
		for _, is := range []func(netip.Addr) bool{netip.Addr.Is4, netip.Addr.Is6} {
			for _, a := range link.Addresses {
				if is(a) {
					p.Addresses = append(p.Addresses, a)
					break
				}
			}
		}
	}
	return p
}

// Ready says why the packet filter is not in place, or nil.
func (f *Firewall) Ready() error { return f.keeper.Ready() }

// Changes is closed when the packet filter has come further.
func (f *Firewall) Changes() <-chan struct{} { return f.keeper.Changes() }

// Missing says what the packet filter lacks of a sandbox, in words.
func (f *Firewall) Missing(containerID string) []string { return f.keeper.Missing(containerID) }

// AwaitReady returns when the packet filter is in place. The error is the cause for
// which ctx ended first.
func (f *Firewall) AwaitReady(ctx context.Context) error {
	for {
		changed := f.keeper.Changes()
		if f.keeper.Ready() == nil {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Opened returns when a sandbox can send and its host ports lead to it. Without
// host ports it does not wait for the packet filter, unless that cannot be written:
// the pod would be silent, or unchecked.
func (f *Firewall) Opened(ctx context.Context, pod ledger.Pod, add *ledger.Add) error {
	ports := len(add.HostPorts) > 0
	if !ports && f.keeper.Ready() == nil {
		return nil
	}
	if err := f.keeper.Wait(ctx); err != nil {
		if !errors.Is(context.Cause(ctx), context.DeadlineExceeded) { // a DEL came, or the runtime gave up
			return fmt.Errorf("pod %s: %w", pod, err)
		}
		return fault.Errorf(fault.ErrNotReady, "pod %s: %w", pod, err)
	}
	if !ports {
		return nil
	}
	if err := f.kernel.AllowLocalhost(f.bridge); err != nil {
		return err
	}
	return f.kernel.ForgetUDP(ctx, udpPorts(add))
}

// Remove takes away what the packet filter has of a sandbox. It does not wait for
// that.
func (f *Firewall) Remove(containerID string) { f.keeper.RemovePod(containerID) }

// Closed returns when no host port leads to a sandbox any more: until then its
// addresses are not another's.
func (f *Firewall) Closed(ctx context.Context, add *ledger.Add) error {
	if len(add.HostPorts) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, goneTimeout)
	defer cancel()
	if err := f.keeper.Wait(ctx); err != nil {
		return err
	}
	return f.kernel.ForgetUDP(ctx, udpPorts(add))
}

func udpPorts(add *ledger.Add) (ports []netip.AddrPort) {
	for _, p := range add.HostPorts {
		if p.Protocol == "udp" {
			ports = append(ports, netip.AddrPortFrom(p.HostIP, p.HostPort))
		}
	}
	return ports
}
