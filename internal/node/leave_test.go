package node

import (
	"context"
	"errors"
	"testing"
	"time"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/cniproto/server"
	"fairlead.dev/fairlead/internal/node/nodetest"
)

// An ADD that waits for others when the daemon is to end keeps nobody waiting for
// the next daemon: nothing is left of it, and the next one gets it again.
func TestLeaveEndsAnAddThatWaits(t *testing.T) {
	for _, step := range addSteps {
		if step.hold == nil {
			continue
		}
		t.Run(step.name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				f := w.faulted(step)
				defer f.giveUp()
				start := time.Now()
				w.network.leave()
				if err := <-f.added; !errors.Is(err, server.ErrResend) {
					t.Fatalf("ADD: %v", err)
				}
				if waited := time.Since(start); waited > time.Second {
					t.Errorf("it ended after %s", waited)
				}
				if step.name != "claim it" {
					w.wantNothing()
				}
				w.setHooks(nil)
				w.restart()
				f.release()
				_, err := f.handle(f.request("c1"))
				nodetest.WantCode(t, err, 0)
			})
		})
	}
}

// The ADD of a runtime that does not say which pod it is of waits for the API server.
func TestLeaveEndsAnAddThatAsks(t *testing.T) {
	inWorld(t, func(w *world) {
		w.pod("p", "u1")
		w.api.setHook(func(ctx context.Context, step, _ string) error {
			if step == "pod" {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		added := make(chan error, 1)
		go func() {
			_, err := w.add("c1", "p", "")
			added <- err
		}()
		settle()
		w.network.leave()
		if err := <-added; !errors.Is(err, server.ErrResend) {
			t.Errorf("ADD: %v", err)
		}
	})
}

// What waits for nothing is served also then: its request was in the queue.
func TestLeaveLetsOthersEnd(t *testing.T) {
	inWorld(t, func(w *world) {
		w.pod("p", "u1")
		w.mustAdd("c1", "p", "u1")
		w.network.leave()
		w.pod("q", "u2")
		w.mustAdd("c2", "q", "u2")
		if err := w.del("c1"); err != nil {
			t.Error(err)
		}
		_, err := w.handle(cniproto.Request{Verb: cniproto.VerbStatus})
		nodetest.WantCode(t, err, 0)
	})
}
