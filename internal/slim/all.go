package slim

import (
	"context"
	"fmt"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// All returns the cached objects of a kind for which want returns true; all if want is
// nil. Unlike those of a List, the objects are not copied, so the caller must not
// change them: a copy of all pods of a large cluster would take more memory than the
// caches. All waits until the cache is complete.
func All[T client.Object](ctx context.Context, from cache.Informers, kind T, want func(T) bool) ([]T, error) {
	informer, err := from.GetInformer(ctx, kind)
	if err != nil {
		return nil, fmt.Errorf("read all %Ts from cache: %w", kind, err)
	}
	shared, ok := informer.(toolscache.SharedIndexInformer)
	if !ok {
		return nil, fmt.Errorf("read all %Ts from cache: its informer is a %T", kind, informer)
	}
	var out []T
	for _, o := range shared.GetStore().List() {
		if v, ok := o.(T); ok && (want == nil || want(v)) {
			out = append(out, v)
		}
	}
	return out, nil
}
