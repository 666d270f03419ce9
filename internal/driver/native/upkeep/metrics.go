package upkeep

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics of pools. They tell of a cluster, so a process tells them while it leads.
type Metrics struct {
	addresses *prometheus.GaugeVec
	exhausts  *prometheus.GaugeVec
	findings  *prometheus.GaugeVec
}

// whileLeading collects while this process leads.
type whileLeading struct {
	prometheus.Collector
	leads func() bool
}

// Collect is of prometheus.Collector.
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
			Help: "When a pool has nothing left if it fills on as in the last 30 minutes; absent while it does not fill.",
		}, []string{"pool"}),
		findings: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "fairlead", Subsystem: "audit", Name: "findings",
			Help: "What the last audit of the leader found and confirmed, by invariant: I1 an address has one holder, I2 every slot that is not free is explained, I7 the counts of a pool add up.",
		}, []string{"invariant"}),
	}
	for _, c := range []prometheus.Collector{m.addresses, m.exhausts, m.findings} {
		if err := r.Register(whileLeading{c, leads}); err != nil {
			return nil, err
		}
	}
	return m, nil
}

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
