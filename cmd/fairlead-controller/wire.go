package main

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/config"
	"fairlead.dev/fairlead/internal/controller"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/driver/native"
	"fairlead.dev/fairlead/internal/gc"
	"fairlead.dev/fairlead/internal/ipam/audit"
	"fairlead.dev/fairlead/internal/ipam/block"
	"fairlead.dev/fairlead/internal/ipam/heal"
	"fairlead.dev/fairlead/internal/leader"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/internal/run"
	"fairlead.dev/fairlead/internal/slim"
)

// parts is the program, wired and not yet running.
type parts struct {
	manager  manager.Manager
	store    *block.Store
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
	served, wrong := cfg.Nodes()
	underlay, err := cfg.Underlay()
	if err := errors.Join(wrong, err); err != nil {
		return nil, err
	}
	turns := controller.NewTurns(cfg.Workers)
	addresses, err := newAddresses(ctx, cfg, mgr, turns)
	if err != nil {
		return nil, err
	}
	store, pools, fed, healer := addresses.store, addresses.pools, addresses.fed, addresses.healer
	own, driverMetrics, err := newMetrics()
	if err != nil {
		return nil, err
	}
	// The drivers: a plain table.
	drivers := map[string]driver.Driver{native.Name: driverMetrics.Wrap(native.Name, addresses.driver)}
	further, err := newFurther(cfg, mgr, &native.Vacancy{Store: store, Synced: fed})
	if err != nil {
		return nil, err
	}
	var collector *gc.Collector
	attachments := controller.New(controller.Config{
		Client:             mgr.GetClient(),
		Live:               mgr.GetAPIReader(),
		Drivers:            drivers,
		DefaultDriver:      defaultDriver(cfg),
		DefaultAddressOnly: cfg.DefaultNetwork.Binding == config.BindingAddressOnly,
		Chosen:             further.chosen,
		FurtherDriver:      native.Name,
		Sources:            further.sources,
		Retry:              further.retryAnd(healer.OnHealed),
		Nodes:              served,
		NodeGrace:          cfg.NodeGrace.Duration,
		Events:             mgr.GetEventRecorder("fairlead-controller"),
		Metrics:            own,
		Turns:              turns,
		Synced:             fed,
		Healed:             healer.Healed,
		Left: func(ctx context.Context, of pod.Identity, interfaces []string) error {
			return collector.Left(ctx, drivers[native.Name], of, addresses.of(of, interfaces))
		},
		Given: func(o driver.Owner) time.Time { return store.Latest(native.HolderOf(o)) },
	})
	known := func() bool { return fed() && attachments.Listed() && healer.Healed() }
	collector = gc.New(gc.Config{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Drivers: drivers,
		Interval: cfg.GCInterval.Duration, Namespace: cfg.LeaderElection.Namespace, Synced: known, Busy: attachments.Busy,
	})
	auditor := heal.NewAuditor(heal.AuditConfig{Read: readFrom(mgr.GetCache()), Count: own.Findings, Interval: cfg.GCInterval.Duration, Synced: known})
	own.Leads(false)
	election, beacon, err := newElection(ctx, cfg.LeaderElection, kube, term{
		begins: func() { attachments.BeginTerm(); own.Leads(true) },
		ended:  func() { own.Leads(false) },
	})
	if err != nil {
		return nil, err
	}
	lead := election.Reconciler
	return &parts{manager: mgr, store: store, election: election}, errors.Join(
		addresses.setUp(ctx, mgr, lead),
		run.Remembered(metrics.Registry, append(further.remembered(), attachments.Remembered, store.Remembered, pools.Remembered, addresses.driver.Remembered)...),
		attachments.SetupWithManager(ctx, mgr, lead),
		(&native.PoolStatus{
			Client: mgr.GetClient(), Pools: pools, Store: store, Gauges: own, Synced: fed,
			Audited: auditor.Of, OnAudit: auditor.OnResult, Events: mgr.GetEventRecorder("fairlead-controller"),
		}).SetupWithManager(mgr, lead),
		(&native.Nodes{Client: mgr.GetClient(), Store: store, Served: served, DefaultNetwork: whoseDefault(cfg), Underlay: underlay}).SetupWithManager(ctx, mgr, lead),
		each(mgr, election.EachTerm(healer.Run), election.EachTerm(auditor.Run), election.EachTerm(collector.Run), store.Run, beacon.Run, election.Run),
		further.addTo(mgr, election),
		mgr.Add(newServer(cfg, watches, fed)),
		mgr.Add(giveBack(mgr.GetCache())),
	)
}

// each has every one of these run.
func each(mgr manager.Manager, runs ...func(context.Context) error) error {
	var errs []error
	for _, run := range runs {
		errs = append(errs, mgr.Add(everywhere(run)))
	}
	return errors.Join(errs...)
}

// addresses is the driver of our own pools and what it works on.
type addresses struct {
	store  *block.Store
	pools  *native.Pools
	claims *native.Claims
	driver *native.Driver
	healer *heal.Healer
	// fed reports whether blocks and pools are known.
	fed func() bool
}

func newAddresses(ctx context.Context, cfg config.Controller, mgr manager.Manager, turns controller.Turns) (*addresses, error) {
	store := block.New(block.Kube{Writer: mgr.GetClient(), Live: mgr.GetAPIReader()}, block.Config{Turn: turns.Wait})
	pools := native.NewPools()
	fed, err := native.Feed(ctx, mgr.GetCache(), store, pools)
	if err != nil {
		return nil, fmt.Errorf("watch blocks and pools: %w", err)
	}
	claims := &native.Claims{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Pools: pools, Store: store, Synced: fed}
	return &addresses{
		store: store, pools: pools, claims: claims, fed: fed,
		driver: native.New(native.Config{
			Pools: cfg.DefaultNetwork.Pools, Bridge: cfg.DefaultNetwork.Bridge, Claims: claims, Namespace: cfg.LeaderElection.Namespace,
		}, pools, store),
		healer: heal.New(heal.Config{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Store: store, Routed: pools.Routed, Synced: fed}),
	}, nil
}

// setUp registers what looks after reservations, claims and lost addresses.
func (a *addresses) setUp(ctx context.Context, mgr manager.Manager, lead func(reconcile.Reconciler) reconcile.Reconciler) error {
	return errors.Join(
		(&native.Reservations{Client: mgr.GetClient(), Pools: a.pools, Store: a.store, Synced: a.fed}).SetupWithManager(mgr, lead),
		a.claims.SetupWithManager(mgr, lead),
		a.healer.Watch(ctx, mgr.GetCache()),
	)
}

// of is what interfaces of a pod have.
func (a *addresses) of(owner pod.Identity, interfaces []string) []driver.Ref {
	var refs []driver.Ref
	for _, name := range interfaces {
		refs = append(refs, a.driver.Of(driver.Owner{PodUID: owner.UID, Interface: name, Namespace: owner.Namespace, PodName: owner.Name, NodeName: owner.Node})...)
	}
	return refs
}

// readFrom reads what an audit needs from caches.
func readFrom(c cache.Cache) func(context.Context) (audit.Cluster, error) {
	return func(ctx context.Context) (out audit.Cluster, err error) {
		var (
			errs         [6]error
			pools        v1alpha1.IPPoolList
			blocks       v1alpha1.IPBlockList
			reservations v1alpha1.IPReservationList
			claims       v1alpha1.IPClaimList
		)
		for i, list := range []client.ObjectList{&pools, &blocks, &reservations, &claims} {
			errs[i] = c.List(ctx, list, client.UnsafeDisableDeepCopy)
		}
		out.Pools, out.Blocks, out.Reservations, out.Claims = pools.Items, blocks.Items, reservations.Items, claims.Items
		out.Attachments, errs[4] = slim.All(ctx, c, &v1alpha1.PodAttachment{}, nil)
		out.Pods, errs[5] = slim.All(ctx, c, &corev1.Pod{}, pod.Holds)
		return out, errors.Join(errs[:]...)
	}
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
func newServer(cfg config.Controller, watches *watchHealth, fed func() bool) *run.Server {
	return &run.Server{
		Address: cfg.MetricsAddress,
		Metrics: metrics.Registry,
		Healthy: map[string]run.Check{"watches": watches.check},
		Ready: map[string]run.Check{"caches": func() error {
			if !fed() {
				return errors.New("blocks and pools are still being listed")
			}
			return nil
		}},
	}
}

// whoseDefault is what NodeNetworks say of the default network.
func whoseDefault(cfg config.Controller) string {
	if defaultDriver(cfg) == "" {
		return v1alpha1.DefaultNetworkOther
	}
	return ""
}

// defaultDriver is empty when the default network is not ours.
func defaultDriver(cfg config.Controller) string {
	if cfg.DefaultNetwork.Driver == config.DriverNone {
		return ""
	}
	return cfg.DefaultNetwork.Driver
}

// defaultPools are none when the default network is not ours.
func defaultPools(cfg config.Controller) []string {
	if defaultDriver(cfg) == "" {
		return nil
	}
	return cfg.DefaultNetwork.Pools
}

// further is what serves interfaces beside the default one.
type further struct {
	sources []pod.Source
	// chosen and networks are nil unless the source npwg is enabled.
	chosen   func(pod.Selection) ([]pod.Interface, error)
	networks *controller.Networks
}

// newFurther makes the sources that the configuration enables, in its order.
func newFurther(cfg config.Controller, mgr manager.Manager, vacancy *native.Vacancy) (further, error) {
	var f further
	flat, err := cfg.WhereaboutsFlatFile()
	if err != nil {
		return f, err
	}
	for _, name := range cfg.MultiVIFSources {
		if name == config.SourceNPWG {
			f.networks = controller.NewNetworks(controller.NetworksConfig{
				Informers: mgr.GetCache(), Client: mgr.GetClient(), FlatFile: flat,
				Namespace: cfg.LeaderElection.Namespace, DefaultPools: defaultPools(cfg), MaxPools: cfg.NetworkPoolsPerNamespace, Vacant: vacancy.Vacant,
			})
			f.sources, f.chosen = append(f.sources, f.networks.Source), f.networks.Chosen
		}
	}
	return f, nil
}

// retryAnd calls the pods that wait when a network changes, and whenever the other says
// so.
func (f further) retryAnd(other func(again func())) func(ctx context.Context, again func()) error {
	return func(ctx context.Context, again func()) error {
		other(again)
		if f.networks == nil {
			return nil
		}
		return f.networks.Watch(ctx, again)
	}
}

func (f further) remembered() []func() map[string]int {
	if f.networks == nil {
		return nil
	}
	return []func() map[string]int{f.networks.Remembered}
}

func (f further) addTo(mgr manager.Manager, election *leader.Election) error {
	if f.networks == nil {
		return nil
	}
	return mgr.Add(everywhere(func(ctx context.Context) error { return f.networks.Run(ctx, election.While) }))
}

// Run runs until ctx ends. The lease is given back on the way out, when all work has
// ended, so that a standby takes over at once.
func (p *parts) Run(ctx context.Context) error {
	debug.SetGCPercent(growthAtFirst)
	err := p.manager.Start(ctx)
	if err := p.election.Release(ctx); err != nil {
		log.FromContext(ctx).Error(err, "a standby has to wait until the lease runs out")
	}
	return err
}

// newManager connects to Kubernetes, with caches that hold no more of each
// object than is used. It knows nothing of leaders: see newElection.
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
		NewClient:               slim.NewClient,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("set up the controller: %w", err)
	}
	return mgr, watches, nil
}

// everywhere runs on the leader and on standbys, and knows by itself what it may do.
type everywhere func(context.Context) error

func (f everywhere) Start(ctx context.Context) error { return f(ctx) }

func (f everywhere) NeedLeaderElection() bool { return false }
