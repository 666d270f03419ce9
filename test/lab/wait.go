package lab

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Wait is how a program waits for states that have no events.
type Wait struct {
	// Limit bounds a wait, and Tick is the time between two looks.
	Limit, Tick time.Duration
	// Say prints the problem when it changes, but not before each Pause has passed; nil for never.
	Say   func(format string, args ...any)
	Pause time.Duration
}

// For calls look until it returns no problem. look returns the present problem in words, empty for
// none; an error ends the wait.
func (w Wait) For(ctx context.Context, what string, look func(ctx context.Context) (problem string, err error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, w.Limit, fmt.Errorf("not within %v", w.Limit))
	defer cancel()
	last, said, saidAt := "", "", time.Now()
	err := wait.PollUntilContextCancel(ctx, w.Tick, true, func(ctx context.Context) (bool, error) {
		problem, err := look(ctx)
		if ctx.Err() != nil {
			return false, nil //nolint:nilerr // the context has the cause
		}
		last = problem
		if w.Say != nil && problem != "" && problem != said && time.Since(saidAt) >= w.Pause {
			w.Say("  %s: %s", what, problem)
			said, saidAt = problem, time.Now()
		}
		return problem == "" && err == nil, err
	})
	if err != nil {
		return fmt.Errorf("waiting for %s (%s): %w", what, last, errors.Join(context.Cause(ctx), err))
	}
	return nil
}

// ForNil calls look until it returns nil: for states that cannot be asked for without errors.
func (w Wait) ForNil(ctx context.Context, what string, look func(ctx context.Context) error) error {
	return w.For(ctx, what, func(ctx context.Context) (string, error) {
		if err := look(ctx); err != nil {
			return err.Error(), nil //nolint:nilerr // the wait goes on
		}
		return "", nil
	})
}
