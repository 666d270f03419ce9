package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/cniproto/server"
	"fairlead.dev/fairlead/internal/network"
)

const (
	// sweepInterval is how long what nobody tells the daemon of may stay: a
	// sandbox whose namespace went without a DEL, a link without a record.
	sweepInterval = time.Minute

	recordsDir = "attachments"
	lockFile   = "lock"
)

// Config is what a Daemon works with.
type Config struct {
	// NodeName is the name of this node.
	NodeName string
	// Bridge and Uplink of the default network; no uplink takes the one of the
	// default route.
	Bridge, Uplink string
	// BootID of the kernel.
	BootID string
	// StateDir holds the records, Socket is where the plugin is served; the
	// plugin's spool and the heartbeat lie beside it.
	StateDir, Socket string
	// AddTimeout bounds how long an ADD waits for others.
	AddTimeout time.Duration
	// Install says what is installed for the runtime; nil installs nothing.
	Install *Install

	Kernel     Kernel
	HostKernel HostKernel
	API        API
	Source     Source
	Metrics    prometheus.Registerer
}

// Install says what is installed for the container runtime.
type Install struct {
	// PluginSource is copied into BinDir, the configuration written into ConfDir.
	PluginSource, BinDir, ConfDir string
}

// Source tells of what the API server has.
type Source interface {
	// Watch tells of it until ctx ends.
	Watch(ctx context.Context, e Events) error
	// Networks lists every NodeNetwork, from memory.
	Networks(ctx context.Context) ([]v1alpha1.NodeNetwork, error)
}

// Events is who a Source tells.
type Events struct {
	// Updated is called for a PodAttachment of this node that is new or changed.
	Updated func(*v1alpha1.PodAttachment)
	// Deleted is called for one that is gone.
	Deleted func(*v1alpha1.PodAttachment)
	// Synced is called once, after Updated was called for all there were.
	Synced func()
	// NetworksChanged is called when the NodeNetworks can be listed, and after
	// each change among them.
	NetworksChanged func()
}

// Daemon is the daemon of one node.
type Daemon struct {
	config  Config
	verbs   *verbs
	reaper  *reaper
	serving atomic.Bool
}

// New builds a daemon.
func New(c Config) (*Daemon, error) {
	m, err := newMetrics(c.Metrics)
	if err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	v := &verbs{
		kernel: c.Kernel, api: c.API, metrics: m, addTimeout: c.AddTimeout, node: c.NodeName,
		manager: network.NewManager(time.Now),
		host:    newHostNet(c.HostKernel, c.API, c.Source.Networks, c),
	}
	d := &Daemon{config: c, verbs: v, reaper: &reaper{verbs: v, queue: newQueue[string]("reaper")}}
	v.ledger = newLedger(filepath.Join(c.StateDir, recordsDir), c.BootID, d.released)
	v.registry = newRegistry(d.changed)
	v.remover = newRemover(c.Kernel, v.ledger)
	v.health = newHealth(v.look, filepath.Join(filepath.Dir(c.Socket), cniproto.HeartbeatFile), c.BootID)
	v.mender = &mender{verbs: v, queue: newQueue[string]("mender")}
	v.acks = newAcknowledger(c.API, v.registry, v.ledger, m)
	return d, nil
}

// released has the status written of the PodAttachment that a sandbox held. One
// whose record was damaged may have held any.
func (d *Daemon) released(r *record) {
	v := d.verbs
	if r.Attachment.UID == "" {
		for _, key := range v.registry.keys() {
			v.acks.enqueue(key)
		}
	}
	if pa := v.registry.get(r.attachmentKey()); pa != nil && pa.UID == r.Attachment.UID {
		v.acks.enqueue(keyOf(pa))
		return
	}
	v.ledger.drop(r.Attachment.UID)
}

// changed looks after a PodAttachment that the API server told of.
func (d *Daemon) changed(pa *v1alpha1.PodAttachment, gone bool) {
	v := d.verbs
	if gone {
		v.ledger.drop(pa.UID)
	} else {
		v.acks.enqueue(keyOf(pa))
	}
	if gone || pa.DeletionTimestamp != nil {
		for _, containerID := range v.ledger.holding(pa.UID) {
			d.reaper.queue.Add(containerID)
		}
	}
}

// Ready says why pods cannot be served, or nil.
func (d *Daemon) Ready() error {
	if !d.serving.Load() {
		return errors.New("the CNI socket is not open yet")
	}
	return d.verbs.health.told.Load().seen
}

// Run adopts what the daemon before left, replays the DELs that came while there
// was none, and serves until ctx ends. Nothing of a pod is touched at the end.
func (d *Daemon) Run(ctx context.Context) error {
	log := logr.FromContextOrDiscard(ctx)
	lock, err := lockState(ctx, d.config.StateDir)
	if err != nil {
		return err
	}
	defer lock.Unlock() //nolint:errcheck // the process ends
	if i := d.config.Install; i != nil {
		if err := installPlugin(i.PluginSource, i.BinDir); err != nil {
			return err
		}
	}
	if err := d.verbs.adopt(ctx); err != nil {
		return err
	}
	if err := d.replay(ctx); err != nil {
		return err
	}
	l, err := server.Listen(d.config.Socket)
	if err != nil {
		return err
	}
	log.Info("serving", "socket", d.config.Socket, "node", d.config.NodeName, "sandboxes", len(d.verbs.ledger.all()))
	d.serving.Store(true)

	// What requests need goes on until the last one is answered.
	behind, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, behind := errgroup.WithContext(behind)
	for _, run := range d.background() {
		g.Go(func() error { return run(behind) })
	}
	g.Go(func() error {
		defer stop()
		front, cancel := context.WithCancel(ctx)
		defer cancel()
		context.AfterFunc(behind, cancel)
		return server.Serve(front, l, d.verbs, server.Config{Metrics: d.config.Metrics})
	})
	return g.Wait()
}

// background is what runs behind the socket.
func (d *Daemon) background() []func(context.Context) error {
	v := d.verbs
	return []func(context.Context) error{
		v.remover.Run, v.acks.Run, v.host.Run, d.sweep, d.reaper.Run, v.mender.Run, d.watch, d.announce, v.keepHealth,
	}
}

// lockState waits for the daemon before, if there is one, to end.
func lockState(ctx context.Context, dir string) (*Lock, error) {
	lock, err := TryLock(dir)
	if !errors.Is(err, ErrLocked) {
		return lock, err
	}
	logr.FromContextOrDiscard(ctx).Info("waiting for another fairlead-node to end", "stateDir", dir)
	type result struct {
		lock *Lock
		err  error
	}
	got := make(chan result, 1)
	go func() {
		lock, err := WaitLock(dir)
		got <- result{lock, err}
	}()
	select {
	case r := <-got:
		return r.lock, r.err
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for another fairlead-node to end: %w", ctx.Err())
	}
}

// replay serves the DELs that the plugin put aside while no daemon was there.
func (d *Daemon) replay(ctx context.Context) error {
	log := logr.FromContextOrDiscard(ctx)
	dir := filepath.Join(filepath.Dir(d.config.Socket), cniproto.SpoolDir)
	spooled, err := cniproto.ReadSpool(dir)
	if err != nil {
		return err
	}
	for _, s := range spooled {
		if s.Damaged != nil {
			log.Error(s.Damaged, "spooled DEL was damaged, its name says enough", "sandbox", s.Request.ContainerID)
		}
		if err := d.verbs.del(ctx, s.Request.ContainerID, s.Request.IfName); err != nil {
			return fmt.Errorf("replay the DEL of sandbox %s: %w", s.Request.ContainerID, err)
		}
		if err := s.Remove(); err != nil {
			return err
		}
	}
	if len(spooled) > 0 {
		log.Info("DELs replayed that came while no daemon was there", "count", len(spooled))
	}
	return nil
}

// watch keeps the registry.
func (d *Daemon) watch(ctx context.Context) error {
	v := d.verbs
	return d.config.Source.Watch(ctx, Events{
		Updated: v.registry.update, Deleted: v.registry.delete, Synced: v.registry.setSynced,
		NetworksChanged: v.host.networksChanged,
	})
}

// sweep removes, every minute, what nobody tells the daemon of. A DEL may have
// been put aside in the moment in which the socket opened.
func (d *Daemon) sweep(ctx context.Context) error {
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := errors.Join(d.replay(ctx), d.verbs.sweep(ctx)); err != nil && ctx.Err() == nil {
			logr.FromContextOrDiscard(ctx).Error(err, "sweep was not complete, will be tried again")
		}
	}
}

// announce tells the runtime of the network when the first ADD can be served.
// The configuration stays when the daemon ends: without it a runtime cannot
// stop pods.
func (d *Daemon) announce(ctx context.Context) error {
	i := d.config.Install
	if i == nil {
		return nil
	}
	select {
	case <-d.verbs.registry.ready:
	case <-ctx.Done():
		return nil
	}
	if _, err := d.verbs.host.await(ctx); err != nil {
		return nil //nolint:nilerr // it waits until ctx ends
	}
	if err := installConflist(i.ConfDir, d.config.Socket); err != nil {
		return err
	}
	logr.FromContextOrDiscard(ctx).Info("pods can be served", "conflist", filepath.Join(i.ConfDir, ConflistName))
	return nil
}
