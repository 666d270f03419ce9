package slim

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// lateCache does not wait for the PodAttachments when it begins: the API server
// takes ten times as long to list them as to list as many pods, one after the
// other on one processor. Who reads one before all are there waits for them.
type lateCache struct {
	// Cache is of everything else.
	cache.Cache
	late cache.Cache
}

// of is the cache that has a kind of object.
func (c lateCache) of(o any) cache.Cache {
	switch o.(type) {
	case *v1alpha1.PodAttachment, *v1alpha1.PodAttachmentList:
		return c.late
	}
	return c.Cache
}

// Start is of cache.Informers.
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

// Get is of client.Reader.
func (c lateCache) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	return c.of(o).Get(ctx, key, o, opts...)
}

// List is of client.Reader.
func (c lateCache) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return c.of(list).List(ctx, list, opts...)
}

// GetInformer is of cache.Informers.
func (c lateCache) GetInformer(ctx context.Context, o client.Object, opts ...cache.InformerGetOption) (cache.Informer, error) {
	return c.of(o).GetInformer(ctx, o, opts...)
}

// GetInformerForKind is of cache.Informers.
func (c lateCache) GetInformerForKind(ctx context.Context, kind schema.GroupVersionKind, opts ...cache.InformerGetOption) (cache.Informer, error) {
	if kind == attachmentKind {
		return c.late.GetInformerForKind(ctx, kind, opts...)
	}
	return c.Cache.GetInformerForKind(ctx, kind, opts...)
}

// RemoveInformer is of cache.Informers.
func (c lateCache) RemoveInformer(ctx context.Context, o client.Object) error {
	return c.of(o).RemoveInformer(ctx, o)
}

// IndexField is of client.FieldIndexer.
func (c lateCache) IndexField(ctx context.Context, o client.Object, field string, of client.IndexerFunc) error {
	return c.of(o).IndexField(ctx, o, field, of)
}
