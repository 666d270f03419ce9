// Package leader makes one of several processes lead at a time, by a Lease. A
// leader that cannot renew the Lease steps down and stands by in the same process,
// with all that it remembers; work of its term is cancelled, and what is asked of
// it meanwhile waits for the next term.
//
// Two leaders at once are harmless here, because addresses are taken by
// compare-and-swap. So the Lease is long, and an API server that stalls costs no
// change of leader; and a standby that has met the leader, and sees that its
// process has ended, takes the Lease before it runs out.
package leader

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Config of an Election.
type Config struct {
	// Name of the Lease, for logs and metrics.
	Name string
	// Lock returns a new way to the Lease, each for one user at a time. All have
	// one identity, which no other process has; see Identity.
	Lock func() resourcelock.Interface
	// Beacon tells standbys that this process leads. Nil tells none: then they wait
	// until the Lease runs out.
	Beacon *Beacon
	// LeaseDuration is how long a standby respects a Lease that is not renewed.
	LeaseDuration time.Duration
	// RenewDeadline is how long a leader tries to renew before it steps down; less
	// than LeaseDuration.
	RenewDeadline time.Duration
	// RetryPeriod lies between two renewals, and between two looks of a standby.
	RetryPeriod time.Duration
	// Begins is called when a term begins, before any work of it; nil for nothing.
	Begins func()
	// Ended is called when a term has ended; nil for nothing.
	Ended func()
}

// ErrTermEnded says that work was given up because this process leads no more.
var ErrTermEnded = errors.New("the term as leader has ended")

// releaseTimeout bounds the wait for the API server at the end of the process.
const releaseTimeout = 2 * time.Second

// Election is this process's part in the election.
type Election struct {
	cfg   Config
	lock  resourcelock.Interface
	watch *watch
	gate  gate
	gauge prometheus.Gauge
	// restand ends the candidacy of a standby, so that the next one begins at once.
	restand atomic.Pointer[context.CancelFunc]
	// term is held while this process leads: a term begins when the one before has
	// been ended.
	term sync.Mutex
}

// New returns an Election that has not begun, and registers the gauge
// fairlead_leader. The error is of the registration.
func New(cfg Config, metrics prometheus.Registerer) (*Election, error) {
	e := &Election{
		cfg:  cfg,
		lock: cfg.Lock(),
		gate: newGate(),
		gauge: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "fairlead", Name: "leader",
			Help: "1 while this process leads, 0 while it stands by.",
		}),
	}
	e.watch = newWatch(cfg.Lock(), cfg.RetryPeriod, e.wake)
	if err := metrics.Register(e.gauge); err != nil {
		return nil, fmt.Errorf("register the metric of the leader: %w", err)
	}
	return e, nil
}

// Run stands for election again and again until ctx ends. The Lease is kept then:
// see Release.
func (e *Election) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := e.stand(ctx); err != nil {
			return err
		}
	}
	e.watch.stop() //nolint:contextcheck // what it ends outlives a candidacy
	e.term.Lock()  // until the last term has been ended
	defer e.term.Unlock()
	return nil
}

// stand is one candidacy, and the term that it leads to.
func (e *Election) stand(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	e.restand.Store(&cancel)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name:          e.cfg.Name,
		Lock:          &watchedLock{Interface: e.lock, watch: e.watch, leads: e.gate.isOpen, overtaken: cancel, ctx: ctx},
		LeaseDuration: e.cfg.LeaseDuration,
		RenewDeadline: e.cfg.RenewDeadline,
		RetryPeriod:   e.cfg.RetryPeriod,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: e.lead,
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("set up the election of a leader: %w", err)
	}
	elector.Run(ctx)
	return nil
}

// wake has a standby look at the Lease at once.
func (e *Election) wake() {
	if cancel := e.restand.Load(); cancel != nil && !e.gate.isOpen() {
		(*cancel)()
	}
}

// lead is a term: it lasts as long as its context.
func (e *Election) lead(term context.Context) {
	e.term.Lock()
	defer e.term.Unlock()
	if term.Err() != nil {
		return // it was over before it began
	}
	log := logr.FromContextOrDiscard(term)
	if e.cfg.Begins != nil {
		e.cfg.Begins()
	}
	log.Info("leading", "lease", e.cfg.Name, "identity", e.lock.Identity())
	e.gauge.Set(1)
	e.cfg.Beacon.shine(true)
	e.gate.open(term)
	<-term.Done()
	e.cfg.Beacon.shine(false)
	e.gauge.Set(0)
	if e.cfg.Ended != nil {
		e.cfg.Ended()
	}
	log.Info("leading no more: standing by, with all that is remembered", "lease", e.cfg.Name, "identity", e.lock.Identity())
}

// Release gives the Lease back if this process has it, so that a standby takes it
// at once. It is called when Run has returned and all work has ended. An API server
// that does not answer in two seconds is not waited for.
func (e *Election) Release(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	record, _, err := e.lock.Get(ctx)
	if err != nil {
		return fmt.Errorf("give back the Lease %s: %w", e.cfg.Name, err)
	}
	if record.HolderIdentity != e.lock.Identity() {
		return nil
	}
	record.HolderIdentity, record.LeaseDurationSeconds = "", 1
	if err := e.lock.Update(ctx, *record); err != nil {
		return fmt.Errorf("give back the Lease %s: %w", e.cfg.Name, err)
	}
	return nil
}
