package controller

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fairlead.dev/fairlead/internal/controller/proof"
	"fairlead.dev/fairlead/internal/driver"
)

// reasonOf returns the event reason of a failed ensure, by the driver's sentinel error.
// Every failure is retried with a backoff up to half a minute, and at once when a pool
// changes. The reason shows a person whether waiting helps.
func reasonOf(err error) string {
	switch result := driver.Result(err); result {
	case "Unknown":
		return "NetworkNotReady"
	default:
		return "Network" + result
	}
}

// Metrics of the controller.
type Metrics struct {
	ensures  *prometheus.CounterVec
	releases *prometheus.CounterVec
	proofs   *prometheus.CounterVec
	waiting  prometheus.Gauge
	// of is the reconciler that is measured; nil before there is one.
	of atomic.Pointer[Attachments]
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
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "fairlead", Subsystem: "controller", Name: "waiting_pods",
			Help: "Pods that wait for their network, on the leader: their request cannot be served yet, or the controller has just started and still reads PodAttachments.",
		}),
	}
	// A series begins at 0, because Prometheus does not count the increase to its first sample.
	for _, p := range proof.All {
		m.proofs.WithLabelValues(string(p))
	}
	longestWait := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "fairlead", Subsystem: "controller", Name: "longest_wait_seconds",
		Help: "How long the first of the waiting pods has waited for its network, as the leader saw; 0 if none waits.",
	}, m.seconds(func(r *Attachments) time.Duration { return r.waiting.longest(time.Now()) }))
	longestRelease := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "fairlead", Subsystem: "controller", Name: "longest_release_seconds",
		Help: "How long the oldest release of a PodAttachment has been going on, as the leader saw; 0 if there is none.",
	}, m.seconds(func(r *Attachments) time.Duration { return r.marks.longest(time.Now()) }))
	present := func(c prometheus.Collector) prometheus.Collector { return whileLeading{c, &m.standsBy} }
	for _, c := range []prometheus.Collector{m.ensures, m.releases, m.proofs, present(m.waiting), present(longestWait), present(longestRelease)} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// measure makes the gauges of durations those of a reconciler. m may be nil.
func (m *Metrics) measure(r *Attachments) {
	if m != nil {
		m.of.Store(r)
	}
}

// seconds returns a function that measures a duration of the reconciler.
func (m *Metrics) seconds(of func(*Attachments) time.Duration) func() float64 {
	return func() float64 {
		r := m.of.Load()
		if r == nil {
			return 0
		}
		return of(r).Seconds()
	}
}

func (m *Metrics) ensured(err error) { m.ensures.WithLabelValues(driver.Result(err)).Inc() }

func (m *Metrics) released(err error) { m.releases.WithLabelValues(driver.Result(err)).Inc() }
