// Package controller creates a PodAttachment for each pod and releases it when the pod is
// gone. It is the only writer of PodAttachments; in this package a record is a
// PodAttachment. One reconcile function works on one pod name, with the pod and all
// records of that name (reconcile.go, which has the events that enqueue a pod too). An
// Ensurer makes the records (ensure.go) and keeps them up to date while their pods run
// (running.go). A Releaser releases them (release.go) when it is proved that nothing uses
// them (prove.go). The package calls drivers through their contract and contains nothing
// that is special to one of them.
package controller

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fairlead.dev/fairlead/internal/controller/proof"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/internal/warn"
)

// Config of the reconciler.
type Config struct {
	// Client reads from the informers' caches and writes to the API server.
	Client client.Client
	// Live reads from the API server, where the cache may be too old to decide.
	Live client.Reader
	// Drivers by name.
	Drivers driver.Table
	// DefaultDriver names the driver of the default network's interface; empty if another
	// CNI plugin obtains that interface and its addresses.
	DefaultDriver string
	// Rules for the interfaces of pods. New sets Default.
	Rules pod.Rules
	// Selected returns the interfaces for networks that a running pod selects, and has not
	// got yet. It is called for pods that Fairlead attaches.
	Selected func(p *corev1.Pod, add []pod.Selection) ([]pod.Interface, error)
	// Nodes selects the nodes that are served, by their labels.
	Nodes labels.Selector
	// NodeGrace is how long a Node must have been deleted before its records may be
	// released: by then nothing can be plugged there any more.
	NodeGrace time.Duration
	// Events are posted on pods.
	Events events.EventRecorder
	// Metrics of the reconciler.
	Metrics *Metrics
	// Turns bounds the writes to the API server that run at the same time.
	Turns Turns
	// Retry calls again, until ctx ends, whenever waiting pods may get their network for
	// a reason that no driver reports. Nil if there is no such reason.
	Retry func(ctx context.Context, again func()) error
	// Now is the clock for all durations in the evidence about nodes; time.Now if nil.
	Now func() time.Time
	// Left gives back the interfaces that drivers, by name, hold for a pod that is gone
	// and had no record yet. If it is nil, garbage collection gives them back later.
	Left func(ctx context.Context, of pod.Identity, held map[string][]driver.Ref) error
}

// Turns bounds the writes for pods that run at the same time; nil is no bound.
type Turns chan struct{}

// NewTurns returns Turns for n writes at once.
func NewTurns(n int) Turns { return make(Turns, n) }

// podsPerWrite is the number of workers for each write that may run at the same time.
// Most workers wait for addresses, and addresses that are asked for together are written
// together.
const podsPerWrite = 8

// Wait waits for a turn, or for the end of ctx, and returns a function that ends the
// turn.
func (t Turns) Wait(ctx context.Context) (done func()) {
	select {
	case t <- struct{}{}:
		return func() { <-t }
	case <-ctx.Done():
		return func() {}
	}
}

// do calls write in its turn: first come, first served. Errors: the cause of the end of
// ctx, and those of write.
func (t Turns) do(ctx context.Context, write func() error) error {
	if t == nil {
		return write()
	}
	defer t.Wait(ctx)()
	if ctx.Err() != nil {
		return fmt.Errorf("waiting for the writes for other pods: %w", context.Cause(ctx))
	}
	return write()
}

// Attachments is the reconciler. Its steps are those of an Ensurer and of a Releaser,
// which share a memory.
type Attachments struct {
	client   client.Client
	drivers  driver.Table
	nodes    nodes
	again    func(ctx context.Context, again func()) error // Config.Retry
	workers  int
	now      func() time.Time
	memory   *memory
	ensurer  *Ensurer
	releaser *Releaser
	// warnings are the events that explain why pods wait.
	warnings *warn.Teller
	// queue has the pods that wait for a worker; working counts the busy workers.
	queue   atomic.Pointer[queue]
	working atomic.Int64
}

// queue has the pods to reconcile.
type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// WarningsOf returns the configuration of warnings that are written with a client.
func WarningsOf(c client.Client) warn.Config {
	return warn.Config{Writer: eventWriter{c}, Controller: reporter, Instance: reporter}
}

// reporter is the reporting controller of events, as client-go's recorder sets it.
const reporter = "fairlead-controller"

// eventWriter is warn.Writer.
type eventWriter struct{ to client.Client }

// CreateEvent implements warn.Creator.
func (w eventWriter) CreateEvent(ctx context.Context, e *eventsv1.Event) error {
	return w.to.Create(ctx, e)
}

// PatchEvent implements warn.Writer.
func (w eventWriter) PatchEvent(ctx context.Context, key types.NamespacedName, patch []byte) error {
	e := &eventsv1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	return w.to.Patch(ctx, e, client.RawPatch(types.MergePatchType, patch))
}

// New returns a reconciler.
func New(cfg Config) *Attachments {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	cfg.Rules.Default = cfg.DefaultDriver != ""
	m, warnings, served := newMemory(), warn.New(WarningsOf(cfg.Client)), nodes{cfg.Client, cfg.Nodes}
	if cfg.Metrics != nil {
		cfg.Metrics.of.Store(m)
	}
	return &Attachments{
		client: cfg.Client, drivers: cfg.Drivers, nodes: served, again: cfg.Retry, workers: cap(cfg.Turns) * podsPerWrite, now: cfg.Now,
		memory: m, warnings: warnings,
		ensurer: &Ensurer{
			client: cfg.Client, live: cfg.Live, drivers: cfg.Drivers, nodes: served, turns: cfg.Turns, metrics: cfg.Metrics,
			memory: m, warnings: warnings, selected: cfg.Selected,
			requests: requests{from: cfg.Client, drivers: cfg.Drivers, defaultDriver: cfg.DefaultDriver, rules: cfg.Rules},
		},
		releaser: &Releaser{
			client: cfg.Client, live: cfg.Live, drivers: cfg.Drivers, nodes: served, turns: cfg.Turns, metrics: cfg.Metrics,
			memory: m, warnings: warnings, events: cfg.Events, grace: cfg.NodeGrace, now: cfg.Now, giveBackHeld: cfg.Left,
		},
	}
}

// BeginTerm forgets the writes and the waiting times that this process remembers of a
// former term, since another leader may have changed things meanwhile. Forgotten writes
// are made again, and forgotten waiting times begin anew.
func (r *Attachments) BeginTerm() {
	r.memory.beginTerm()
	r.warnings.Clear()
}

// Busy reports whether a worker has a pod or a pod is in the queue.
func (r *Attachments) Busy() bool {
	q := r.queue.Load()
	return r.working.Load() > 0 || q != nil && (*q).Len() > 0
}

// Listed reports whether all records have been read that existed when this process began.
func (r *Attachments) Listed() bool { return !r.memory.reading.Load() }

// Activations runs Activation.Changes of every driver until ctx ends, and enqueues each pod
// that a driver reports. It runs in each term of this process as the leader. It returns
// nil.
func (r *Attachments) Activations(ctx context.Context) error {
	changed := func(o driver.Owner) {
		if q := r.queue.Load(); q != nil { // without a queue no record has been reconciled yet
			(*q).Add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: o.Namespace, Name: o.PodName}})
		}
	}
	var all errgroup.Group
	for _, d := range r.drivers {
		if d.Activation.Changes != nil {
			all.Go(func() error { d.Activation.Changes(ctx, changed); return nil })
		}
	}
	return all.Wait()
}

// Metrics of the controller.
type Metrics struct {
	ensures  *prometheus.CounterVec
	releases *prometheus.CounterVec
	proofs   *prometheus.CounterVec
	// of is the memory that is measured; nil before there is one.
	of atomic.Pointer[memory]
	// standsBy is true while another process leads; that process reports the gauges.
	standsBy atomic.Bool
}

// Leads sets whether this process leads. While it does not, the gauge of waiting pods is
// not exported.
func (m *Metrics) Leads(leads bool) { m.standsBy.Store(!leads) }

// Leading reports whether this process leads.
func (m *Metrics) Leading() bool { return !m.standsBy.Load() }

// whileLeading is a collector that is silent while this process stands by.
type whileLeading struct {
	prometheus.Collector
	standsBy *atomic.Bool
}

// Collect implements prometheus.Collector.
func (w whileLeading) Collect(ch chan<- prometheus.Metric) {
	if !w.standsBy.Load() {
		w.Collector.Collect(ch)
	}
}

// NewMetrics registers the controller's metrics.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		ensures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "fairlead", Subsystem: "controller", Name: "ensures_total",
			Help: "Attempts to give a pod its network. By result: OK, Invalid, Exhausted, NotFound, Conflict, Unavailable, Unknown (another error).",
		}, []string{"result"}),
		releases: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "fairlead", Subsystem: "controller", Name: "releases_total",
			Help: "Attempts to release the network of a pod. By result: OK, Invalid, Exhausted, NotFound, Conflict, Unavailable, Unknown (another error).",
		}, []string{"result"}),
		proofs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "fairlead", Subsystem: "release", Name: "proofs_total",
			Help: "Networks of pods released, by the proof that nothing uses them. By proof: detached (the node's confirmation), rebooted, out_of_service, node_deleted, reclaimed.",
		}, []string{"proof"}),
	}
	// A series begins at 0, because Prometheus does not count the increase to its first sample.
	for _, p := range proof.All {
		m.proofs.WithLabelValues(string(p))
	}
	waiting := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "fairlead", Subsystem: "controller", Name: "waiting_pods",
		Help: "Pods that wait for their network, on the leader: their request cannot be served yet, or the controller has just started and still reads PodAttachments.",
	}, m.measure(func(of *memory) float64 { return float64(len(of.waiting())) }))
	longestWait := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "fairlead", Subsystem: "controller", Name: "longest_wait_seconds",
		Help: "How long the first of the waiting pods has waited for its network, as the leader saw; 0 if none waits.",
	}, m.measure(func(of *memory) float64 { return of.longestWait(time.Now()).Seconds() }))
	longestRelease := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "fairlead", Subsystem: "controller", Name: "longest_release_seconds",
		Help: "How long the oldest release of a PodAttachment has been going on, as the leader saw; 0 if there is none.",
	}, m.measure(func(of *memory) float64 { return of.longestRelease(time.Now()).Seconds() }))
	present := func(c prometheus.Collector) prometheus.Collector { return whileLeading{c, &m.standsBy} }
	for _, c := range []prometheus.Collector{m.ensures, m.releases, m.proofs, present(waiting), present(longestWait), present(longestRelease)} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// measure returns a function that measures the memory of the reconciler; 0 if there is no
// reconciler yet.
func (m *Metrics) measure(of func(*memory) float64) func() float64 {
	return func() float64 {
		if r := m.of.Load(); r != nil {
			return of(r)
		}
		return 0
	}
}
