package native

import (
	"context"
	"errors"
	"slices"

	"k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam/block"
	"fairlead.dev/fairlead/internal/run"
)

// Feed connects the informers of IPBlocks, IPPools and IPReservations to the store and the
// set of pools. It does so on standbys too, so that a new leader has a complete state at
// once. A change of a pool or a reservation calls the functions registered by Pools.Wake.
func Feed(ctx context.Context, informers ctrlcache.Informers, s *block.Store, pools *Pools) (*Fed, error) {
	out := &Fed{}
	err := errors.Join(
		watch(ctx, informers, out, func(_, is *v1alpha1.IPBlock) { s.Observe(is) }, s.Forget),
		watch(ctx, informers, out, func(was, is *v1alpha1.IPPool) {
			pools.observe(is)
			pools.wake(was == nil || was.Generation != is.Generation, was == nil || reclaimChanged(was, is))
		}, func(o *v1alpha1.IPPool) {
			pools.forget(o.Name)
			pools.wake(true, true)
		}),
		watch(ctx, informers, out, func(was, is *v1alpha1.IPReservation) {
			pools.reserve(is)
			pools.wake(was == nil || was.Generation != is.Generation, false)
		}, func(o *v1alpha1.IPReservation) {
			pools.unreserve(o.Name)
			pools.wake(true, false)
		}))
	return out, err
}

// watch calls changed with each object of a kind that comes or changes, and gone with each that
// goes. was is nil for a new object.
func watch[T any, P interface {
	*T
	client.Object
}](ctx context.Context, informers ctrlcache.Informers, fed *Fed, changed func(was, is P), gone func(P)) error {
	informer, err := informers.GetInformer(ctx, P(new(T)))
	if err != nil {
		return err
	}
	handler, err := run.Observe(informer, changed, gone)
	fed.informers = append(fed.informers, handler)
	return err
}

// Fed reports how much of the initial state a store and its pools have received.
type Fed struct {
	informers []cache.ResourceEventHandlerRegistration
}

// Synced reports whether all objects that existed at the start have been received.
func (f *Fed) Synced() bool {
	return !slices.ContainsFunc(f.informers, func(r cache.ResourceEventHandlerRegistration) bool { return !r.HasSynced() })
}

// Wait returns true when Synced would, and false if ctx ends before.
func (f *Fed) Wait(ctx context.Context) bool {
	for _, r := range f.informers {
		select {
		case <-r.HasSyncedChecker().Done():
		case <-ctx.Done():
			return false
		}
	}
	return true
}
