package controller

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// slowWrites is an API server whose writes wait for the test.
type slowWrites struct {
	client.Client
	answer chan struct{}

	mu             sync.Mutex
	underWay, most int
}

func (s *slowWrites) write() error {
	s.count(1)
	defer s.count(-1)
	<-s.answer
	return nil
}

func (s *slowWrites) count(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.underWay += n
	s.most = max(s.most, s.underWay)
}

func (s *slowWrites) Create(context.Context, client.Object, ...client.CreateOption) error {
	return s.write()
}

func (s *slowWrites) Delete(context.Context, client.Object, ...client.DeleteOption) error {
	return s.write()
}

func (s *slowWrites) Patch(context.Context, client.Object, client.Patch, ...client.PatchOption) error {
	return s.write()
}

func (s *slowWrites) Status() client.SubResourceWriter { return slowStatus{s: s} }

type slowStatus struct {
	client.SubResourceWriter
	s *slowWrites
}

func (s slowStatus) Patch(context.Context, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
	return s.s.write()
}

// No more writes than there are turns run at the same time, of any kind, and all are
// made.
func TestWritesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &slowWrites{answer: make(chan struct{})}
		c := inTurn{api, NewTurns(3)}
		record := &v1alpha1.PodAttachment{}
		patch := client.MergeFrom(record)
		var done atomic.Int32
		for range 5 {
			for _, write := range []func() error{
				func() error { return c.Create(t.Context(), record) },
				func() error { return c.Delete(t.Context(), record) },
				func() error { return c.Patch(t.Context(), record, patch) },
				func() error { return c.Status().Patch(t.Context(), record, patch) },
			} {
				go func() {
					if err := write(); err != nil {
						t.Error(err)
					}
					done.Add(1)
				}()
			}
		}
		synctest.Wait()
		if n := api.underWay; n != 3 {
			t.Errorf("%d writes are under way, want 3", n)
		}
		close(api.answer)
		synctest.Wait()
		if most, done := api.most, done.Load(); most != 3 || done != 20 {
			t.Errorf("%d writes were under way at most and %d made, want 3 and 20", most, done)
		}
	})
}

// A write that waits for its turn returns at the end of its context, without having
// written.
func TestWriteWaitsNoLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &slowWrites{answer: make(chan struct{})}
		c := inTurn{api, NewTurns(1)}
		go func() { _ = c.Create(t.Context(), &v1alpha1.PodAttachment{}) }()
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Create(ctx, &v1alpha1.PodAttachment{}) }()
		synctest.Wait()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("error %v, want that it was cancelled", err)
		}
		close(api.answer)
		synctest.Wait()
		if most := api.most; most != 1 {
			t.Errorf("%d writes were under way, want 1", most)
		}
	})
}

// A reconciler is busy while a pod is in its queue or with a worker.
func TestBusy(t *testing.T) {
	r := New(Config{Turns: NewTurns(2)})
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	want := func(busy bool, when string) {
		t.Helper()
		if got := r.Busy(); got != busy {
			t.Errorf("%s: busy %v, want %v", when, got, busy)
		}
	}
	want(false, "before it began")
	r.queue.Store(&queue)
	want(false, "without a pod")
	queue.Add(reconcile.Request{NamespacedName: types.NamespacedName{Name: "waits"}})
	want(true, "with a pod that waits")
	_, _ = queue.Get()
	r.working.Add(1)
	want(true, "with a pod that is worked on")
	r.working.Add(-1)
	want(false, "when that is done")
}
