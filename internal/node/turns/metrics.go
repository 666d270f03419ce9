package turns

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fairlead.dev/fairlead/internal/cniproto"
)

// durationBuckets are in seconds, from 0.5 ms to the four minutes that a kubelet allows
// for a sandbox. The kubelet's own buckets ended at ten seconds.
var durationBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 240}

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
		Buckets: durationBuckets,
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
