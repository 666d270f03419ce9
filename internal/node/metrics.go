package node

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fairlead.dev/fairlead/internal/run"
)

// metrics are those of the plugin, beside those of its CNI server and its manager.
type metrics struct {
	steps       *prometheus.HistogramVec
	swept       *prometheus.CounterVec
	ackFailures prometheus.Counter
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	const namespace, subsystem = "fairlead", "node"
	m := &metrics{
		steps: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "step_duration_seconds",
			Help:    "Duration of a step of a request or of a change of a running pod. By step: wait (for the PodAttachment), mark_rebooted (after a boot, until the API server has recorded that the pod is plugged again), plug, active (until the interfaces are active), hot_plug (one interface of a running pod), hot_unplug (likewise), acknowledge (a status is written).",
			Buckets: run.DurationBuckets,
		}, []string{"step"}),
		swept: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "swept_total",
			Help: "Things that were cleaned up and had ended without a DEL. By kind: sandbox (found by the sweep or the runtime's GC), link (it belonged to no sandbox), addresses (of another plugin's interface).",
		}, []string{"kind"}),
		ackFailures: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "acknowledge_failures_total",
			Help: "Writes of a PodAttachment's status that failed and are tried again.",
		}),
	}
	return m, errors.Join(r.Register(m.steps), r.Register(m.swept), r.Register(m.ackFailures))
}

// registerDropped registers the metric of packets that the network drops.
func registerDropped(r prometheus.Registerer, dropped func() []string) error {
	return r.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "fairlead", Subsystem: "node", Name: "direct_dropped",
		Help: "1 while the network drops packets of pods to other nodes that are not encapsulated, so that they go through the tunnel; otherwise 0.",
	}, func() float64 {
		if len(dropped()) > 0 {
			return 1
		}
		return 0
	}))
}

// registerLosses registers the metric of pods that have lost interfaces.
func registerLosses(r prometheus.Registerer, losses func() int) error {
	return r.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "fairlead", Subsystem: "node", Name: "pods_without_interfaces",
		Help: "Pods of the node that have lost interfaces, as the reason InterfacesGone of their PodAttachments says.",
	}, func() float64 { return float64(losses()) }))
}

func (m *metrics) step(name string, since time.Time) {
	m.steps.WithLabelValues(name).Observe(time.Since(since).Seconds())
}
