package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/netdev/host"
	"fairlead.dev/fairlead/internal/netdev/kinds"
	"fairlead.dev/fairlead/internal/nft"
	"fairlead.dev/fairlead/internal/node/answer"
	"fairlead.dev/fairlead/internal/node/apiserver"
	"fairlead.dev/fairlead/internal/node/background"
	"fairlead.dev/fairlead/internal/node/filter"
	"fairlead.dev/fairlead/internal/node/health"
	"fairlead.dev/fairlead/internal/node/hostnet"
	"fairlead.dev/fairlead/internal/node/install"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/internal/node/locks"
	"fairlead.dev/fairlead/internal/node/report"
	"fairlead.dev/fairlead/internal/node/wait"
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
	background *background.Background
	waits      *wait.Waits
	source     Source
	kinds      *kinds.Table
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
		source: c.Source, kinds: c.Kinds, install: c.Install, socket: c.Socket, plugins: c.Plugins, node: c.NodeName, events: report.NewWarnings(c.API, c.NodeName),
		host: hostnet.New(hostnet.Config{
			NodeName: c.NodeName, BootID: c.BootID, Uplink: c.Uplink,
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
	pn.statuses = report.NewStatuses(report.Config{
		API: c.API, Registry: pn.registry, Ledger: pn.ledger, Namespaces: c.Namespaces, Events: pn.events,
		Took: m.steps.WithLabelValues("acknowledge"), Failed: m.ackFailures,
	})
	pn.waits = wait.New(wait.Config{
		API: c.API, Registry: pn.registry, Statuses: pn.statuses, Events: pn.events, Steps: m.steps, AddTimeout: c.AddTimeout, Node: c.NodeName,
	})
	pn.firewall = filter.New(c.FilterKernel, c.Firewall, c.Masquerade, nft.Tunnel{Port: c.VXLANPort, VNI: c.VNI}, pn.rulesChanged)
	pn.host.SetFilter(pn.firewall.SetNode)
	pn.background = background.New(background.Config{
		Kinds: c.Kinds, Registry: pn.registry, Ledger: pn.ledger, Firewall: pn.firewall, Statuses: pn.statuses, Host: pn.host, Plugins: c.Plugins, Swept: m.swept,
	})
	pn.host.OnReaddressed(pn.background.SweepSoon)
	pn.sandboxes = &sandboxes{
		waits: pn.waits, background: pn.background, kinds: c.Kinds, namespaces: c.Namespaces, registry: pn.registry, ledger: pn.ledger, host: pn.host, firewall: pn.firewall,
		statuses: pn.statuses, events: pn.events, devices: c.Devices, metrics: m, node: c.NodeName, reserved: c.ReservedPorts,
	}
	pn.addresses = &addresses{
		namespaces: c.Namespaces, registry: pn.registry, ledger: pn.ledger, events: pn.events, sandboxes: pn.sandboxes, background: pn.background, node: c.NodeName,
	}
	if err := errors.Join(registerDropped(c.Metrics, pn.host.Dropped), registerLosses(c.Metrics, pn.statuses.Losses)); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return pn, nil
}

// Init adopts the state of the previous daemon, without the API server.
func (pn *Network) Init(ctx context.Context, l *locks.Locks) error {
	pn.sandboxes.locks, pn.addresses.locks = l, l
	if err := pn.background.Adopt(ctx, l, pn.sandboxes); err != nil {
		return err
	}
	pn.health.Begin()
	if err := pn.background.Sweep(ctx); err != nil {
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
	return nil, collect(ctx, pn.background, r, true)
}

// Checks returns, by kind of binding, functions that return an error if a restart of the
// daemon may help.
func (pn *Network) Checks() map[string]func() error {
	checks := map[string]func() error{}
	for _, kind := range pn.kinds.Names() {
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
func (pn *Network) Leave() { pn.waits.Leave() }

// Ready returns nil if pods can be served, otherwise an error with the reason.
func (pn *Network) Ready() error {
	if a := pn.host.Announcement(); a != nil && a.Reason == install.ReasonNotInstalled {
		return errors.New(a.Message)
	}
	return pn.health.Seen()
}

// Status returns nil if an ADD can be served, otherwise an error with the reason.
func (pn *Network) Status() error { return pn.health.Answer() }

// collect serves a GC. The plugins that Fairlead executes get one too if execute is true.
func collect(ctx context.Context, b *background.Background, r cniproto.Request, execute bool) error {
	listed, given, err := answer.ValidSandboxes(r.Config)
	if err != nil || !given {
		return err
	}
	return aggregate(b.Collect(ctx, listed, execute))
}

// aggregate returns one error for the runtime that holds the errors of several sandboxes,
// nil if there is none.
func aggregate(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = err.Error()
	}
	slices.Sort(texts)
	return &cniproto.Error{
		Code:    cniproto.AsError(answer.CNI(errors.Join(errs...))).Code,
		Msg:     "GC is not complete: " + plural(len(errs), "error"),
		Details: strings.Join(texts, "; "),
	}
}

// rulesChanged handles a change of the packet filter by another program.
func (pn *Network) rulesChanged(c host.RuleChange) {
	pn.host.RulesChanged(c)
	pn.background.RulesChanged(c)
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
			pn.background.Consider(pa) // it may have waited for this to confirm spec.unplug
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
	case pn.background.Consider(pa): // it has the status written afterwards
	default:
		pn.statuses.Enqueue(apiserver.KeyOf(pa))
	}
	if gone || pa.DeletionTimestamp != nil {
		for _, rec := range pn.ledger.Holding(pa.UID) {
			pn.background.Enqueue(background.Reap, rec.ContainerID)
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
