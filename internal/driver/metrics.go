package driver

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/fault"
)

// Metrics measures the duration of calls of drivers, by result.
type Metrics struct {
	duration *prometheus.HistogramVec
}

// NewMetrics registers the drivers' metrics.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "fairlead",
		Subsystem: "driver",
		Name:      "call_duration_seconds",
		Help:      "Duration of a call of a driver. By driver: the name of the driver. By method: ensure, release, list, confirm. By result: OK, Invalid, Exhausted, NotFound, Conflict, Unavailable, Unknown (another error).",
		Buckets:   []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
	}, []string{"driver", "method", "result"})}
	return m, r.Register(m.duration)
}

// Wrap returns a driver that calls d and measures its calls under a name.
func (m *Metrics) Wrap(name string, d Driver) Driver {
	return &measured{name: name, next: d, metrics: m}
}

type measured struct {
	name    string
	next    Driver
	metrics *Metrics
}

func (m *measured) observe(method string, start time.Time, err error) {
	m.metrics.duration.WithLabelValues(m.name, method, Result(err)).Observe(time.Since(start).Seconds())
}

func (m *measured) Ensure(ctx context.Context, r *Request) (a *Attachment, err error) {
	defer func(start time.Time) { m.observe("ensure", start, err) }(time.Now())
	return m.next.Ensure(ctx, r)
}

func (m *measured) Release(ctx context.Context, ref Ref) (err error) {
	defer func(start time.Time) { m.observe("release", start, err) }(time.Now())
	return m.next.Release(ctx, ref)
}

func (m *measured) List(ctx context.Context) iter.Seq2[Ref, error] {
	return func(yield func(Ref, error) bool) {
		var failed error
		defer func(start time.Time) { m.observe("list", start, failed) }(time.Now())
		for o, err := range m.next.List(ctx) {
			failed = err
			if !yield(o, err) {
				return
			}
		}
	}
}

func (m *measured) Confirm(ctx context.Context, ref Ref) (i v1alpha1.Interface, err error) {
	defer func(start time.Time) { m.observe("confirm", start, err) }(time.Now())
	return m.next.Confirm(ctx, ref)
}

// Result names an error of a driver for a metric label or a condition reason:
// one of OK, Invalid, Exhausted, NotFound, Conflict, Unavailable and Unknown.
func Result(err error) string {
	for _, r := range results {
		if errors.Is(err, r.err) {
			return r.name
		}
	}
	return "Unknown"
}

// results has the name of each error of the contract. Nil comes first.
var results = []struct {
	err  error
	name string
}{
	{nil, "OK"},
	{fault.ErrInvalid, "Invalid"},
	{fault.ErrExhausted, "Exhausted"},
	{fault.ErrNotFound, "NotFound"},
	{fault.ErrConflict, "Conflict"},
	{fault.ErrUnavailable, "Unavailable"},
}
