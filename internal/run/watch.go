package run

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
)

// RetryFirst and RetryLast bound the wait after a failure.
const (
	RetryFirst = time.Second
	RetryLast  = 30 * time.Second
)

// KeepWatching restarts a watch when it ends, until ctx ends. The wait before a restart
// doubles with each failure from RetryFirst to RetryLast. It is RetryFirst again after a
// watch that lasted at least RetryLast.
func KeepWatching(ctx context.Context, what string, watch func(context.Context) error) {
	wait := RetryFirst
	for {
		start := time.Now()
		err := watch(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(start) >= RetryLast {
			wait = RetryFirst
		}
		logr.FromContextOrDiscard(ctx).Error(err, what+" ended, restarting", "after", wait)
		if !Sleep(ctx, wait) {
			return
		}
		wait = min(2*wait, RetryLast)
	}
}

// Sleep waits for d; it returns false if ctx ends first.
func Sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Deleted returns the object of an informer's delete event. If the watch missed the deletion,
// the object has the last state that the informer knows, which may be old.
func Deleted(o any) any {
	if missed, ok := o.(cache.DeletedFinalStateUnknown); ok {
		return missed.Obj
	}
	return o
}

// Newer reports whether a is a later state than b. They may be two objects of one name: resource
// versions are ordered across all objects of a resource. A version that cannot be compared is
// taken for a later one.
func Newer(a, b metav1.Object) bool {
	order, err := resourceversion.CompareResourceVersion(a.GetResourceVersion(), b.GetResourceVersion())
	return err != nil || order > 0
}
