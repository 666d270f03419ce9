// Package leader elects one of several processes as the leader, with a Lease. A leader
// that cannot renew the Lease steps down and becomes a standby in the same process,
// with all of its memory. The work of its term is cancelled, and new requests wait for
// the next term.
//
// Two leaders at once are harmless here, because addresses are taken by
// compare-and-swap. Therefore the Lease is long, and an API server that stalls does not
// cause a change of leader.
package leader

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Config of an Election.
type Config struct {
	// Name is the name of the Lease, for logs and metrics.
	Name string
	// Lock is a client of the Lease, with an identity that no other process has.
	Lock resourcelock.Interface
	// LeaseDuration is how long a standby respects a Lease after the last renewal.
	LeaseDuration time.Duration
	// RenewDeadline is how long a leader tries to renew before it steps down. It is
	// less than LeaseDuration.
	RenewDeadline time.Duration
	// RetryPeriod is the time between two renewals, and between two checks of a
	// standby.
	RetryPeriod time.Duration
	// Begins, if not nil, is called when a term begins, before any work of the term.
	Begins func()
	// Ended, if not nil, is called when a term has ended.
	Ended func()
}

// ErrTermEnded means that the work was cancelled because this process stopped leading.
var ErrTermEnded = errors.New("the term as leader has ended")

// releaseTimeout limits the wait for the API server at the end of the process.
const releaseTimeout = 2 * time.Second

// Election is this process's part in the election.
type Election struct {
	cfg   Config
	gate  gate
	gauge prometheus.Gauge
	// term is locked during a term, so that a term begins only after the previous one
	// has ended.
	term sync.Mutex
}

// New returns an Election and registers the gauge fairlead_leader. The error is that of
// the registration.
func New(cfg Config, metrics prometheus.Registerer) (*Election, error) {
	e := &Election{
		cfg:  cfg,
		gate: newGate(),
		gauge: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "fairlead", Name: "leader",
			Help: "1 while this replica leads, 0 while it stands by.",
		}),
	}
	if err := metrics.Register(e.gauge); err != nil {
		return nil, fmt.Errorf("register the metric of the leader: %w", err)
	}
	return e, nil
}

// Run takes part in elections until ctx ends. It does not release the Lease at the end;
// see Release.
func (e *Election) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Name:          e.cfg.Name,
			Lock:          e.cfg.Lock,
			LeaseDuration: e.cfg.LeaseDuration,
			RenewDeadline: e.cfg.RenewDeadline,
			RetryPeriod:   e.cfg.RetryPeriod,
			Callbacks:     leaderelection.LeaderCallbacks{OnStartedLeading: e.lead, OnStoppedLeading: func() {}},
		})
		if err != nil {
			return fmt.Errorf("set up the election of a leader: %w", err)
		}
		elector.Run(ctx)
	}
	e.term.Lock() // wait for the end of the last term
	defer e.term.Unlock()
	return nil
}

// lead runs a term. It returns when the context ends.
func (e *Election) lead(term context.Context) {
	e.term.Lock()
	defer e.term.Unlock()
	if term.Err() != nil {
		return // the term has ended already
	}
	log := logr.FromContextOrDiscard(term)
	if e.cfg.Begins != nil {
		e.cfg.Begins()
	}
	log.Info("leading", "lease", e.cfg.Name, "identity", e.cfg.Lock.Identity())
	e.gauge.Set(1)
	e.gate.open(term)
	<-term.Done()
	e.gauge.Set(0)
	if e.cfg.Ended != nil {
		e.cfg.Ended()
	}
	log.Info("stopped leading, standing by", "lease", e.cfg.Name, "identity", e.cfg.Lock.Identity())
}

// Release gives the Lease back if this process has it, so that a standby takes it at
// once. It is called after Run has returned and all work has ended. It waits two
// seconds at most for the API server.
func (e *Election) Release(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	record, _, err := e.cfg.Lock.Get(ctx)
	if err != nil {
		return fmt.Errorf("give back the Lease %s: %w", e.cfg.Name, err)
	}
	if record.HolderIdentity != e.cfg.Lock.Identity() {
		return nil
	}
	record.HolderIdentity, record.LeaseDurationSeconds = "", 1
	if err := e.cfg.Lock.Update(ctx, *record); err != nil {
		return fmt.Errorf("give back the Lease %s: %w", e.cfg.Name, err)
	}
	return nil
}
