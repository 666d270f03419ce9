package node

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are those of the plugin, beside those of its CNI server and its manager.
type metrics struct {
	steps       *prometheus.HistogramVec
	swept       *prometheus.CounterVec
	ackFailures prometheus.Counter
}

var durationBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 240}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	const namespace, subsystem = "fairlead", "node"
	m := &metrics{
		steps: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "step_duration_seconds",
			Help:    "Duration of a step: wait (for the PodAttachment), mark_rebooted (after a boot, until the API server knows that the pod is plugged again), plug, active (until the interfaces are active), hot_plug and hot_unplug (of one interface of a running pod), acknowledge.",
			Buckets: durationBuckets,
		}, []string{"step"}),
		swept: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "swept_total",
			Help: "Sandboxes that went without a DEL, and links that belonged to none, by kind.",
		}, []string{"kind"}),
		ackFailures: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "acknowledge_failures_total",
			Help: "Writes of a PodAttachment's status that failed and are tried again.",
		}),
	}
	return m, errors.Join(r.Register(m.steps), r.Register(m.swept), r.Register(m.ackFailures))
}

func (m *metrics) step(name string, since time.Time) {
	m.steps.WithLabelValues(name).Observe(time.Since(since).Seconds())
}
