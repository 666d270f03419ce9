// Package upkeep runs the native driver in a program. It assembles the driver, serves the
// metrics of pools, and writes the NodeNetworks, which list the blocks that are routed to
// each node.
package upkeep

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/driver/native"
	"fairlead.dev/fairlead/internal/driver/native/ipclaim"
	"fairlead.dev/fairlead/internal/ipam/audit"
	"fairlead.dev/fairlead/internal/ipam/block"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/internal/run"
	"fairlead.dev/fairlead/internal/slim"
)

// Options of the driver in a running program.
type Options struct {
	// Pools of the default network, in the order in which they are tried.
	Pools []string
	// Namespace is the operator's own: its networks may draw from every pool.
	Namespace string
	// Nodes selects the nodes that get a NodeNetwork.
	Nodes labels.Selector
	// DefaultNetwork is NodeNetworkSpec.DefaultNetwork of every node.
	DefaultNetwork string
	// Underlay are the only networks in which nodes have addresses. If it is empty, the
	// addresses of the Node objects alone count.
	Underlay []netip.Prefix
	// AuditInterval is the time between two audits.
	AuditInterval time.Duration
	// Turn waits for the turn to write for a pod, and returns the function that ends it.
	Turn func(ctx context.Context) (done func())
	// Listed reports whether all PodAttachments that existed at the start have been read.
	Listed func() bool
	// Leads reports whether this process leads.
	Leads func() bool
	// Registry gets the metrics of pools.
	Registry prometheus.Registerer
}

// Assembly is the driver with everything that it runs.
type Assembly struct {
	driver.Parts
	// Vacancy reports which pools are unused.
	Vacancy *Vacancy

	options    Options
	pools      *native.Pools
	store      *block.Store
	claims     *ipclaim.Keeper
	references *ipclaim.References
	comparer   *audit.Comparer
	metrics    *Metrics
	fed        *native.Fed
	// driverWake is Wake of the driver alone.
	driverWake func(context.Context, driver.Wake) error
}

// Assemble builds the driver. It starts nothing: Setup does.
func Assemble(ctx context.Context, mgr manager.Manager, o Options) (*Assembly, error) {
	metrics, err := NewMetrics(o.Registry, o.Leads)
	if err != nil {
		return nil, fmt.Errorf("register the metrics of pools: %w", err)
	}
	store := block.New(block.Kube{Writer: mgr.GetClient(), Live: mgr.GetAPIReader()}, block.Config{Turn: o.Turn})
	pools := native.NewPools()
	fed, err := native.Feed(ctx, mgr.GetCache(), store, pools)
	if err != nil {
		return nil, fmt.Errorf("watch blocks and pools: %w", err)
	}
	references := ipclaim.NewReferences(mgr.GetCache())
	a := &Assembly{
		options: o, references: references, pools: pools, store: store, metrics: metrics, fed: fed,
		Vacancy:  &Vacancy{Store: store, Synced: fed.Synced},
		claims:   &ipclaim.Keeper{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Pools: pools, Store: store, References: references, Synced: fed.Synced},
		comparer: audit.NewComparer(audit.CompareConfig{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Store: store, Routed: pools.Routed, Withhold: pools.Withhold, Synced: fed.Synced}),
	}
	d := native.New(native.Config{Pools: o.Pools, Claims: a.claims, Machines: native.Machines{Cache: mgr.GetClient(), Live: mgr.GetAPIReader()}, Namespace: o.Namespace}, pools, store)
	if err := d.WatchMACs(ctx, mgr.GetCache()); err != nil {
		return nil, err
	}
	a.Parts = d.Parts()
	a.driverWake = a.Run.Wake
	a.Run.Synced, a.Run.Ready, a.Run.Wake, a.Run.Setup = fed.Synced, a.comparer.Compared, a.wake, a.setUp
	return a, nil
}

// wake is driver.Run.Wake.
func (a *Assembly) wake(ctx context.Context, w driver.Wake) error {
	a.comparer.OnCompared(w.Waiting)
	a.references.OnAdded(w.Waiting)
	go wakeWhenFed(ctx, a.fed, w)
	return a.driverWake(ctx, w)
}

// setUp is driver.Run.Setup.
func (a *Assembly) setUp(ctx context.Context, mgr manager.Manager, term driver.Term) error {
	known := func() bool { return a.fed.Synced() && a.options.Listed() && a.comparer.Compared() }
	auditor := audit.NewAuditor(audit.AuditorConfig{Read: readFrom(mgr.GetCache()), Count: a.metrics.Findings, Interval: a.options.AuditInterval, Synced: known})
	lead := term.Reconciler
	return errors.Join(
		(&native.Reservations{Client: mgr.GetClient(), Pools: a.pools, Store: a.store, Synced: a.fed.Synced}).SetupWithManager(mgr, lead),
		a.claims.SetupWithManager(mgr, lead),
		(&native.PoolStatus{
			Client: mgr.GetClient(), Pools: a.pools, Store: a.store, Gauges: a.metrics, Synced: a.fed.Synced,
			Audited: auditor.Of, OnAudit: auditor.OnResult, Events: mgr.GetEventRecorder("fairlead-controller"),
		}).SetupWithManager(mgr, lead),
		(&Nodes{
			Client: mgr.GetClient(), Store: a.store, Served: a.options.Nodes, DefaultNetwork: a.options.DefaultNetwork, Underlay: a.options.Underlay,
		}).SetupWithManager(ctx, mgr, lead),
		mgr.Add(run.Everywhere(term.EachTerm(a.comparer.Run))),
		mgr.Add(run.Everywhere(term.EachTerm(auditor.Run))),
		mgr.Add(run.Everywhere(a.store.Run)),
	)
}

// readFrom returns a function that reads the objects of an audit from a cache.
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

// wakeWhenFed calls the functions of w once the store and the pools have the complete
// initial state.
func wakeWhenFed(ctx context.Context, fed *native.Fed, w driver.Wake) {
	if fed.Wait(ctx) {
		w.Waiting()
		w.Leaving()
	}
}
