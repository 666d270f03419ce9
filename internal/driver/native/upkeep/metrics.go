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
	valid     *prometheus.GaugeVec
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
			Help: "Addresses of a pool, on the leader. By pool: the name of the IPPool. By state: free, allocated, cooling, held, reserved.",
		}, []string{"pool", "state"}),
		exhausts: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "fairlead", Subsystem: "pool", Name: "seconds_until_exhausted",
			Help: "Seconds until a family of the pool has no address left, if allocations grow as in the last 30 minutes; 0 if a family has none left now; absent if no family fills or it takes more than a year. By pool: the name of the IPPool.",
		}, []string{"pool"}),
		valid: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "fairlead", Subsystem: "pool", Name: "valid",
			Help: "1 if the pool can be used, 0 if its spec is refused, on the leader. By pool: the name of the IPPool.",
		}, []string{"pool"}),
		findings: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "fairlead", Subsystem: "audit", Name: "findings",
			Help: "Findings of the leader's last audit that a second one confirmed. By invariant: I1 (an address has one holder), I2 (every slot that is not free is explained), I7 (the counts of a pool add up).",
		}, []string{"invariant"}),
	}
	for _, c := range []prometheus.Collector{m.addresses, m.exhausts, m.valid, m.findings} {
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

// Valid sets whether a pool can be used.
func (m *Metrics) Valid(pool string, valid bool) {
	n := 0.0
	if valid {
		n = 1
	}
	m.valid.WithLabelValues(pool).Set(n)
}

// NoPool removes the gauges of a pool.
func (m *Metrics) NoPool(pool string) {
	m.exhausts.DeleteLabelValues(pool)
	m.valid.DeleteLabelValues(pool)
	m.addresses.DeletePartialMatch(prometheus.Labels{"pool": pool})
}
