package run

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Remembered registers the metric fairlead_remembered: how many things a program
// remembers, by kind. Each function returns the sizes of what one part of the program
// remembers; it is called when metrics are read. No two may have a kind in common.
func Remembered(r prometheus.Registerer, parts ...func() map[string]int) error {
	return r.Register(&remembered{parts: parts, sizes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "fairlead", Name: "remembered",
		Help: "What the program remembers, by kind: none of what is gone.",
	}, []string{"kind"})})
}

type remembered struct {
	parts []func() map[string]int

	mu    sync.Mutex
	sizes *prometheus.GaugeVec
}

// Describe is of prometheus.Collector.
func (r *remembered) Describe(to chan<- *prometheus.Desc) { r.sizes.Describe(to) }

// Collect is of prometheus.Collector.
func (r *remembered) Collect(to chan<- prometheus.Metric) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, sizes := range r.parts {
		for kind, n := range sizes() {
			r.sizes.WithLabelValues(kind).Set(float64(n))
		}
	}
	r.sizes.Collect(to)
}
