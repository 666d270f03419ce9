package controller

import (
	"github.com/prometheus/client_golang/prometheus"

	"fairlead.dev/fairlead/internal/driver"
)

// Metrics of the controller.
type Metrics struct {
	ensures   *prometheus.CounterVec
	releases  *prometheus.CounterVec
	addresses *prometheus.GaugeVec
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
		addresses: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "fairlead", Subsystem: "pool", Name: "addresses",
			Help: "Addresses of a pool by state: free, allocated, cooling, held, reserved.",
		}, []string{"pool", "state"}),
	}
	for _, c := range []prometheus.Collector{m.ensures, m.releases, m.addresses} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *Metrics) ensured(err error)  { m.ensures.WithLabelValues(driver.Result(err)).Inc() }
func (m *Metrics) released(err error) { m.releases.WithLabelValues(driver.Result(err)).Inc() }

// Pool tells how many addresses of a pool are in a state.
func (m *Metrics) Pool(pool, state string, count float64) {
	m.addresses.WithLabelValues(pool, state).Set(count)
}
