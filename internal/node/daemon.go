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
	"fairlead.dev/fairlead/internal/nft"
	"fairlead.dev/fairlead/internal/tracing"
)

const (
	// sweepInterval is how long what nobody tells the daemon of may stay: a
	// sandbox whose namespace went without a DEL, a link without a record.
	sweepInterval = time.Minute

	// replayTimeout bounds how long the DELs that were put aside keep the socket
	// closed. One takes less than a millisecond, unless something is wrong.
	replayTimeout = 10 * time.Second

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
	// Encapsulation of the default network, and the number and UDP port of its
	// tunnel.
	Encapsulation  Encapsulation
	VNI, VXLANPort int
	// BootID of the kernel.
	BootID string
	// StateDir holds the records, Socket is where the plugin is served; the
	// plugin's spool and the heartbeat lie beside it.
	StateDir, Socket string
	// AddTimeout bounds how long an ADD waits for others.
	AddTimeout time.Duration
	// Install says what is installed for the runtime; nil installs nothing.
	Install *Install
	// KubeletMetrics has the requests counted under the names that the kubelet
	// had for them too.
	KubeletMetrics bool

	// Masquerade says as whom pods leave the cluster.
	Masquerade Masquerade
	// ReservedPorts are the node's own, which no pod gets as host ports.
	ReservedPorts []ReservedPort

	// Tracer takes the spans of requests; nil for none.
	Tracer *tracing.Tracer

	Kernel       Kernel
	HostKernel   HostKernel
	FilterKernel FilterKernel
	RuleKernel   RuleKernel
	// Firewall keeps the packet filter; the daemon runs it.
	Firewall *nft.Keeper
	API      API
	Source   Source
	Metrics  prometheus.Registerer
}

// ReservedPort is a port of the host that is the node's own.
type ReservedPort struct {
	// Protocol is "tcp", "udp" or "sctp".
	Protocol string
	Port     uint16
	// Option is the field of the configuration that says so.
	Option string
}

// Install says what is installed for the container runtime.
type Install struct {
	// PluginSource is copied into BinDir, the configuration written into ConfDir.
	PluginSource, BinDir, ConfDir string
	// Names under which the plugin is installed. Without PluginName the default
	// network is somebody else's, and no configuration of it is written.
	Names []string
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

// Daemon is the daemon of one node: it has the runtime served by a network
// plugin.
type Daemon struct {
	config  Config
	manager *network.Manager
	// verbs is the plugin that NewPlugin made, nil when it is another.
	verbs   *verbs
	serving atomic.Bool
}

// New builds a daemon around a network plugin.
func New(c Config, p network.Plugin) (*Daemon, error) {
	m, err := network.NewManager(p, c.Metrics, c.KubeletMetrics)
	if err != nil {
		return nil, err
	}
	d := &Daemon{config: c, manager: m}
	d.verbs, _ = p.(*verbs)
	return d, nil
}

// Ready says why pods cannot be served, or nil.
func (d *Daemon) Ready() error {
	if !d.serving.Load() {
		return errors.New("the CNI socket is not open yet")
	}
	if d.verbs == nil {
		return d.manager.Status()
	}
	if a := d.verbs.host.announced.Load(); a != nil && a.Reason == reasonNotInstalled {
		return errors.New(a.Message)
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
	if err := d.begin(ctx); err != nil {
		return err
	}
	l, err := server.Listen(d.config.Socket)
	if err != nil {
		return err
	}
	log.Info("serving", "socket", d.config.Socket, "node", d.config.NodeName)
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
		c := server.Config{Metrics: d.config.Metrics}
		if d.verbs != nil {
			c.Leave = d.verbs.leave
		}
		return server.Serve(front, l, d.handler(), c)
	})
	return g.Wait()
}

// handler serves what the CNI plugin forwards.
func (d *Daemon) handler() server.Handler {
	var h server.Handler = plain{manager: d.manager}
	if d.verbs != nil {
		h = d.verbs
	}
	if t := d.config.Tracer; t != nil {
		h = traced{next: h, tracer: t}
	}
	return h
}

// background is what runs behind the socket.
func (d *Daemon) background() []func(context.Context) error {
	all := []func(context.Context) error{d.sweep, d.announce, giveBack}
	v := d.verbs
	if v == nil {
		return append(all, d.beat)
	}
	return append(all, v.remover.Run, v.acks.Run, v.reporter.Run, v.host.Run, v.firewall.Run, v.reaper.Run, v.mender.Run, v.watch, v.keepHealth)
}

// beat keeps the heartbeat of a plugin that knows at any time whether it can
// serve.
func (d *Daemon) beat(ctx context.Context) error {
	path := filepath.Join(filepath.Dir(d.config.Socket), cniproto.HeartbeatFile)
	newHealth(d.manager.Status, path, d.config.BootID).run(ctx, func() <-chan struct{} { return nil })
	return nil
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

// begin does what comes before the first request. A DEL that fails keeps nobody
// else waiting: the sweep tries it again.
func (d *Daemon) begin(ctx context.Context) error {
	if err := server.MakeSpool(d.spool()); err != nil {
		return err
	}
	if !cniproto.Spoolable(d.spool()) {
		logr.FromContextOrDiscard(ctx).Info("the plugin puts no DEL aside while this daemon is away: its socket is not in a run directory", "socket", d.config.Socket, "runDirectory", cniproto.RunDir)
	}
	if i := d.config.Install; i != nil {
		if err := installPlugin(i.PluginSource, i.BinDir, i.Names); err != nil {
			return err
		}
	}
	if err := d.manager.Init(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, replayTimeout)
	defer cancel()
	if err := d.replay(ctx); err != nil {
		logr.FromContextOrDiscard(ctx).Error(err, "not every DEL was replayed, will be tried again", "after", sweepInterval)
	}
	return nil
}

// spool is where the plugin puts DELs aside.
func (d *Daemon) spool() string {
	return filepath.Join(filepath.Dir(d.config.Socket), cniproto.SpoolDir)
}

// replay serves the DELs that the plugin put aside while no daemon was there. One
// that fails stays where it is and stops no other; the error is of all that did.
func (d *Daemon) replay(ctx context.Context) error {
	log := logr.FromContextOrDiscard(ctx)
	spooled, err := server.ReadSpool(d.spool())
	errs := make([]error, len(spooled))
	var todo errgroup.Group
	todo.SetLimit(removers)
	for i, s := range spooled {
		todo.Go(func() error {
			if s.Damaged != nil {
				log.Error(s.Damaged, "spooled DEL was damaged, its name says enough", "sandbox", s.Request.ContainerID)
			}
			if errs[i] = d.tearDown(ctx, s.Request); errs[i] == nil {
				errs[i] = s.Remove()
			}
			return nil
		})
	}
	_ = todo.Wait() // errs has them all
	done := 0
	for i, err := range errs {
		if err == nil {
			done++
			continue
		}
		errs[i] = fmt.Errorf("replay the DEL of sandbox %s: %w", spooled[i].Request.ContainerID, err)
	}
	if done > 0 {
		log.Info("DELs replayed that came while no daemon was there", "count", done)
	}
	return errors.Join(append(errs, err)...)
}

// tearDown serves one DEL.
func (d *Daemon) tearDown(ctx context.Context, r cniproto.Request) error {
	if r.IPAM == "" {
		return d.manager.TearDownPod(ctx, r)
	}
	if d.verbs == nil {
		return nil // nobody gave it addresses
	}
	_, err := d.verbs.handleIPAM(ctx, r)
	return err
}

// sweep removes, every minute, what nobody tells the daemon of, and puts back a
// plugin that somebody removed. A DEL may have been put aside in the moment in
// which the socket opened.
func (d *Daemon) sweep(ctx context.Context) error {
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		err := d.replay(ctx)
		if i := d.config.Install; i != nil && !i.there() {
			logr.FromContextOrDiscard(ctx).Info("the CNI plugin was removed, putting it back", "binDir", i.BinDir, "names", i.Names)
			err = errors.Join(err, installPlugin(i.PluginSource, i.BinDir, i.Names))
		}
		if d.verbs != nil {
			err = errors.Join(err, d.verbs.sweep(ctx))
		}
		if err != nil && ctx.Err() == nil {
			logr.FromContextOrDiscard(ctx).Error(err, "sweep was not complete, will be tried again")
		}
	}
}
