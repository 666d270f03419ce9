package slim

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// lateCache is a cache whose start does not wait for the PodAttachments. The API server
// takes ten times as long to list them as to list as many pods, one after the other on
// one processor. Reads of PodAttachments wait until all are cached.
type lateCache struct {
	// Cache has all other kinds.
	cache.Cache
	late cache.Cache
}

// of returns the cache of a kind.
func (c lateCache) of(o any) cache.Cache {
	switch o.(type) {
	case *v1alpha1.PodAttachment, *v1alpha1.PodAttachmentList:
		return c.late
	}
	return c.Cache
}

// Start implements cache.Informers.
func (c lateCache) Start(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 2)
	for _, part := range []cache.Cache{c.Cache, c.late} {
		go func() { ended <- part.Start(ctx) }()
	}
	err := <-ended
	cancel()
	return errors.Join(err, <-ended)
}

// Get implements client.Reader.
func (c lateCache) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	return c.of(o).Get(ctx, key, o, opts...)
}

// List implements client.Reader.
func (c lateCache) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return c.of(list).List(ctx, list, opts...)
}

// GetInformer implements cache.Informers.
func (c lateCache) GetInformer(ctx context.Context, o client.Object, opts ...cache.InformerGetOption) (cache.Informer, error) {
	return c.of(o).GetInformer(ctx, o, opts...)
}

// GetInformerForKind implements cache.Informers.
func (c lateCache) GetInformerForKind(ctx context.Context, kind schema.GroupVersionKind, opts ...cache.InformerGetOption) (cache.Informer, error) {
	if kind == v1alpha1.GroupVersion.WithKind("PodAttachment") {
		return c.late.GetInformerForKind(ctx, kind, opts...)
	}
	return c.Cache.GetInformerForKind(ctx, kind, opts...)
}

// RemoveInformer implements cache.Informers.
func (c lateCache) RemoveInformer(ctx context.Context, o client.Object) error {
	return c.of(o).RemoveInformer(ctx, o)
}

// IndexField implements client.FieldIndexer.
func (c lateCache) IndexField(ctx context.Context, o client.Object, field string, of client.IndexerFunc) error {
	return c.of(o).IndexField(ctx, o, field, of)
}
