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

// LabelManagedBy has the value ManagedBy on the objects that the controller creates of kinds that
// people create too.
const (
	LabelManagedBy = "app.kubernetes.io/managed-by"
	ManagedBy      = "fairlead-controller"
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

// Informer tells of objects (cache.SharedIndexInformer and that of controller-runtime).
type Informer interface {
	AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error)
}

// Observe calls changed with each object that comes or changes, and gone with each that goes. T is
// a pointer; was is nil for an object that comes.
func Observe[T any](i Informer, changed func(was, is T), gone func(T)) (cache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			var none T
			changed(none, o.(T))
		},
		UpdateFunc: func(was, is any) { changed(was.(T), is.(T)) },
		DeleteFunc: func(o any) {
			if o, ok := Deleted(o).(T); ok {
				gone(o)
			}
		},
	})
}

// Newer reports whether a is a later state than b. They may be two objects of one name: resource
// versions are ordered across all objects of a resource. A version that cannot be compared is
// taken for a later one.
func Newer(a, b metav1.Object) bool {
	order, err := resourceversion.CompareResourceVersion(a.GetResourceVersion(), b.GetResourceVersion())
	return err != nil || order > 0
}
