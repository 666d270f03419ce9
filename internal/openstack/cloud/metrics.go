package cloud

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics measures calls by operation and result, and counts the requests that they need.
type metrics struct {
	duration *prometheus.HistogramVec
	requests *prometheus.CounterVec
}

// newMetrics registers the metrics of the cloud; with a nil registry they are unseen.
func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "fairlead",
			Subsystem: "openstack",
			Name:      "call_duration_seconds",
			Help:      "Duration of a call to OpenStack, with the time for which the cloud deferred it. By operation: the call, as create_port or list_ports. By result: ok, not_found, invalid, forbidden, quota, full, taken, in_use, changed, limit, unavailable.",
			Buckets:   []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120},
		}, []string{"operation", "result"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "fairlead",
			Subsystem: "openstack",
			Name:      "requests_total",
			Help:      "HTTP requests to OpenStack. By method: the HTTP method. By status: the HTTP status, 0 without an answer.",
		}, []string{"method", "status"}),
	}
	if r == nil {
		return m, nil
	}
	return m, errors.Join(r.Register(m.duration), r.Register(m.requests))
}

func (m *metrics) observe(call string, start time.Time, err error) {
	m.duration.WithLabelValues(strings.ReplaceAll(call, " ", "_"), result(err)).Observe(time.Since(start).Seconds())
}

func (m *metrics) count(method string, status int) {
	m.requests.WithLabelValues(method, strconv.Itoa(status)).Inc()
}

// result returns the name of an error in metrics.
func result(err error) string {
	if err == nil {
		return "ok"
	}
	for _, k := range []struct {
		kind error
		name string
	}{
		{ErrNotFound, "not_found"},
		{ErrInvalid, "invalid"},
		{ErrForbidden, "forbidden"},
		{ErrQuota, "quota"},
		{ErrFull, "full"},
		{ErrTaken, "taken"},
		{ErrInUse, "in_use"},
		{ErrChanged, "changed"},
		{ErrLimit, "limit"},
	} {
		if errors.Is(err, k.kind) {
			return k.name
		}
	}
	return "unavailable"
}
