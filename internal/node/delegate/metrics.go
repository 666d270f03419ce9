package delegate

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics count the executions of lists of plugins. They have no label with the type of a
// plugin, which an author of networks chooses.
type metrics struct {
	executions *prometheus.CounterVec
	durations  *prometheus.HistogramVec
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	const namespace, subsystem = "fairlead", "node"
	m := &metrics{
		executions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "plugin_executions_total",
			Help: "Executions of the CNI plugins of a network. By verb: ADD, DEL, CHECK, STATUS, GC. By result: ok, failed, missing (a plugin is not installed), killed (at its deadline).",
		}, []string{"verb", "result"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "plugin_duration_seconds",
			Help:    "Duration of an execution of all CNI plugins of a network. By verb: ADD, DEL, CHECK, STATUS, GC.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 40},
		}, []string{"verb"}),
	}
	return m, errors.Join(r.Register(m.executions), r.Register(m.durations))
}

func (m *metrics) count(verb string, start time.Time, late bool, err error) {
	result := "ok"
	switch {
	case err == nil:
	case errors.Is(err, errMissing):
		result = "missing"
	case late:
		result = "killed"
	default:
		result = "failed"
	}
	m.executions.WithLabelValues(verb, result).Inc()
	m.durations.WithLabelValues(verb).Observe(time.Since(start).Seconds())
}
