package run

import "github.com/prometheus/client_golang/prometheus"

// Remembered registers the metric fairlead_remembered: how many things a program
// remembers, by kind. Each function returns the sizes of what one part of the program
// remembers; it is called when metrics are read. No two may have a kind in common.
func Remembered(r prometheus.Registerer, parts ...func() map[string]int) error {
	return r.Register(&remembered{
		desc:  prometheus.NewDesc("fairlead_remembered", "What the program remembers, by kind: none of what is gone.", []string{"kind"}, nil),
		parts: parts,
	})
}

type remembered struct {
	desc  *prometheus.Desc
	parts []func() map[string]int
}

// Describe is of prometheus.Collector.
func (r *remembered) Describe(to chan<- *prometheus.Desc) { to <- r.desc }

// Collect is of prometheus.Collector.
func (r *remembered) Collect(to chan<- prometheus.Metric) {
	for _, sizes := range r.parts {
		for kind, n := range sizes() {
			to <- prometheus.MustNewConstMetric(r.desc, prometheus.GaugeValue, float64(n), kind)
		}
	}
}
