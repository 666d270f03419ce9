// The program odd declares metrics that cannot be described from the source.
package main

import (
	"os"

	"github.com/prometheus/client_golang/prometheus"
)

func main() {
	labels := []string{"kind"}
	options := prometheus.GaugeOpts{Name: "a"}
	prometheus.NewRegistry().MustRegister(
		prometheus.NewGauge(options),
		prometheus.NewGauge(prometheus.GaugeOpts{Name: os.Args[0]}),
		prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "c"}, labels),
		prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "d", Help: "Things by kind."}, []string{"kind"}),
		prometheus.NewGauge(prometheus.GaugeOpts{Name: "e", ConstLabels: prometheus.Labels{"kind": "x"}}),
		prometheus.NewSummary(prometheus.SummaryOpts{Name: "f"}),
		prometheus.NewCounter(prometheus.CounterOpts{Name: "twice_total", Help: "Things."}),
		prometheus.NewCounter(prometheus.CounterOpts{Namespace: "twice", Name: "total", Help: "Things."}),
	)
}
