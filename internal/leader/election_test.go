package leader

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// takenWithin is the time until a standby has the Lease of a leader that renews it no
// more: a standby tries every 1 to 2.2 periods, may see the last renewal that much late, and
// try that much late after the Lease has expired.
const takenWithin = leaseDuration + 5*retryPeriod

// leaderAndStandby returns a leader and a standby.
func leaderAndStandby(t *testing.T, w *testbed) (a, b *process) {
	t.Helper()
	a = w.start("a")
	w.leadsWithin(a, time.Second)
	b = w.start("b")
	t.Cleanup(func() { a.kill(); b.kill() })
	pause(t.Context(), 5*time.Second)
	synctest.Wait()
	return a, b
}

// expect compares the successive holders of the Lease.
func (w *testbed) expect(want ...string) {
	w.t.Helper()
	if diff := cmp.Diff(want, w.history()); diff != "" {
		w.t.Errorf("holders of the Lease (-want +got):\n%s", diff)
	}
}

// A standby follows a killed leader when the Lease has expired.
func TestKilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestbed(t)
		a, b := leaderAndStandby(t, w)
		if got := testutil.ToFloat64(a.gauge) - testutil.ToFloat64(b.gauge); got != 1 {
			t.Errorf("fairlead_leader of the leader less that of the standby is %v", got)
		}
		a.kill()
		if took := w.leadsWithin(b, takenWithin); took < leaseDuration-retryPeriod {
			t.Errorf("taken after %s, before the Lease has expired", took)
		}
		w.expect("a", "b")
		if got := testutil.ToFloat64(a.gauge); got != 0 {
			t.Errorf("fairlead_leader of the killed one is %v", got)
		}
	})
}

// A process that is killed and started again at the same address, as a kubelet does,
// has a new identity. Neither the process itself nor another that never met the first
// one confuses the two.
func TestKilledAndStartedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestbed(t)
		a := w.start("a")
		w.leadsWithin(a, time.Second)
		a.kill()
		again := w.start("again")
		defer again.kill()
		w.leadsWithin(again, takenWithin)
		w.expect("a", "again")
	})
}

// A leader that shuts down in order gives the Lease back.
func TestReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestbed(t)
		a, b := leaderAndStandby(t, w)
		a.kill()
		if err := a.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.leadsWithin(b, 3*retryPeriod)
		if err := a.Release(t.Context()); err != nil { // another process has the Lease by now
			t.Fatal(err)
		}
		pause(t.Context(), time.Minute)
		w.expect("a", "", "b")
	})
}

// An API server that stalls repeatedly for up to 10 s does not cause a change of
// leader, whether it stalls for all processes or for the leader only.
func TestStalls(t *testing.T) {
	for _, client := range []string{"", "a"} {
		t.Run("for "+client, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestbed(t)
				a, _ := leaderAndStandby(t, w)
				for range 20 {
					for _, d := range []time.Duration{time.Second, 3 * time.Second, 10 * time.Second} {
						w.stall(client, d)
						pause(t.Context(), d+1300*time.Millisecond)
					}
				}
				w.expect("a")
				if begins, ended := a.terms(); begins != 1 || ended != 0 {
					t.Errorf("%d terms began and %d ended", begins, ended)
				}
			})
		})
	}
}

// A leader that loses the API server steps down and becomes a standby. When the next
// leader ends, it leads again, in the same process.
func TestCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestbed(t)
		a, b := leaderAndStandby(t, w)
		var ended error
		working := make(chan struct{})
		go func() {
			ended = a.While(t.Context(), func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) })
			close(working)
		}()
		w.stall("a", 2*time.Minute)
		w.leadsWithin(b, takenWithin)
		if a.gate.isOpen() {
			t.Error("the one that was cut off still works")
		}
		<-working
		if !errors.Is(ended, ErrTermEnded) {
			t.Errorf("its work ended with %v", ended)
		}
		pause(t.Context(), 3*time.Minute)
		if begins, ended := a.terms(); begins != 1 || ended != 1 || a.gate.isOpen() {
			t.Errorf("it has begun %d terms and ended %d", begins, ended)
		}
		b.kill()
		w.leadsWithin(a, takenWithin)
		if begins, ended := a.terms(); begins != 2 || ended != 1 {
			t.Errorf("it has begun %d terms and ended %d", begins, ended)
		}
		w.expect("a", "b", "a")
	})
}

// If all processes lose the API server for longer than the Lease lasts, exactly one
// leads again as soon as the server answers.
func TestLongStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestbed(t)
		a, b := leaderAndStandby(t, w)
		w.stall("", time.Minute)
		pause(t.Context(), time.Minute-time.Second)
		if a.gate.isOpen() || b.gate.isOpen() {
			t.Error("a process leads without the API server")
		}
		pause(t.Context(), 5*time.Second)
		if a.gate.isOpen() == b.gate.isOpen() {
			t.Errorf("a leads: %v, b leads: %v", a.gate.isOpen(), b.gate.isOpen())
		}
	})
}

// A leader that finds another holder in the Lease steps down within its deadline.
func TestOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestbed(t)
		a := w.start("a")
		defer a.kill()
		w.leadsWithin(a, time.Second)
		w.mu.Lock()
		version := w.version
		w.mu.Unlock()
		if _, err := w.put(resourcelock.LeaderElectionRecord{HolderIdentity: "other", LeaseDurationSeconds: 60}, version); err != nil {
			t.Fatal(err)
		}
		pause(t.Context(), renewDeadline+3*retryPeriod)
		synctest.Wait()
		if a.gate.isOpen() {
			t.Error("it still leads")
		}
		w.leadsWithin(a, 70*time.Second+5*retryPeriod)
		w.expect("a", "other", "a")
	})
}

// Reconcilers work while this process leads. Work that the end of a term interrupts is
// done first in the next term, without an error.
func TestReconciler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestbed(t)
		e := w.start("a")
		defer e.kill()
		w.leadsWithin(e, time.Second)
		failing := errors.New("failing")
		answer := func(context.Context) (ctrl.Result, error) { return ctrl.Result{RequeueAfter: time.Hour}, failing }
		r := e.Reconciler(reconcile.Func(func(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) { return answer(ctx) }))
		if got, err := r.Reconcile(t.Context(), ctrl.Request{}); !errors.Is(err, failing) || got.RequeueAfter != time.Hour {
			t.Errorf("while it leads: %v, %v", got, err)
		}
		answer = func(ctx context.Context) (ctrl.Result, error) { <-ctx.Done(); return ctrl.Result{}, ctx.Err() }
		w.stall("a", time.Hour)
		if got, err := r.Reconcile(t.Context(), ctrl.Request{}); err != nil || got.RequeueAfter <= 0 || got.RequeueAfter > time.Millisecond {
			t.Errorf("interrupted: %v, %v", got, err)
		}
		var calls atomic.Int32
		answer = func(context.Context) (ctrl.Result, error) { calls.Add(1); return ctrl.Result{}, nil } //nolint:unparam // has the signature of the others
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			_, err := r.Reconcile(ctx, ctrl.Request{})
			done <- err
		}()
		pause(t.Context(), time.Minute)
		cancel()
		if err := <-done; err != nil || calls.Load() != 0 {
			t.Errorf("while it stands by: %v, called %d times", err, calls.Load())
		}
		w.leadsWithin(e, 2*time.Hour)
		if _, err := r.Reconcile(t.Context(), ctrl.Request{}); err != nil || calls.Load() != 1 {
			t.Errorf("in the next term: %v, called %d times", err, calls.Load())
		}
	})
}

func TestEachTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestbed(t)
		e := w.start("a")
		defer e.kill()
		runs, done := atomic.Int32{}, make(chan error, 1)
		broken := errors.New("broken")
		go func() {
			done <- e.EachTerm(func(ctx context.Context) error {
				if runs.Add(1) == 3 {
					return broken
				}
				<-ctx.Done()
				return ctx.Err()
			})(t.Context())
		}()
		for range 2 {
			w.leadsWithin(e, time.Hour)
			w.stall("a", time.Minute)
			pause(t.Context(), 30*time.Second)
		}
		if err := <-done; !errors.Is(err, broken) || runs.Load() != 3 {
			t.Errorf("%d runs, %v", runs.Load(), err)
		}
	})
}
