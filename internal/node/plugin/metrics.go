package plugin

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fairlead.dev/fairlead/internal/run"
)

// kubeletMetrics are metrics under the names of the kubelet's metrics of its network
// plugin. The kubelet lost them in Kubernetes 1.24, and dashboards still query them. As in
// the kubelet, a duration includes the wait for the previous operation.
type kubeletMetrics struct {
	duration      *prometheus.HistogramVec
	total, failed *prometheus.CounterVec
}

// Values of the label operation_type.
const (
	operationSetUp    = "set_up_pod"
	operationTearDown = "tear_down_pod"
)

func newKubeletMetrics() *kubeletMetrics {
	const subsystem = "kubelet"
	return &kubeletMetrics{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Subsystem: subsystem, Name: "network_plugin_operations_duration_seconds",
			Help: "Duration of network plugin operations. By operation_type: set_up_pod, tear_down_pod.", Buckets: run.DurationBuckets,
		}, []string{"operation_type"}),
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: subsystem, Name: "network_plugin_operations_total",
			Help: "Network plugin operations, failed ones included. By operation_type: set_up_pod, tear_down_pod.",
		}, []string{"operation_type"}),
		failed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: subsystem, Name: "network_plugin_operations_errors_total",
			Help: "Network plugin operations that failed. By operation_type: set_up_pod, tear_down_pod.",
		}, []string{"operation_type"}),
	}
}

func (k *kubeletMetrics) register(r prometheus.Registerer) error {
	return errors.Join(r.Register(k.duration), r.Register(k.total), r.Register(k.failed))
}

// done counts an operation and its duration since the given time. k may be nil.
func (k *kubeletMetrics) done(operation string, since time.Time, err error) {
	if k == nil {
		return
	}
	k.duration.WithLabelValues(operation).Observe(time.Since(since).Seconds())
	k.total.WithLabelValues(operation).Inc()
	if err != nil {
		k.failed.WithLabelValues(operation).Inc()
	}
}
