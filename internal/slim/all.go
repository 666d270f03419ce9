package slim

import (
	"context"
	"fmt"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// All returns the cached objects of a kind, those that want says yes to. Unlike a list
// they are not copied, which for all pods of a large cluster would take more memory than
// the caches have; nobody may change them. It waits until the cache has all that there
// are.
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
