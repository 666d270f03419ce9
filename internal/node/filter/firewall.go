package filter

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/netdev/host"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/nft"
	"fairlead.dev/fairlead/internal/node/hostnet"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/internal/run"
)

// goneTimeout is the longest wait, in each attempt to remove a sandbox, until its host
// ports are gone from the packet filter.
const goneTimeout = 5 * time.Second

// Kernel has the calls to the kernel that the packet filter needs in addition to nft.
type Kernel interface {
	// WatchTables calls notify after each change of the nftables tables with this name,
	// with the revision that the change wrote, and others after each change of another
	// table, until ctx ends.
	WatchTables(ctx context.Context, table string, notify func(revision uint32), others func(host.RuleChange)) error
	// ForgetFlows deletes the conntrack entries of flows to ports of the host.
	ForgetFlows(ctx context.Context, ports []host.FlowTo) error
	// ForgetMasqueraded deletes the conntrack entries of flows, from some networks to
	// others, whose source address was translated.
	ForgetMasqueraded(ctx context.Context, from, to []netip.Prefix) error
	// AllowLocalhost lets a host end carry packets of 127.0.0.0/8.
	AllowLocalhost(end string) error
}

// Masquerade configures the translation of source addresses.
type Masquerade struct {
	// Enabled gives packets from pods to destinations outside the cluster an address
	// of the node.
	Enabled bool
	// Exclude are destinations outside the cluster for which the pod's address stays.
	Exclude []netip.Prefix
}

// Firewall maintains the node's packet filter according to the records of sandboxes and the
// NodeNetworks.
type Firewall struct {
	kernel     Kernel
	keeper     *nft.Keeper
	masquerade Masquerade
	tunnel     nft.Tunnel
	flows      *flows
	// others is called after each change of other programs' rules.
	others func(host.RuleChange)
}

// New returns the packet filter of a node with the given tunnel. others is
// called after each change of other programs' rules.
func New(k Kernel, keeper *nft.Keeper, m Masquerade, t nft.Tunnel, others func(host.RuleChange)) *Firewall {
	return &Firewall{kernel: k, keeper: keeper, masquerade: m, tunnel: t, others: others, flows: newFlows(k, keeper)}
}

// Run maintains the packet filter until ctx ends. It leaves the rules in the kernel.
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

// SetNode updates the rules from the NodeNetworks: own is this node's, all has every
// node's, t is the tunnel, nil if there is none, and at are the node's addresses with host
// ports.
func (f *Firewall) SetNode(own *v1alpha1.NodeNetwork, all []v1alpha1.NodeNetwork, t *host.Tunnel, at []netip.Addr) {
	n := planFilter(f.masquerade, own, all)
	n.Own, n.Tunnel = at, f.tunnel
	if t != nil {
		n.Underlay = t.Underlay
		n.Peers = slices.DeleteFunc(n.Peers, func(a netip.Addr) bool { return slices.Contains(t.Underlay, a) })
	}
	f.keeper.SetNode(n)
	f.flows.setNode(n)
}

// planFilter plans the node's part of the packet filter. It skips values of a NodeNetwork
// that cannot be parsed; planHost reports them.
func planFilter(m Masquerade, own *v1alpha1.NodeNetwork, all []v1alpha1.NodeNetwork) nft.Node {
	n := nft.Node{Masquerade: m.Enabled, Cluster: append([]netip.Prefix{}, m.Exclude...)}
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

// Add queues the rules that let a sandbox send and that forward its host ports. It does
// not wait until they are in the kernel (Opened does).
func (f *Firewall) Add(containerID string, add *ledger.Add) {
	f.keeper.SetPod(containerID, filterPod(containerID, add))
}

// filterPod returns the part of the packet filter for a sandbox.
func filterPod(containerID string, add *ledger.Add) nft.Pod {
	p := nft.Pod{Ports: add.HostPorts}
	for n, i := range add.Interfaces {
		if !passes(i) {
			continue
		}
		parsed, err := i.Parse(containerID)
		if err != nil || i.Binding == (v1alpha1.Binding{}) { // of a damaged record: its addresses are not known
			p.Links = append(p.Links, nft.Link{Name: i.Made.HostLink, Check: nft.CheckLost})
			continue
		}
		link := nft.Link{Name: i.Made.HostLink, MAC: parsed.MAC, Check: checkOf(i.Binding), Tagged: i.Binding.Bridge != nil && len(i.Binding.Bridge.Trunk) > 0}
		for _, a := range parsed.Addresses {
			link.Addresses = append(link.Addresses, a.Addr())
		}
		if i.Made.Kind != plug.KindRouted { // one rule checks the sources of all of these
			p.Links = append(p.Links, link)
		}
		if n == 0 && len(p.Ports) > 0 {
			p.Addresses = oneOfEach(link.Addresses)
		}
	}
	return p
}

// oneOfEach returns the first address of each family.
func oneOfEach(all []netip.Addr) (first []netip.Addr) {
	for _, is := range []func(netip.Addr) bool{netip.Addr.Is4, netip.Addr.Is6} {
		if i := slices.IndexFunc(all, is); i >= 0 {
			first = append(first, all[i])
		}
	}
	return first
}

// passes reports whether the packets of an interface pass the host, and may do so. Those of
// a port of Open vSwitch do not, and Neutron checks their sources.
func passes(i ledger.Interface) bool {
	return i.Made.HostLink != "" && i.Made.Kind != plug.KindOVS && i.State != ledger.Deleting
}

// checkOf returns the extent of the check of an interface. It is Full for a value that this
// build does not know.
func checkOf(b v1alpha1.Binding) nft.Check {
	if b.Bridge == nil {
		return nft.CheckFull
	}
	switch b.Bridge.SourceCheck {
	case v1alpha1.SourceMAC:
		return nft.CheckMAC
	case v1alpha1.SourceNone:
		return nft.CheckNone
	case v1alpha1.SourceFull:
	}
	return nft.CheckFull
}

// Ready returns nil if the packet filter is in the kernel, otherwise the reason.
func (f *Firewall) Ready() error { return f.keeper.Ready() }

// Changes returns a channel that is closed when the result of Ready may have changed.
func (f *Firewall) Changes() <-chan struct{} { return f.keeper.Changes() }

// Missing describes the rules of a sandbox that are not in the kernel.
func (f *Firewall) Missing(containerID string) []string { return f.keeper.Missing(containerID) }

// AwaitReady waits until the packet filter is in the kernel. If ctx ends first it returns
// the cause of ctx.
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

// Await is AwaitReady for a pod. Errors: fault.ErrNotReady if the deadline of ctx passed, the cause of
// ctx if it was cancelled.
func (f *Firewall) Await(ctx context.Context, pod ledger.Pod) error {
	err := f.AwaitReady(ctx)
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if why := f.keeper.Ready(); why != nil {
		err = why
	}
	return fault.Errorf(fault.ErrNotReady, "pod %s: the packet filter is not in place: %w", pod, err)
}

// Opened waits until the host ports of a sandbox are forwarded. Without host
// ports it returns at once if Ready is nil. If Ready is not nil it waits in any case:
// otherwise a port of a bridge could not send. Errors:
// fault.ErrNotReady if the deadline of ctx passed, the cause of ctx if it was cancelled.
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
	if first := add.Interfaces[0].Made; first.Kind == plug.KindRouted {
		if err := f.kernel.AllowLocalhost(first.HostLink); err != nil {
			return err
		}
	}
	return f.kernel.ForgetFlows(ctx, flowsTo(add))
}

// Remove queues the removal of a sandbox's rules. It does not wait until they are gone
// from the kernel (Closed does).
func (f *Firewall) Remove(containerID string) { f.keeper.RemovePod(containerID) }

// Closed waits, at most goneTimeout, until no host port is forwarded to a sandbox. The
// addresses of the sandbox must not be given to another pod before.
func (f *Firewall) Closed(ctx context.Context, add *ledger.Add) error {
	if len(add.HostPorts) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, goneTimeout)
	defer cancel()
	if err := f.keeper.Wait(ctx); err != nil {
		return err
	}
	return f.kernel.ForgetFlows(ctx, flowsTo(add))
}

// flowsTo returns the flows to the host ports of an ADD that have no connection: TCP's end with theirs.
func flowsTo(add *ledger.Add) (all []host.FlowTo) {
	for _, p := range add.HostPorts {
		if number := map[string]uint8{"udp": unix.IPPROTO_UDP, "sctp": unix.IPPROTO_SCTP}[p.Protocol]; number != 0 {
			all = append(all, host.FlowTo{Protocol: number, AddrPort: netip.AddrPortFrom(p.HostIP, p.HostPort)})
		}
	}
	return all
}
