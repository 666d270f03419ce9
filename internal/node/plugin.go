package node

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/network"
	"fairlead.dev/fairlead/internal/nft"
)

// RegistryPlugin is the name of the network plugin that plugs what the
// PodAttachments of this node say.
const RegistryPlugin = "fairlead"

// NewPlugin returns that plugin. Of c it does not need Install.
func NewPlugin(c Config) (network.Plugin, error) {
	m, err := newMetrics(c.Metrics)
	if err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	v := &verbs{
		kernel: c.Kernel, api: c.API, source: c.Source, metrics: m, addTimeout: c.AddTimeout, node: c.NodeName, reserved: c.ReservedPorts,
		host: newHostNet(c.HostKernel, c.API, c.Source.Networks, c),
	}
	leaving, leave := context.WithCancel(context.Background())
	v.leave, v.onLeave = leave, func(f func()) func() bool { return context.AfterFunc(leaving, f) }
	v.reaper = &reaper{verbs: v, queue: newQueue[string]("reaper")}
	v.ledger = newLedger(filepath.Join(c.StateDir, recordsDir), c.BootID, v.released)
	v.registry = newRegistry(v.changed)
	v.firewall = &firewall{
		kernel: c.FilterKernel, keeper: c.Firewall, bridge: c.Bridge, masquerade: c.Masquerade,
		tunnel: nft.Tunnel{Port: c.VXLANPort, VNI: c.VNI}, others: v.host.passage.changed,
		flows: newFlows(c.FilterKernel, c.Firewall),
	}
	v.host.filter = v.firewall.setNode
	v.remover = newRemover(c.Kernel, v.ledger, v.firewall)
	v.health = newHealth(v.look, filepath.Join(filepath.Dir(c.Socket), cniproto.HeartbeatFile), c.BootID)
	v.mender = &mender{verbs: v, queue: newQueue[string]("mender")}
	v.acks = newAcknowledger(c.API, v.registry, v.ledger, m)
	v.reporter = newReporter(c.API, c.NodeName)
	return v, nil
}

// Name is RegistryPlugin.
func (v *verbs) Name() string { return RegistryPlugin }

// Init adopts what the daemon before left, without the API server.
func (v *verbs) Init(ctx context.Context, m *network.Manager) error {
	v.manager = m
	return v.adopt(ctx)
}

// Status says why an ADD cannot be served, or nil.
func (v *verbs) Status() error { return v.status() }

// Event has the node's own network looked at.
func (v *verbs) Event(e network.Event) {
	if e == network.PodCIDRChanged {
		v.host.networksChanged()
	}
}

// PodIPs are the addresses of an interface, IPv4 first, without those that are
// good on the link alone.
func (v *verbs) PodIPs(netns, ifName string) ([]netip.Addr, error) {
	ns, err := v.kernel.Enter(netns)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	return podIPs(context.Background(), ns, netns, ifName)
}

func podIPs(ctx context.Context, ns Sandbox, netns, ifName string) ([]netip.Addr, error) {
	seen, err := ns.Inspect(ctx)
	if err != nil {
		return nil, err
	}
	i, there := seen[ifName]
	if !there {
		return nil, fmt.Errorf("interface %s is missing in the namespace at %q", ifName, netns)
	}
	var ips []netip.Addr
	for _, p := range i.Addresses {
		if a := p.Addr(); a.IsGlobalUnicast() {
			ips = append(ips, a)
		}
	}
	slices.SortStableFunc(ips, func(a, b netip.Addr) int { return a.BitLen() - b.BitLen() })
	return ips, nil
}

// released has the status written of the PodAttachment that a sandbox held. One
// whose record was damaged may have held any. When other interfaces are there still,
// theirs go as a rule in the next moment, and one write says it.
func (v *verbs) released(r *record) {
	if r.Attachment.UID == "" {
		for _, key := range v.registry.keys() {
			v.acks.enqueue(key)
		}
	}
	if pa := v.registry.get(r.attachmentKey()); pa != nil && pa.UID == r.Attachment.UID {
		if len(v.ledger.holding(pa.UID)) > 0 || len(v.ledger.addressesHeld(pa.UID)) > 0 {
			v.acks.enqueueSoon(keyOf(pa))
		} else {
			v.acks.enqueue(keyOf(pa))
		}
		return
	}
	v.ledger.drop(r.Attachment.UID)
}

// changed looks after a PodAttachment that the API server told of.
func (v *verbs) changed(pa *v1alpha1.PodAttachment, gone bool) {
	if gone {
		v.ledger.drop(pa.UID)
	} else {
		v.acks.enqueue(keyOf(pa))
	}
	if gone || pa.DeletionTimestamp != nil {
		for _, containerID := range v.ledger.holding(pa.UID) {
			v.reaper.queue.Add(containerID)
		}
		for _, k := range v.ledger.addressesHeld(pa.UID) {
			v.reaper.queue.Add(k.String())
		}
	}
}

// watch keeps the registry.
func (v *verbs) watch(ctx context.Context) error {
	return v.source.Watch(ctx, Events{
		Updated: v.registry.update, Deleted: v.registry.delete, Synced: v.registry.setSynced,
		NetworksChanged: func() { v.manager.Event(network.PodCIDRChanged) },
	})
}

// plain serves a plugin that keeps no records: there is nothing that CHECK could
// compare and GC collect.
type plain struct{ manager *network.Manager }

// Handle serves one request.
func (p plain) Handle(ctx context.Context, r cniproto.Request) (result []byte, err error) {
	switch {
	case r.IPAM != "" && r.Verb == cniproto.VerbDel:
		return nil, nil // it had no addresses
	case r.IPAM != "":
		return nil, cniError(because(errUnserved, "%s: addresses are not served by the network plugin of this node", r.IPAM))
	}
	switch r.Verb {
	case cniproto.VerbAdd:
		result, err = p.manager.SetUpPod(ctx, r)
	case cniproto.VerbDel:
		err = p.manager.TearDownPod(ctx, r)
	case cniproto.VerbStatus:
		err = p.manager.Status()
	}
	return result, cniError(err)
}
