package controller

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fairlead.dev/fairlead/internal/driver"
)

// Metrics of the controller.
type Metrics struct {
	ensures   *prometheus.CounterVec
	releases  *prometheus.CounterVec
	proofs    *prometheus.CounterVec
	addresses *prometheus.GaugeVec
	exhausts  *prometheus.GaugeVec
	waiting   prometheus.Gauge
	findings  *prometheus.GaugeVec
	// standsBy is true while another process leads, which tells how things are.
	standsBy atomic.Bool
}

// Leads says whether this process leads from now on. While it does not nothing is
// told of how full pools are and how many pods wait.
func (m *Metrics) Leads(leads bool) { m.standsBy.Store(!leads) }

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
		addresses: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "fairlead", Subsystem: "pool", Name: "addresses",
			Help: "Addresses of a pool by state: free, allocated, cooling, held, reserved.",
		}, []string{"pool", "state"}),
		exhausts: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "fairlead", Subsystem: "pool", Name: "seconds_until_exhausted",
			Help: "When a pool has nothing left if it fills on as in the last 30 minutes; absent while it does not fill.",
		}, []string{"pool"}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "fairlead", Subsystem: "controller", Name: "waiting_pods",
			Help: "Pods that wait for their network: what they ask for is not to be had yet, or all PodAttachments are still being read.",
		}),
	}
	m.findings = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "fairlead", Subsystem: "audit", Name: "findings",
		Help: "What the last audit of the leader found and confirmed, by invariant: I1 an address has one holder, I2 every slot that is not free is explained, I7 the counts of a pool add up.",
	}, []string{"invariant"})
	present := func(c prometheus.Collector) prometheus.Collector { return told{c, &m.standsBy} }
	for _, c := range []prometheus.Collector{m.ensures, m.releases, m.proofs, present(m.addresses), present(m.exhausts), present(m.waiting), present(m.findings)} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *Metrics) ensured(err error)  { m.ensures.WithLabelValues(driver.Result(err)).Inc() }
func (m *Metrics) released(err error) { m.releases.WithLabelValues(driver.Result(err)).Inc() }

// Findings tells how many findings of an invariant the last audit had.
func (m *Metrics) Findings(invariant string, n int) {
	m.findings.WithLabelValues(invariant).Set(float64(n))
}

// Pool tells how many addresses of a pool are in a state.
func (m *Metrics) Pool(pool, state string, count float64) {
	m.addresses.WithLabelValues(pool, state).Set(count)
}

// Exhausts tells in how long a pool will have nothing left; known is false when
// it is not filling.
func (m *Metrics) Exhausts(pool string, in time.Duration, known bool) {
	if !known {
		m.exhausts.DeleteLabelValues(pool)
		return
	}
	m.exhausts.WithLabelValues(pool).Set(in.Seconds())
}

// NoPool ends what is told about a pool.
func (m *Metrics) NoPool(pool string) {
	m.exhausts.DeleteLabelValues(pool)
	m.addresses.DeletePartialMatch(prometheus.Labels{"pool": pool})
}
