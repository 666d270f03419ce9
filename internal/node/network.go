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

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/nft"
	"fairlead.dev/fairlead/internal/node/apiserver"
	"fairlead.dev/fairlead/internal/node/filter"
	"fairlead.dev/fairlead/internal/node/health"
	"fairlead.dev/fairlead/internal/node/hostnet"
	"fairlead.dev/fairlead/internal/node/install"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/internal/node/locks"
	"fairlead.dev/fairlead/internal/node/report"
	"fairlead.dev/fairlead/internal/warn"
)

// RegistryPlugin is the name of the network plugin that plugs the interfaces of this
// node's PodAttachments.
const RegistryPlugin = "fairlead"

// Network is the network plugin "fairlead": it serves the requests of the CNI plugin
// by the PodAttachments of this node.
type Network struct {
	sandboxes  *sandboxes
	addresses  *addresses
	background *background
	waits      *waits
	source     Source
	kernel     Kernel
	registry   *apiserver.Registry
	ledger     *ledger.Ledger
	host       *hostnet.Network
	firewall   *filter.Firewall
	statuses   *report.Statuses
	events     *warn.Teller
	health     *health.Health
	// plugins executes STATUS of the default network; nil executes none.
	plugins Plugins
	// defaultStatus has the last STATUS of the plugins of the default network.
	defaultStatus atomic.Pointer[pluginStatus]
	stopOnce      sync.Once
	// install and socket are announced to the runtime; with a nil install nothing is.
	install *install.Options
	socket  string
	// confDir watches the directory of network configurations; nil with a nil install.
	confDir install.Watcher
	// node is the name of the node, for messages.
	node string
}

// NewPlugin returns the network plugin "fairlead".
func NewPlugin(c Config) (*Network, error) {
	m, err := newMetrics(c.Metrics)
	if err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	pn := &Network{
		source: c.Source, kernel: c.Kernel, install: c.Install, socket: c.Socket, plugins: c.Plugins, node: c.NodeName, events: report.NewWarnings(c.API, c.NodeName),
		host: hostnet.New(hostnet.Config{
			NodeName: c.NodeName, BootID: c.BootID, Bridge: c.Bridge, Uplink: c.Uplink,
			Encapsulation: c.Encapsulation, VNI: c.VNI, VXLANPort: c.VXLANPort,
			Kernel: c.HostKernel, Prober: c.Prober, API: c.API, Networks: c.Source.Networks,
		}),
	}
	if c.Install != nil {
		pn.confDir = install.NewDirWatch(c.Install.ConfDir)
	}
	pn.ledger = ledger.New(filepath.Join(c.StateDir, ledger.RecordsDir), c.BootID, pn.released)
	pn.registry = apiserver.NewRegistry(pn.changed)
	pn.health = health.New(pn.canServe, filepath.Join(filepath.Dir(c.Socket), cniproto.HeartbeatFile), c.BootID)
	pn.statuses = report.NewStatuses(c.API, pn.registry, pn.ledger, func(since time.Time) { m.step("acknowledge", since) }, m.ackFailures, pn.look)
	pn.statuses.Warnings = pn.events
	pn.waits = &waits{api: c.API, registry: pn.registry, addTimeout: c.AddTimeout, stopping: make(chan struct{}), node: c.NodeName}
	pn.background = &background{
		kernel: c.Kernel, registry: pn.registry, ledger: pn.ledger, statuses: pn.statuses, host: pn.host, metrics: m, plugins: c.Plugins,
		queue: report.NewQueue[task]("background"), executing: report.NewQueue[task]("background-plugins"), following: report.NewQueue[task]("background-hotplug"),
	}
	pn.firewall = filter.New(c.FilterKernel, c.Firewall, c.Bridge, c.Masquerade, nft.Tunnel{Port: c.VXLANPort, VNI: c.VNI}, pn.background.opened)
	pn.background.firewall = pn.firewall
	pn.host.SetFilter(pn.firewall.SetNode)
	pn.sandboxes = &sandboxes{
		waits: pn.waits, background: pn.background, kernel: c.Kernel, registry: pn.registry, ledger: pn.ledger, host: pn.host, firewall: pn.firewall,
		statuses: pn.statuses, events: pn.events, devices: c.Devices, metrics: m, bridge: c.Bridge, node: c.NodeName, reserved: c.ReservedPorts,
	}
	pn.background.sandboxes = pn.sandboxes
	pn.addresses = &addresses{
		kernel: c.Kernel, registry: pn.registry, ledger: pn.ledger, events: pn.events, sandboxes: pn.sandboxes, background: pn.background, node: c.NodeName,
	}
	if err := errors.Join(registerDropped(c.Metrics, pn.host.Dropped), registerLosses(c.Metrics, pn.statuses.Losses)); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return pn, nil
}

// Init adopts the state of the previous daemon, without the API server.
func (pn *Network) Init(ctx context.Context, l *locks.Locks) error {
	pn.sandboxes.locks, pn.addresses.locks, pn.background.locks = l, l, l
	if err := pn.background.adopt(ctx); err != nil {
		return err
	}
	pn.health.Begin()
	if err := pn.background.sweep(ctx); err != nil {
		logr.FromContextOrDiscard(ctx).Error(err, "sweep was not complete, will be tried again")
	}
	return nil
}

// SetUpPod plugs a sandbox.
func (pn *Network) SetUpPod(ctx context.Context, r cniproto.Request) ([]byte, error) {
	return pn.sandboxes.setUp(ctx, r)
}

// TearDownPod unplugs a sandbox.
func (pn *Network) TearDownPod(ctx context.Context, r cniproto.Request) error {
	return pn.sandboxes.tearDown(ctx, r)
}

// Serve serves CHECK, GC and the requests for addresses.
func (pn *Network) Serve(ctx context.Context, r cniproto.Request) ([]byte, error) {
	switch {
	case r.IPAM != "":
		return pn.addresses.serve(ctx, r)
	case r.Verb == cniproto.VerbCheck:
		return nil, pn.sandboxes.check(ctx, r)
	}
	return nil, pn.background.collect(ctx, r)
}

// Checks returns, by kind of binding, functions that return an error if a restart of the
// daemon may help.
func (pn *Network) Checks() map[string]func() error {
	checks := map[string]func() error{}
	for _, kind := range pn.kernel.Names() {
		checks[kind] = func() error { return pn.sandboxes.bindings.Check(kind) }
	}
	return checks
}

// Run runs all background tasks until ctx ends.
func (pn *Network) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, run := range []func(context.Context) error{
		pn.background.Run, pn.statuses.Run, pn.events.Start, pn.host.Run, pn.firewall.Run, pn.watch, pn.keepHealth, pn.keepPluginStatus, pn.announce,
	} {
		g.Go(func() error { return run(ctx) })
	}
	return g.Wait()
}

// Leave ends the waiting of requests, which the next daemon then serves.
func (pn *Network) Leave() { pn.stopOnce.Do(func() { close(pn.waits.stopping) }) }

// Ready returns nil if pods can be served, otherwise an error with the reason.
func (pn *Network) Ready() error {
	if a := pn.host.Announcement(); a != nil && a.Reason == install.ReasonNotInstalled {
		return errors.New(a.Message)
	}
	return pn.health.Seen()
}

// Status returns nil if an ADD can be served, otherwise an error with the reason.
func (pn *Network) Status() error { return pn.health.Answer() }

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
func (pn *Network) look(ctx context.Context, rec *ledger.Record) (inside map[string]plug.Inspected, lost string) {
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
func (pn *Network) released(r *ledger.Record) {
	if r.Attachment.UID == "" {
		for _, key := range pn.registry.Keys() {
			pn.statuses.Enqueue(key)
		}
	}
	if pa := pn.registry.Get(r.AttachmentKey()); pa != nil && pa.UID == r.Attachment.UID {
		if len(pn.ledger.Holding(pa.UID)) > 0 {
			pn.background.consider(pa) // it may have waited for this to confirm spec.unplug
			pn.statuses.EnqueueSoon(apiserver.KeyOf(pa))
		} else {
			pn.statuses.Enqueue(apiserver.KeyOf(pa))
		}
		return
	}
	pn.ledger.Drop(r.Attachment.UID)
}

// changed handles a change of a PodAttachment at the API server.
func (pn *Network) changed(pa *v1alpha1.PodAttachment, gone bool) {
	switch {
	case gone:
		pn.ledger.Drop(pa.UID)
	case pn.background.consider(pa): // it has the status written afterwards
	default:
		pn.statuses.Enqueue(apiserver.KeyOf(pa))
	}
	if gone || pa.DeletionTimestamp != nil {
		for _, rec := range pn.ledger.Holding(pa.UID) {
			pn.background.enqueue(reap, rec.ContainerID)
		}
	}
}

// watch feeds the registry from the API server until ctx ends.
func (pn *Network) watch(ctx context.Context) error {
	return pn.source.Watch(ctx, apiserver.Events{
		Updated: pn.registry.Update, Deleted: pn.registry.Delete, Synced: pn.registry.SetSynced,
		NetworksChanged: pn.host.NetworksChanged,
	})
}
