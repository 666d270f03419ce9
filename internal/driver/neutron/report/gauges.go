package report

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// gauges show the last look of the leader in metrics.
type gauges struct {
	ports, quota *prometheus.GaugeVec
	left         prometheus.Gauge
	connected    prometheus.Gauge
}

func newGauges(r prometheus.Registerer) (*gauges, error) {
	g := &gauges{
		ports: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "fairlead",
			Subsystem: "openstack",
			Name:      "ports",
			Help:      "Ports of this cluster in OpenStack, on the leader. By status: the status in Neutron.",
		}, []string{"status"}),
		quota: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "fairlead",
			Subsystem: "openstack",
			Name:      "quota",
			Help:      "Quotas of the project in OpenStack, on the leader. By resource: port, security_group, security_group_rule, network, subnet. By what: limit (-1 if there is none), used.",
		}, []string{"resource", "what"}),
		left: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "fairlead",
			Subsystem: "openstack",
			Name:      "left_ports",
			Help:      "Ports of this cluster in OpenStack that no record explains, as the leader found.",
		}),
		connected: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "fairlead",
			Subsystem: "openstack",
			Name:      "connected",
			Help:      "1 if OpenStack answered the last look of the leader, otherwise 0.",
		}),
	}
	if r == nil {
		return g, nil
	}
	return g, errors.Join(r.Register(g.ports), r.Register(g.quota), r.Register(g.left), r.Register(g.connected))
}

// set shows a state. A cloud that does not answer leaves the last one.
func (g *gauges) set(s state) {
	if s.ports == nil {
		g.connected.Set(0)
		return
	}
	g.reset()
	g.connected.Set(1)
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
	g.connected.Set(0)
}
