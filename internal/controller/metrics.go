package controller

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"fairlead.dev/fairlead/internal/driver"
)

// reasonOf is the event reason of a failed ensure, by the driver's sentinel.
// Every failure is retried with backoff up to half a minute, and at once when
// a pool changes; the reason tells a person whether waiting will help.
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
	// standsBy is true while another process leads, which tells how things are.
	standsBy atomic.Bool
}

// Leads says whether this process leads from now on. While it does not nothing is
// told of how many pods wait.
func (m *Metrics) Leads(leads bool) { m.standsBy.Store(!leads) }

// Leading reports whether this process leads.
func (m *Metrics) Leading() bool { return !m.standsBy.Load() }

// told collects while this process leads.
type told struct {
	prometheus.Collector
	not *atomic.Bool
}

// Collect is of prometheus.Collector.
func (t told) Collect(ch chan<- prometheus.Metric) {
	if !t.not.Load() {
		t.Collector.Collect(ch)
	}
}

// NewMetrics registers the controller's metrics.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		ensures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "fairlead", Subsystem: "controller", Name: "ensures_total",
			Help: "Attempts to give a pod its network, by result.",
		}, []string{"result"}),
		releases: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "fairlead", Subsystem: "controller", Name: "releases_total",
			Help: "Attempts to take a pod's network back, by result.",
		}, []string{"result"}),
		proofs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "fairlead", Subsystem: "release", Name: "proofs_total",
			Help: "Networks of pods taken back, by what showed that nothing uses them: detached, rebooted, out_of_service, node_deleted, reclaimed.",
		}, []string{"proof"}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "fairlead", Subsystem: "controller", Name: "waiting_pods",
			Help: "Pods that wait for their network: what they ask for is not to be had yet, or all PodAttachments are still being read.",
		}),
	}
	present := func(c prometheus.Collector) prometheus.Collector { return told{c, &m.standsBy} }
	for _, c := range []prometheus.Collector{m.ensures, m.releases, m.proofs, present(m.waiting)} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *Metrics) ensured(err error) { m.ensures.WithLabelValues(driver.Result(err)).Inc() }

func (m *Metrics) released(err error) { m.releases.WithLabelValues(driver.Result(err)).Inc() }
