package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/cniproto/server"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/netdev/kinds"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/nft"
	"fairlead.dev/fairlead/internal/node/answer"
	"fairlead.dev/fairlead/internal/node/apiserver"
	"fairlead.dev/fairlead/internal/node/background"
	"fairlead.dev/fairlead/internal/node/direct"
	"fairlead.dev/fairlead/internal/node/filter"
	"fairlead.dev/fairlead/internal/node/health"
	"fairlead.dev/fairlead/internal/node/hostnet"
	"fairlead.dev/fairlead/internal/node/install"
	"fairlead.dev/fairlead/internal/node/plugin"
	"fairlead.dev/fairlead/internal/node/report"
	"fairlead.dev/fairlead/internal/node/wait"
	"fairlead.dev/fairlead/internal/run"
	"fairlead.dev/fairlead/internal/tracing"
)

const (
	// replays is how many spooled DELs are served at once.
	replays = 32

	// replayTimeout bounds how long the replay of spooled DELs keeps the socket closed.
	// One DEL normally takes less than a millisecond.
	replayTimeout = 10 * time.Second
)

// Config is the configuration of a Daemon and the parts that it works with.
type Config struct {
	// NodeName is the name of this node.
	NodeName string
	// Uplink is the interface to the other nodes. An empty one means the
	// interface of the default route.
	Uplink string
	// Encapsulation of the default network, and the VNI and UDP port of its tunnel.
	Encapsulation  hostnet.Encapsulation
	VNI, VXLANPort int
	// BootID identifies the current boot of the kernel.
	BootID string
	// StateDir is the folder of the records. Socket is the path of the CNI socket; the
	// plugin's spool and the heartbeat file are in the folder of Socket.
	StateDir, Socket string
	// AddTimeout bounds how long an ADD waits for the controller, the node's network and
	// other sandboxes.
	AddTimeout time.Duration
	// Install configures the installation for the runtime; nil installs nothing.
	Install *install.Options
	// KubeletMetrics also counts requests under the names of the kubelet's former
	// metrics.
	KubeletMetrics bool

	// Masquerade configures the translation of source addresses.
	Masquerade filter.Masquerade
	// ReservedPorts are the node's own ports, which no pod gets as host ports.
	ReservedPorts []answer.ReservedPort

	// Tracer takes the spans of requests; nil for none.
	Tracer *tracing.Tracer

	Kinds      *kinds.Table
	Namespaces Namespaces
	// Plugins executes GC and STATUS of networks whose interfaces other plugins make; nil
	// executes none.
	Plugins Plugins
	// Devices are those that the kubelet has allocated to pods.
	Devices      Devices
	HostKernel   hostnet.Kernel
	FilterKernel filter.Kernel
	Prober       direct.Prober
	// Firewall keeps the packet filter; the daemon runs it.
	Firewall *nft.Keeper
	API      API
	Source   Source
	Metrics  prometheus.Registerer
}

// Namespaces are the network namespaces of sandboxes (plug.Namespaces).
type Namespaces interface {
	report.Namespaces
	// Announce announces the addresses of an interface to its neighbors.
	Announce(ns *link.Namespace, i plug.Interface) error
}

// Plugins executes the verbs of CNI that concern a network that plugins make.
type Plugins interface {
	background.Plugins
	// Status returns nil if the plugins of a network can serve an ADD. Errors:
	// fault.ErrUnavailable, fault.ErrImpaired.
	Status(ctx context.Context, l v1alpha1.PluginList) error
}

// Devices are the devices of device plugins.
type Devices interface {
	// Of returns the IDs of the devices of a pod, by resource, sorted. Errors:
	// fault.ErrNotReady if they are not known.
	Of(ctx context.Context, namespace, name string) (map[string][]string, error)
}

// API is the part of the API server that the daemon calls, beside its watches.
type API interface {
	report.API
	hostnet.API
	wait.API
}

// Source watches and lists objects of the API server.
type Source interface {
	// Watch passes changes to e until ctx ends.
	Watch(ctx context.Context, e apiserver.Events) error
	// Networks lists every NodeNetwork, from memory.
	Networks(ctx context.Context) ([]v1alpha1.NodeNetwork, error)
}

// Daemon is the daemon of one node. It serves the runtime by a network plugin.
type Daemon struct {
	config   Config
	manager  *plugin.Manager
	services services
	serving  atomic.Bool
}

// services are those of a network plugin in addition to plugging and unplugging. A plugin
// that lacks them has idleServices.
type services interface {
	// Serve serves a request that is not an ADD, DEL or STATUS of the runtime: CHECK, GC,
	// and every request of a plugin that makes an interface and asks for its addresses.
	Serve(ctx context.Context, r cniproto.Request) (result []byte, err error)
	// Run works until ctx ends. It starts before the first request and ends after the
	// last.
	Run(ctx context.Context) error
	// Leave ends the waits of requests, when the daemon ends. The next daemon serves
	// the requests.
	Leave()
	// Ready returns nil if pods can be served, otherwise the reason.
	Ready() error
}

// idleServices are the services of a plugin that has none: there is nothing to compare, to
// collect or to wait for, and Status is current at any time.
type idleServices struct {
	status            func() error
	heartbeat, bootID string
}

// Serve is part of services.
func (idleServices) Serve(_ context.Context, r cniproto.Request) ([]byte, error) {
	if r.IPAM == "" || r.Verb == cniproto.VerbDel { // it had no addresses
		return nil, nil
	}
	return nil, fault.Errorf(fault.ErrUnserved, "%s: addresses are not served by the network plugin of this node", r.IPAM)
}

// Run keeps the heartbeat file.
func (s idleServices) Run(ctx context.Context) error {
	health.New(s.status, s.heartbeat, s.bootID).Run(ctx, func() <-chan struct{} { return nil })
	return nil
}

// Leave is part of services.
func (idleServices) Leave() {}

// Ready is the plugin's Status.
func (s idleServices) Ready() error { return s.status() }

// New builds a daemon around a network plugin.
func New(c Config, p plugin.Plugin) (*Daemon, error) {
	m, err := plugin.NewManager(p, c.Metrics, c.KubeletMetrics)
	if err != nil {
		return nil, err
	}
	d := &Daemon{config: c, manager: m}
	if s, has := p.(services); has {
		d.services = s
	} else {
		d.services = idleServices{status: m.Status, heartbeat: filepath.Join(filepath.Dir(c.Socket), cniproto.HeartbeatFile), bootID: c.BootID}
	}
	return d, nil
}

// Ready returns nil if pods can be served, otherwise an error with the reason.
func (d *Daemon) Ready() error {
	if !d.serving.Load() {
		return errors.New("the CNI socket is not open yet")
	}
	return d.services.Ready()
}

// Run adopts the state of the previous daemon, replays the DELs that came while no daemon
// ran, and serves until ctx ends. It leaves all pods as they are at the end.
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

	// The background tasks run until the last request is answered, because requests need
	// them.
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
		return server.Serve(front, l, d.handler(), server.Config{Metrics: d.config.Metrics, Leave: d.services.Leave})
	})
	return g.Wait()
}

// handler returns the handler of the requests of the CNI plugin.
func (d *Daemon) handler() server.Handler {
	if t := d.config.Tracer; t != nil {
		return traced{next: d, tracer: t}
	}
	return d
}

// Handle serves one request, which is valid CNI. Errors are *cniproto.Error.
func (d *Daemon) Handle(ctx context.Context, r cniproto.Request) (result []byte, err error) {
	log := logr.FromContextOrDiscard(ctx).WithValues("verb", r.Verb, "sandbox", r.ContainerID)
	ctx = logr.NewContext(ctx, log)
	result, err = d.serve(ctx, r)
	if errors.Is(err, fault.ErrLeaving) {
		return nil, server.ErrResend
	}
	if err != nil {
		log.V(run.LevelPod).Info("request failed", "args", r.Args, "reason", err.Error())
	}
	return result, answer.CNI(err)
}

// serve serves a request of the runtime or of another program that plugs pods, or of a
// plugin that makes an interface and asks for its addresses.
func (d *Daemon) serve(ctx context.Context, r cniproto.Request) ([]byte, error) {
	switch {
	case !slices.Contains(served, r.Verb):
		return nil, fault.Errorf(fault.ErrUnserved, "CNI_COMMAND: %q is not served: ADD, DEL, CHECK, STATUS and GC are", r.Verb)
	case r.IPAM != "":
		return d.services.Serve(ctx, r)
	case r.Verb == cniproto.VerbAdd:
		return d.manager.SetUpPod(ctx, r)
	case r.Verb == cniproto.VerbDel:
		return nil, d.manager.TearDownPod(ctx, r)
	case r.Verb == cniproto.VerbStatus:
		return nil, d.manager.Status()
	}
	return d.services.Serve(ctx, r)
}

// served are the verbs that the daemon serves.
var served = []string{cniproto.VerbAdd, cniproto.VerbDel, cniproto.VerbCheck, cniproto.VerbStatus, cniproto.VerbGC}

// background returns the tasks that run beside the socket.
func (d *Daemon) background() []func(context.Context) error {
	return []func(context.Context) error{d.upkeep, releaseMemory, d.services.Run}
}

// lockState takes the lock on the records, and waits for the previous daemon to end if it
// still runs.
func lockState(ctx context.Context, dir string) (*install.Lock, error) {
	lock, err := install.TryLock(dir)
	if !errors.Is(err, install.ErrLocked) {
		return lock, err
	}
	logr.FromContextOrDiscard(ctx).Info("waiting for another fairlead-node to end", "stateDir", dir)
	type result struct {
		lock *install.Lock
		err  error
	}
	got := make(chan result, 1)
	go func() {
		lock, err := install.WaitLock(dir)
		got <- result{lock, err}
	}()
	select {
	case r := <-got:
		return r.lock, r.err
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for another fairlead-node to end: %w", ctx.Err())
	}
}

// begin prepares the daemon for its first request. A DEL that fails delays no other
// request: the sweep retries it.
func (d *Daemon) begin(ctx context.Context) error {
	if err := server.MakeSpool(d.spool()); err != nil {
		return err
	}
	if !cniproto.Spoolable(d.spool()) {
		logr.FromContextOrDiscard(ctx).Info("the plugin cannot spool a DEL while this daemon is away: its socket is not in a run directory", "socket", d.config.Socket, "runDirectory", cniproto.RunDir)
	}
	if i := d.config.Install; i != nil {
		if err := install.Plugin(i.PluginSource, i.BinDir, i.Names); err != nil {
			return err
		}
	}
	if err := d.manager.Init(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, replayTimeout)
	defer cancel()
	if err := d.replay(ctx); err != nil {
		logr.FromContextOrDiscard(ctx).Error(err, "not every DEL was replayed, will be tried again", "after", background.SweepInterval)
	}
	return nil
}

// spool returns the folder in which the plugin spools DELs.
func (d *Daemon) spool() string {
	return filepath.Join(filepath.Dir(d.config.Socket), cniproto.SpoolDir)
}

// replay serves the DELs that the plugin spooled while no daemon ran. A DEL that fails
// stays in the spool and stops no other. The error holds those of all failed DELs.
func (d *Daemon) replay(ctx context.Context) error {
	log := logr.FromContextOrDiscard(ctx)
	spooled, err := server.ReadSpool(d.spool())
	errs := make([]error, len(spooled))
	var todo errgroup.Group
	todo.SetLimit(replays)
	for i, s := range spooled {
		todo.Go(func() error {
			if s.Damaged != nil {
				log.Error(s.Damaged, "spooled DEL was damaged, its file name suffices", "sandbox", s.Request.ContainerID)
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
		log.Info("replayed DELs that came while no daemon ran", "count", done)
	}
	return errors.Join(append(errs, err)...)
}

// tearDown serves one DEL.
func (d *Daemon) tearDown(ctx context.Context, r cniproto.Request) error {
	if r.IPAM == "" {
		return d.manager.TearDownPod(ctx, r)
	}
	_, err := d.services.Serve(ctx, r)
	return err
}

// upkeep replays spooled DELs each background.SweepInterval, since a plugin may have spooled one while
// the socket opened, and reinstalls the CNI plugin if it was removed.
func (d *Daemon) upkeep(ctx context.Context) error {
	tick := time.NewTicker(background.SweepInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		err := d.replay(ctx)
		if i := d.config.Install; i != nil && !i.Installed() {
			logr.FromContextOrDiscard(ctx).Info("the CNI plugin was removed, putting it back", "binDir", i.BinDir, "names", i.Names)
			err = errors.Join(err, install.Plugin(i.PluginSource, i.BinDir, i.Names))
		}
		if err != nil && ctx.Err() == nil {
			logr.FromContextOrDiscard(ctx).Error(err, "upkeep was not complete, will be tried again")
		}
	}
}
