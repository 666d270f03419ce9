package leader

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// gate is open during the terms of this process as the leader.
type gate struct {
	mu sync.Mutex
	// term is the context of the current term or the last one; nil before the first.
	term context.Context //nolint:containedctx // it is the state of the gate
	// opened is closed when the next term begins.
	opened chan struct{}
}

func newGate() gate { return gate{opened: make(chan struct{})} }

func (g *gate) open(term context.Context) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.term = term
	close(g.opened)
	g.opened = make(chan struct{})
}

func (g *gate) isOpen() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.term != nil && g.term.Err() == nil
}

// enter waits for a term and returns its context. The error is the cause of ctx's end.
func (g *gate) enter(ctx context.Context) (term context.Context, err error) {
	for {
		g.mu.Lock()
		term, opened := g.term, g.opened
		g.mu.Unlock()
		if term != nil && term.Err() == nil {
			return term, nil
		}
		select {
		case <-opened:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// While waits until this process leads, and calls f with a context that also ends with
// the term. It returns the error of f, wrapped with ErrTermEnded if the term has ended.
// If ctx ends before a term begins, it returns the cause.
func (e *Election) While(ctx context.Context, f func(context.Context) error) error {
	term, err := e.gate.enter(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(term, func() { cancel(ErrTermEnded) })
	defer stop()
	if err := f(ctx); err != nil && term.Err() != nil {
		return fmt.Errorf("%w: %w", ErrTermEnded, err)
	} else if err != nil {
		return err
	}
	return nil
}

// Reconciler returns a Reconciler that runs r only while this process leads. At other
// times the workers wait, and the queue behind them collects the changed objects, each
// once. An object whose reconciliation the end of a term interrupts comes first in the
// next term.
func (e *Election) Reconciler(r reconcile.Reconciler) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, req ctrl.Request) (result ctrl.Result, err error) {
		err = e.While(ctx, func(ctx context.Context) (err error) {
			result, err = r.Reconcile(ctx, req)
			return err
		})
		switch {
		case ctx.Err() != nil:
			return ctrl.Result{}, nil //nolint:nilerr // the process ends
		case errors.Is(err, ErrTermEnded):
			return ctrl.Result{RequeueAfter: time.Nanosecond}, nil // it is no failure, so there is no backoff
		}
		return result, err
	})
}

// EachTerm returns a function that calls run during each term until ctx ends. If run
// returns during a term, the function returns its error.
func (e *Election) EachTerm(run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		for {
			leads := false
			err := e.While(ctx, func(ctx context.Context) error {
				err := run(ctx)
				leads = ctx.Err() == nil
				return err
			})
			switch {
			case ctx.Err() != nil:
				return nil //nolint:nilerr // the process ends
			case leads:
				return err
			}
		}
	}
}
