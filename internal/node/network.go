package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/nft"
	"fairlead.dev/fairlead/internal/node/answer"
	"fairlead.dev/fairlead/internal/node/apiserver"
	"fairlead.dev/fairlead/internal/node/filter"
	"fairlead.dev/fairlead/internal/node/health"
	"fairlead.dev/fairlead/internal/node/hostnet"
	"fairlead.dev/fairlead/internal/node/install"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/internal/node/plugin"
	"fairlead.dev/fairlead/internal/node/queue"
	"fairlead.dev/fairlead/internal/node/report"
	"fairlead.dev/fairlead/internal/node/turns"
)

// RegistryPlugin is the name of the network plugin that plugs the interfaces of this
// node's PodAttachments.
const RegistryPlugin = "fairlead"

// podNetwork is the network plugin "fairlead": it serves the requests of the CNI plugin
// by the PodAttachments of this node.
type podNetwork struct {
	kernel   Kernel
	api      API
	source   Source
	registry *apiserver.Registry
	ledger   *ledger.Ledger
	turns    *turns.Turns // after Init
	remover  *remover
	reaper   *reaper
	repairer *repairer
	follower *follower
	health   *health.Health
	host     *hostnet.Network
	firewall *filter.Firewall
	statuses *report.Statuses
	events   *report.Events
	bindings health.Bindings
	devices  Devices
	metrics  *metrics
	// bridge is the name of the bridge of the default network.
	bridge string

	// addTimeout bounds how long an ADD waits for the controller, the node's network and
	// other sandboxes.
	addTimeout time.Duration
	// plugins executes GC and STATUS of the networks of executed plugins; nil executes
	// none.
	plugins Plugins
	// collecting is true while a GC of these networks runs.
	collecting atomic.Bool
	// defaultStatus has the last STATUS of the plugins of the default network.
	defaultStatus atomic.Pointer[pluginStatus]
	// stopping is closed when this daemon hands waiting requests to the next one.
	stopping chan struct{}
	stopOnce sync.Once
	// install and socket are announced to the runtime; with a nil install nothing is.
	install *install.Options
	socket  string
	// confDir watches the directory of network configurations; nil with a nil install.
	confDir install.Watcher
	// node is the name of the node, for messages.
	node string
	// reserved are the node's own ports.
	reserved []answer.ReservedPort
}

// NewPlugin returns the network plugin "fairlead".
func NewPlugin(c Config) (plugin.Plugin, error) {
	m, err := newMetrics(c.Metrics)
	if err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	pn := &podNetwork{
		kernel: c.Kernel, api: c.API, source: c.Source, metrics: m, bridge: c.Bridge, addTimeout: c.AddTimeout, node: c.NodeName, reserved: c.ReservedPorts,
		stopping: make(chan struct{}), install: c.Install, socket: c.Socket, plugins: c.Plugins, devices: c.Devices,
		host: hostnet.New(hostnet.Config{
			NodeName: c.NodeName, BootID: c.BootID, Bridge: c.Bridge, Uplink: c.Uplink,
			Encapsulation: c.Encapsulation, VNI: c.VNI, VXLANPort: c.VXLANPort,
			Kernel: c.HostKernel, Prober: c.Prober, API: c.API, Networks: c.Source.Networks,
		}),
	}
	if err := registerDropped(c.Metrics, pn.host.Dropped); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	if c.Install != nil {
		pn.confDir = install.NewDirWatch(c.Install.ConfDir)
	}
	pn.reaper = &reaper{network: pn, queue: queue.New[string]("reaper")}
	pn.ledger = ledger.New(filepath.Join(c.StateDir, ledger.RecordsDir), c.BootID, pn.released)
	pn.registry = apiserver.NewRegistry(pn.changed)
	pn.firewall = filter.New(c.FilterKernel, c.Firewall, c.Bridge, c.Masquerade, nft.Tunnel{Port: c.VXLANPort, VNI: c.VNI}, pn.opened)
	pn.host.SetFilter(pn.firewall.SetNode)
	pn.remover = newRemover(c.Kernel, pn.ledger, pn.firewall)
	pn.health = health.New(pn.canServe, filepath.Join(filepath.Dir(c.Socket), cniproto.HeartbeatFile), c.BootID)
	pn.follower = &follower{network: pn, queue: queue.New[string]("follower")}
	pn.repairer = &repairer{network: pn, queue: queue.New[string]("repairer")}
	pn.statuses = report.NewStatuses(c.API, pn.registry, pn.ledger, func(since time.Time) { m.step("acknowledge", since) }, m.ackFailures, pn.look)
	pn.events = report.NewEvents(c.API, c.NodeName)
	pn.statuses.Report = pn.events.Report
	if err := registerLosses(c.Metrics, pn.statuses.Losses); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return pn, nil
}

// Name is RegistryPlugin.
func (pn *podNetwork) Name() string { return RegistryPlugin }

// Init adopts the state of the previous daemon, without the API server.
func (pn *podNetwork) Init(ctx context.Context, t *turns.Turns) error {
	pn.turns, pn.remover.turns = t, t
	return pn.adopt(ctx)
}

// Parts returns the services beside plugging and unplugging.
func (pn *podNetwork) Parts() plugin.Parts {
	checks := map[string]func() error{}
	for _, kind := range pn.kernel.Names() {
		checks[kind] = func() error { return pn.bindings.Check(kind) }
	}
	return plugin.Parts{
		Check: pn.check, Collect: pn.collect, Addresses: pn.handleIPAM, Run: pn.run, Leave: pn.leave, Sweep: pn.sweep, Ready: pn.ready,
		Checks: checks,
	}
}

// run runs all background tasks until ctx ends.
func (pn *podNetwork) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, run := range []func(context.Context) error{
		pn.remover.Run, pn.statuses.Run, pn.events.Run, pn.host.Run, pn.firewall.Run, pn.reaper.Run, pn.repairer.Run, pn.follower.Run, pn.watch, pn.keepHealth, pn.keepPluginStatus, pn.announce,
	} {
		g.Go(func() error { return run(ctx) })
	}
	return g.Wait()
}

// leave ends the waiting of requests, which the next daemon then serves.
func (pn *podNetwork) leave() { pn.stopOnce.Do(func() { close(pn.stopping) }) }

// ready returns nil if pods can be served, otherwise an error with the reason.
func (pn *podNetwork) ready() error {
	if a := pn.host.Announcement(); a != nil && a.Reason == install.ReasonNotInstalled {
		return errors.New(a.Message)
	}
	return pn.health.Seen()
}

// Status returns nil if an ADD can be served, otherwise an error with the reason.
func (pn *podNetwork) Status() error { return pn.health.Answer() }

// podIPs returns the addresses of an interface, IPv4 first, without link-local ones.
func podIPs(ctx context.Context, ns Sandbox, netns, ifName string) ([]netip.Addr, error) {
	seen, err := ns.Inspect(ctx)
	if err != nil {
		return nil, err
	}
	i, there := seen[ifName]
	if !there {
		return nil, fmt.Errorf("interface %s is missing in the namespace at %q", ifName, netns)
	}
	return podAddresses(i), nil
}

// podAddresses returns the addresses of an interface, IPv4 first, without link-local ones.
func podAddresses(i plug.Inspected) (ips []netip.Addr) {
	for _, p := range i.Addresses {
		if a := p.Addr(); a.IsGlobalUnicast() {
			ips = append(ips, a)
		}
	}
	slices.SortStableFunc(ips, func(a, b netip.Addr) int { return a.BitLen() - b.BitLen() })
	return ips
}

// look returns the interfaces of a sandbox, and a message about an address of the record
// that the default interface has lost, "" if it has all. It returns nothing if the
// namespace cannot be read: the sweep detects whether the namespace is gone.
func (pn *podNetwork) look(ctx context.Context, rec *ledger.Record) (inside map[string]plug.Inspected, lost string) {
	add := rec.Plug()
	if add == nil {
		return nil, ""
	}
	ns, err := pn.kernel.Enter(rec.Netns)
	if err != nil {
		return nil, ""
	}
	defer ns.Close()
	if inside, err = ns.Inspect(ctx); err != nil {
		return nil, ""
	}
	if i, there := inside[add.IfName]; there {
		lost = missingAddress(add, podAddresses(i))
	}
	return inside, lost
}

// missingAddress returns a message about an address of the default interface of an ADD
// that is not in have, "" if have has them all.
func missingAddress(add *ledger.Add, have []netip.Addr) string {
	for _, i := range add.Interfaces {
		if i.Name != add.IfName {
			continue
		}
		for _, s := range i.Addresses {
			if a, err := netip.ParsePrefix(s); err == nil && !slices.Contains(have, a.Addr()) {
				return fmt.Sprintf("interface %s has lost its address %s", i.Name, s)
			}
		}
	}
	return ""
}

// released writes the status of a PodAttachment after its sandbox, or a part of it, is
// gone. A sandbox whose record names no PodAttachment may have held any of the node, so
// released writes the status of all. If the sandbox still has other interfaces, they
// usually go in the next moment; the write waits so that it covers them too.
func (pn *podNetwork) released(r *ledger.Record) {
	if r.Attachment.UID == "" {
		for _, key := range pn.registry.Keys() {
			pn.statuses.Enqueue(key)
		}
	}
	if pa := pn.registry.Get(r.AttachmentKey()); pa != nil && pa.UID == r.Attachment.UID {
		if len(pn.ledger.Holding(pa.UID)) > 0 {
			pn.follower.consider(pa) // it may have waited for this to confirm spec.unplug
			pn.statuses.EnqueueSoon(apiserver.KeyOf(pa))
		} else {
			pn.statuses.Enqueue(apiserver.KeyOf(pa))
		}
		return
	}
	pn.ledger.Drop(r.Attachment.UID)
}

// changed handles a change of a PodAttachment at the API server.
func (pn *podNetwork) changed(pa *v1alpha1.PodAttachment, gone bool) {
	switch {
	case gone:
		pn.ledger.Drop(pa.UID)
	case pn.follower.consider(pa): // it has the status written afterwards
	default:
		pn.statuses.Enqueue(apiserver.KeyOf(pa))
	}
	if gone || pa.DeletionTimestamp != nil {
		for _, rec := range pn.ledger.Holding(pa.UID) {
			pn.reaper.queue.Add(rec.ContainerID)
		}
	}
}

// watch feeds the registry from the API server until ctx ends.
func (pn *podNetwork) watch(ctx context.Context) error {
	return pn.source.Watch(ctx, apiserver.Events{
		Updated: pn.registry.Update, Deleted: pn.registry.Delete, Synced: pn.registry.SetSynced,
		NetworksChanged: pn.host.NetworksChanged,
	})
}
