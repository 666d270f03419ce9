package server

import (
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/run"
)

// metrics are the metrics of the socket. An unknown verb is counted as "unknown".
type metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	inflight *prometheus.GaugeVec
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	const namespace, subsystem = "fairlead", "cni"
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "requests_total",
			Help: "Answered requests of the CNI plugin. By verb: ADD, DEL, CHECK, STATUS, GC, unknown. By code: the CNI error code, 0 for success.",
		}, []string{"verb", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "request_duration_seconds",
			Help:    "Duration of valid requests of the CNI plugin. By verb: ADD, DEL, CHECK, STATUS, GC.",
			Buckets: run.DurationBuckets,
		}, []string{"verb"}),
		inflight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "inflight",
			Help: "Valid requests of the CNI plugin that are being served. By verb: ADD, DEL, CHECK, STATUS, GC.",
		}, []string{"verb"}),
	}
	if r == nil {
		return m, nil
	}
	return m, errors.Join(r.Register(m.requests), r.Register(m.duration), r.Register(m.inflight))
}

// start counts a request as being served until finish is called with its outcome.
func (m *metrics) start(verb string) (finish func(err error)) {
	begin := time.Now()
	m.inflight.WithLabelValues(verb).Inc()
	return func(err error) {
		m.inflight.WithLabelValues(verb).Dec()
		m.duration.WithLabelValues(verb).Observe(time.Since(begin).Seconds())
		m.count(verb, err)
	}
}

// count counts an answer to verb by the CNI error code of err.
func (m *metrics) count(verb string, err error) {
	if !slices.Contains(cniproto.Verbs, verb) {
		verb = "unknown"
	}
	m.requests.WithLabelValues(verb, strconv.Itoa(code(err))).Inc()
}
