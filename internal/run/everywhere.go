package run

import "context"

// Everywhere runs, in a manager, on the leader and on standbys, and knows by itself what
// it may do.
type Everywhere func(context.Context) error

// Start runs until ctx ends.
func (f Everywhere) Start(ctx context.Context) error { return f(ctx) }

// NeedLeaderElection keeps the manager from waiting for leadership.
func (f Everywhere) NeedLeaderElection() bool { return false }
