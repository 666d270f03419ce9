package upkeep

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the metrics of pools. They describe the cluster, so a process serves them
// only while it leads.
type Metrics struct {
	addresses *prometheus.GaugeVec
	exhausts  *prometheus.GaugeVec
	findings  *prometheus.GaugeVec
}

// whileLeading collects metrics only while this process leads.
type whileLeading struct {
	prometheus.Collector
	leads func() bool
}

// Collect implements prometheus.Collector.
func (w whileLeading) Collect(ch chan<- prometheus.Metric) {
	if w.leads() {
		w.Collector.Collect(ch)
	}
}

// NewMetrics registers the metrics of pools; leads reports whether this process leads.
func NewMetrics(r prometheus.Registerer, leads func() bool) (*Metrics, error) {
	m := &Metrics{
		addresses: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "fairlead", Subsystem: "pool", Name: "addresses",
			Help: "Addresses of a pool by state: free, allocated, cooling, held, reserved.",
		}, []string{"pool", "state"}),
		exhausts: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "fairlead", Subsystem: "pool", Name: "seconds_until_exhausted",
			Help: "Seconds until a family of the pool has no address left, if allocations grow as in the last 30 minutes; absent if no family fills.",
		}, []string{"pool"}),
		findings: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "fairlead", Subsystem: "audit", Name: "findings",
			Help: "Confirmed findings of the leader's last audit by invariant: I1 an address has one holder, I2 every slot that is not free is explained, I7 the counts of a pool add up.",
		}, []string{"invariant"}),
	}
	for _, c := range []prometheus.Collector{m.addresses, m.exhausts, m.findings} {
		if err := r.Register(whileLeading{c, leads}); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Findings sets the number of findings of an invariant in the last audit.
func (m *Metrics) Findings(invariant string, n int) {
	m.findings.WithLabelValues(invariant).Set(float64(n))
}

// Pool sets the number of addresses of a pool in a state: free, allocated, cooling, held
// or reserved.
func (m *Metrics) Pool(pool, state string, count float64) {
	m.addresses.WithLabelValues(pool, state).Set(count)
}

// Exhausts sets the time until a pool is exhausted; known is false if it is not filling.
func (m *Metrics) Exhausts(pool string, in time.Duration, known bool) {
	if !known {
		m.exhausts.DeleteLabelValues(pool)
		return
	}
	m.exhausts.WithLabelValues(pool).Set(in.Seconds())
}

// NoPool removes the gauges of a pool.
func (m *Metrics) NoPool(pool string) {
	m.exhausts.DeleteLabelValues(pool)
	m.addresses.DeletePartialMatch(prometheus.Labels{"pool": pool})
}
