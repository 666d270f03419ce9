package fabric

import "github.com/prometheus/client_golang/prometheus"

// Metrics counts what the fabric changes in the cloud.
type Metrics struct {
	changes *prometheus.CounterVec
	drift   prometheus.Counter
}

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "fairlead", Subsystem: "fabric", Name: "changes_total", Help: "Entries added to and removed from the cloud for nodes. By kind: port (pairs and groups), route, rule. By change: added, removed.",
		}, []string{"kind", "change"}),
		drift: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "fairlead", Subsystem: "fabric", Name: "drift_total", Help: "Entries in the cloud that differed from the record, as after a change by hand.",
		}),
	}
	for _, c := range []prometheus.Collector{m.changes, m.drift} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *Metrics) changed(kind string, added, removed int) {
	m.changes.WithLabelValues(kind, "added").Add(float64(added))
	m.changes.WithLabelValues(kind, "removed").Add(float64(removed))
}

func (m *Metrics) drifted(entries int) { m.drift.Add(float64(entries)) }
