package upkeep

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver/native"
)

// The node of a block that is created or deleted is reconciled at once, since the node
// waits for it. If only slots change, it is reconciled once per StatusDelay: otherwise a
// NodeNetwork is written again before the cache shows the last write.
func TestBlocksAreGathered(t *testing.T) {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	block := &v1alpha1.IPBlock{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: v1alpha1.IPBlockSpec{Node: "x"}}
	for _, tc := range []struct {
		name   string
		happen func(context.Context, handler.EventHandler, queue)
		atOnce bool
	}{
		{"block created", func(ctx context.Context, h handler.EventHandler, q queue) {
			h.Create(ctx, event.CreateEvent{Object: block}, q)
		}, true},
		{"block written", func(ctx context.Context, h handler.EventHandler, q queue) {
			h.Update(ctx, event.UpdateEvent{ObjectOld: block, ObjectNew: block}, q)
		}, false},
		{"block deleted", func(ctx context.Context, h handler.EventHandler, q queue) {
			h.Delete(ctx, event.DeleteEvent{Object: block}, q)
		}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
				defer q.ShutDown()
				started := time.Now()
				for range 10 {
					tc.happen(t.Context(), (&Nodes{}).BlockEvents(), q)
				}
				want := reconcile.Request{NamespacedName: client.ObjectKey{Name: "x"}}
				got, _ := q.Get()
				if got != want {
					t.Errorf("%v is enqueued, want %v", got, want)
				}
				delay := native.StatusDelay
				if tc.atOnce {
					delay = 0
				}
				if took := time.Since(started); took != delay || q.Len() > 0 {
					t.Errorf("it came after %s, and %d times more; want %s, once", took, q.Len(), delay)
				}
			})
		})
	}
}
