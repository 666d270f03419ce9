package pool

import (
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the metrics of pools. Nil counts nothing.
type Metrics struct {
	takes, refills *prometheus.CounterVec
	made           prometheus.Counter
	ports          *prometheus.GaugeVec
	leads          func() bool
	pools          atomic.Pointer[Pools]
}

// Results of a request for a port.
const (
	hit  = "hit"
	miss = "miss"
)

// NewMetrics registers the metrics; leads reports whether this process leads.
func NewMetrics(r prometheus.Registerer, leads func() bool) (*Metrics, error) {
	m := &Metrics{
		takes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "fairlead", Subsystem: "portpool", Name: "takes_total",
			Help: "Pods that asked a pool for a port. By result: hit, miss (the pod had to wait).",
		}, []string{"result"}),
		refills: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "fairlead", Subsystem: "portpool", Name: "refills_total",
			Help: "Requests to OpenStack for ports of pools. By result: made, failed.",
		}, []string{"result"}),
		made: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "fairlead", Subsystem: "portpool", Name: "made_total",
			Help: "Ports that were made or adopted for pools.",
		}),
		ports: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "fairlead", Subsystem: "portpool", Name: "ports",
			Help: "Ports of pools of ready ports, on the leader. By state: ready, cooling, stale, used, leaving.",
		}, []string{"state"}),
		leads: leads,
	}
	for _, c := range []prometheus.Collector{m.takes, m.refills, m.made, m} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(to chan<- *prometheus.Desc) { m.ports.Describe(to) }

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	p := m.pools.Load()
	if p == nil || !m.leads() {
		return
	}
	n := group(p.store.all()).count()
	for _, s := range []state{ready, cooling, stale, used, leaving} {
		m.ports.WithLabelValues(strings.ToLower(string(s))).Set(float64(n[s]))
	}
	m.ports.Collect(to)
}

func (m *Metrics) measure(p *Pools) {
	if m != nil {
		m.pools.Store(p)
	}
}

func (m *Metrics) took(result string) {
	if m != nil {
		m.takes.WithLabelValues(result).Inc()
	}
}

func (m *Metrics) refilled(ports int, err error) {
	switch {
	case m == nil:
	case err != nil:
		m.refills.WithLabelValues("failed").Inc()
	default:
		m.refills.WithLabelValues("made").Inc()
		m.made.Add(float64(ports))
	}
}
