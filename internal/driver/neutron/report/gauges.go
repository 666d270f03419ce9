package report

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// gauges show the last look of the leader in metrics.
type gauges struct {
	ports, quota *prometheus.GaugeVec
	left         prometheus.Gauge
}

func newGauges(r prometheus.Registerer) (*gauges, error) {
	g := &gauges{
		ports: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "fairlead",
			Subsystem: "openstack",
			Name:      "ports",
			Help:      "Ports of this cluster in OpenStack by status.",
		}, []string{"status"}),
		quota: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "fairlead",
			Subsystem: "openstack",
			Name:      "quota",
			Help:      "Quotas of the project by resource: the limit, which is -1 if there is none, and how much of it is used.",
		}, []string{"resource", "what"}),
		left: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "fairlead",
			Subsystem: "openstack",
			Name:      "left_ports",
			Help:      "Ports of this cluster in OpenStack that no record explains.",
		}),
	}
	if r == nil {
		return g, nil
	}
	return g, errors.Join(r.Register(g.ports), r.Register(g.quota), r.Register(g.left))
}

// set shows a state. A cloud that does not answer leaves the last one.
func (g *gauges) set(s state) {
	if s.ports == nil {
		return
	}
	g.reset()
	for status, n := range s.ports {
		g.ports.WithLabelValues(status).Set(float64(n))
	}
	for _, name := range resources {
		if q, ok := s.quotas[name]; ok {
			g.quota.WithLabelValues(name, "limit").Set(float64(q.Limit))
			g.quota.WithLabelValues(name, "used").Set(float64(q.Used))
		}
	}
	g.left.Set(float64(len(s.left)))
}

// reset shows nothing: another replica leads.
func (g *gauges) reset() {
	g.ports.Reset()
	g.quota.Reset()
	g.left.Set(0)
}
