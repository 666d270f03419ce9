package locks

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/run"
)

// metrics measure how long requests wait.
type metrics struct {
	waits *prometheus.HistogramVec
	// The observers by verb.
	add, del waits
	identity prometheus.Observer
}

// waits are the observers of one verb.
type waits struct{ gate, sandbox prometheus.Observer }

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{waits: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "fairlead", Subsystem: "node", Name: "queue_wait_seconds",
		Help: "How long a request waited for others before it started. By verb: ADD, DEL. " +
			"By lock: gate (a GC), sandbox (the previous request for the same sandbox), identity (another pod with the same kept addresses).",
		Buckets: run.DurationBuckets,
	}, []string{"verb", "lock"})}
	of := func(verb string) waits {
		return waits{gate: m.waits.WithLabelValues(verb, "gate"), sandbox: m.waits.WithLabelValues(verb, string(lockSandbox))}
	}
	m.add, m.del = of(cniproto.VerbAdd), of(cniproto.VerbDel)
	m.identity = m.waits.WithLabelValues(cniproto.VerbAdd, string(lockIdentity))
	if r == nil {
		return m, nil
	}
	return m, r.Register(m.waits)
}

// observe observes the time since a start, and returns the present time.
func observe(o prometheus.Observer, since time.Time) time.Time {
	now := time.Now()
	o.Observe(now.Sub(since).Seconds())
	return now
}
