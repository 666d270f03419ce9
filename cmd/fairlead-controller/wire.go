package main

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/config"
	"fairlead.dev/fairlead/internal/controller"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/gc"
	"fairlead.dev/fairlead/internal/leader"
	"fairlead.dev/fairlead/internal/run"
	"fairlead.dev/fairlead/internal/slim"
)

// parts is the program, wired and not yet running.
type parts struct {
	manager  manager.Manager
	election *leader.Election
}

// newController wires everything and starts nothing.
func newController(ctx context.Context, cfg config.Controller) (*parts, error) {
	kube, err := run.KubeConfig(cfg.Kubeconfig, "fairlead-controller")
	if err != nil {
		return nil, err
	}
	mgr, watches, err := newManager(ctx, kube)
	if err != nil {
		return nil, err
	}
	own, driverMetrics, err := newMetrics()
	if err != nil {
		return nil, err
	}
	var attachments *controller.Attachments // the drivers use it when everything runs
	h := &host{
		cfg: cfg, mgr: mgr, turns: controller.NewTurns(cfg.Workers), connect: connectOnce(cfg.OpenStack),
		listed: func() bool { return attachments.Listed() }, leads: own.Leading,
	}
	table, err := newDrivers(ctx, h, driverMetrics)
	if err != nil {
		return nil, err
	}
	further, err := newFurther(ctx, h, table)
	if err != nil {
		return nil, err
	}
	served, err := cfg.Nodes()
	if err != nil {
		return nil, err
	}
	collector := gc.New(gc.Config{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Drivers: table, Interval: cfg.GCInterval.Duration,
		Namespace: cfg.LeaderElection.Namespace, Synced: h.listed, Busy: func() bool { return attachments.Busy() },
		Waiting: h.waiting,
	})
	attachments = controller.New(controller.Config{
		Client:        mgr.GetClient(),
		Live:          mgr.GetAPIReader(),
		Drivers:       table,
		DefaultDriver: defaultDriver(cfg),
		Rules:         further.rules,
		Selected:      further.selected,
		Retry:         further.retry,
		Nodes:         served,
		NodeGrace:     cfg.NodeGrace.Duration,
		Events:        mgr.GetEventRecorder("fairlead-controller"),
		Metrics:       own,
		Turns:         h.turns,
		Left:          collector.Left,
	})
	own.Leads(false)
	election, err := newElection(cfg.LeaderElection, kube, term{
		begins: func() { attachments.BeginTerm(); own.Leads(true) },
		ended:  func() { own.Leads(false) },
	})
	if err != nil {
		return nil, err
	}
	server := newServer(cfg, watches, table)
	return &parts{manager: mgr, election: election}, errors.Join(
		setUp(ctx, table, mgr, election),
		setUpFabric(h, election),
		attachments.SetupWithManager(ctx, mgr, election.Reconciler),
		each(mgr, election.EachTerm(attachments.Activations), election.EachTerm(collector.Run), election.Run),
		further.addTo(mgr, election),
		server.Register(metrics.Registry),
		mgr.Add(server),
		mgr.Add(run.Everywhere(freeMemory)),
	)
}

// each adds every function to the manager, to run on the leader and on standbys.
func each(mgr manager.Manager, runs ...func(context.Context) error) error {
	var errs []error
	for _, f := range runs {
		errs = append(errs, mgr.Add(run.Everywhere(f)))
	}
	return errors.Join(errs...)
}

// newMetrics registers the metrics of the reconciler and of the drivers.
func newMetrics() (*controller.Metrics, *driver.Metrics, error) {
	own, err := controller.NewMetrics(metrics.Registry)
	if err != nil {
		return nil, nil, err
	}
	drivers, err := driver.NewMetrics(metrics.Registry)
	return own, drivers, err
}

// newServer serves metrics and health.
func newServer(cfg config.Controller, watches *watchHealth, table driver.Table) *run.Server {
	return &run.Server{
		Address: cfg.MetricsAddress,
		Metrics: metrics.Registry,
		Healthy: map[string]run.Check{"watches": watches.check},
		Ready: map[string]run.Check{"caches": func() error {
			for name, d := range table {
				if !d.IsSynced() {
					return fmt.Errorf("driver %s still reads which addresses are taken", name)
				}
			}
			return nil
		}},
	}
}

// Run runs until ctx ends. When all work has ended it gives the lease back, so that a
// standby takes over at once.
func (p *parts) Run(ctx context.Context) error {
	debug.SetGCPercent(growth)
	err := p.manager.Start(ctx)
	if err := p.election.Release(ctx); err != nil {
		log.FromContext(ctx).Error(err, "cannot give the lease back: a standby waits until it runs out")
	}
	return err
}

// newManager connects to Kubernetes, with caches that hold only the used fields of each
// object. It has no leader election: see newElection.
func newManager(ctx context.Context, kube *rest.Config) (manager.Manager, *watchHealth, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, nil, err
	}
	watches := newWatchHealth(log.FromContext(ctx))
	mgr, err := ctrl.NewManager(kube, ctrl.Options{
		Scheme:                  scheme,
		Logger:                  log.FromContext(ctx),
		Metrics:                 metricsserver.Options{BindAddress: "0"}, // run.Server serves them
		GracefulShutdownTimeout: new(5 * time.Second),
		BaseContext:             func() context.Context { return log.IntoContext(context.Background(), log.FromContext(ctx)) },
		Cache:                   cache.Options{DefaultWatchErrorHandler: watches.failed},
		NewCache:                slim.NewCache,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("set up the controller: %w", err)
	}
	return mgr, watches, nil
}
