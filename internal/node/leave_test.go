package node

import (
	"context"
	"errors"
	"testing"
	"time"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/cniproto/server"
	"fairlead.dev/fairlead/test/nodetest"
)

// A waiting ADD does not delay the end of the daemon: it leaves nothing behind, and the
// next daemon gets it again.
func TestLeaveEndsAnAddThatWaits(t *testing.T) {
	for _, step := range addSteps {
		if step.hold == nil {
			continue
		}
		t.Run(step.name, func(t *testing.T) {
			onTestNode(t, func(w *testNode) {
				f := w.blockedAdd(step)
				defer f.giveUp()
				start := time.Now()
				w.network.Leave()
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

// An ADD without the pod's UID waits for the API server.
func TestLeaveEndsAnAddThatAsks(t *testing.T) {
	onTestNode(t, func(w *testNode) {
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
		w.network.Leave()
		if err := <-added; !errors.Is(err, server.ErrResend) {
			t.Errorf("ADD: %v", err)
		}
	})
}

// A request that does not have to wait is served even then: it was in the queue.
func TestLeaveLetsOthersEnd(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		w.pod("p", "u1")
		w.mustAdd("c1", "p", "u1")
		w.network.Leave()
		w.pod("q", "u2")
		w.mustAdd("c2", "q", "u2")
		if err := w.del("c1"); err != nil {
			t.Error(err)
		}
		_, err := w.handle(cniproto.Request{Verb: cniproto.VerbStatus})
		nodetest.WantCode(t, err, 0)
	})
}
