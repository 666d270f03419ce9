package controller

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// podsPerWrite is the number of workers for each write that may run at the same time.
// Most workers wait for addresses, and addresses that are asked for together are written
// together.
const podsPerWrite = 8

// Turns bounds the writes for pods that run at the same time.
type Turns chan struct{}

// NewTurns returns Turns for n writes at once.
func NewTurns(n int) Turns { return make(Turns, n) }

// Wait waits for a turn, or for the end of ctx, and returns a function that ends the
// turn.
func (t Turns) Wait(ctx context.Context) (done func()) {
	if t.take(ctx) != nil {
		return func() {}
	}
	return t.give
}

// take waits for a turn: first come, first served.
func (t Turns) take(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the writes for other pods: %w", context.Cause(ctx))
	}
}

func (t Turns) give() { <-t }

// inTurn is a client whose creates, deletions and patches take turns. The reconciler
// makes no other writes.
type inTurn struct {
	client.Client
	turns Turns
}

// Create implements client.Writer.
func (c inTurn) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	if err := c.turns.take(ctx); err != nil {
		return err
	}
	defer c.turns.give()
	return c.Client.Create(ctx, o, opts...)
}

// Delete implements client.Writer.
func (c inTurn) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	if err := c.turns.take(ctx); err != nil {
		return err
	}
	defer c.turns.give()
	return c.Client.Delete(ctx, o, opts...)
}

// Patch implements client.Writer.
func (c inTurn) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	if err := c.turns.take(ctx); err != nil {
		return err
	}
	defer c.turns.give()
	return c.Client.Patch(ctx, o, p, opts...)
}

// Status implements client.StatusClient.
func (c inTurn) Status() client.SubResourceWriter {
	return statusInTurn{c.Client.Status(), c.turns}
}

type statusInTurn struct {
	client.SubResourceWriter
	turns Turns
}

// Patch implements client.SubResourceWriter.
func (s statusInTurn) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
	if err := s.turns.take(ctx); err != nil {
		return err
	}
	defer s.turns.give()
	return s.SubResourceWriter.Patch(ctx, o, p, opts...)
}
