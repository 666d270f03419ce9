package run

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Remembered registers the metric fairlead_remembered: the number of objects that a
// program remembers, by kind. Each function returns the counts of one part of the program
// by kind; it is called when metrics are read. Kinds must be unique across the functions.
func Remembered(r prometheus.Registerer, parts ...func() map[string]int) error {
	return r.Register(&remembered{parts: parts, sizes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "fairlead", Name: "remembered",
		Help: "Number of things that the program remembers; it forgets those that are gone. By kind: the kind.",
	}, []string{"kind"})})
}

type remembered struct {
	parts []func() map[string]int

	mu    sync.Mutex
	sizes *prometheus.GaugeVec
}

// Describe implements prometheus.Collector.
func (r *remembered) Describe(to chan<- *prometheus.Desc) { r.sizes.Describe(to) }

// Collect implements prometheus.Collector.
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
