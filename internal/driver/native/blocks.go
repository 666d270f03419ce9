package native

import (
	"context"
	"slices"

	"k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam/block"
	"fairlead.dev/fairlead/internal/run"
)

// Feed connects the informers of IPBlocks, IPPools and IPReservations to the store and the
// set of pools. It does so on standbys too, so that a new leader has a complete state at
// once. A change of a pool or a reservation calls the functions registered by Pools.Wake.
func Feed(ctx context.Context, informers ctrlcache.Informers, s *block.Store, pools *Pools) (*Fed, error) {
	blocks, err := informers.GetInformer(ctx, &v1alpha1.IPBlock{})
	if err != nil {
		return nil, err
	}
	blocksFed, err := blocks.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { s.Observe(o.(*v1alpha1.IPBlock)) },
		UpdateFunc: func(_, o any) { s.Observe(o.(*v1alpha1.IPBlock)) },
		DeleteFunc: func(o any) {
			if b, ok := run.Deleted(o).(*v1alpha1.IPBlock); ok {
				s.Forget(b)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	ippools, err := informers.GetInformer(ctx, &v1alpha1.IPPool{})
	if err != nil {
		return nil, err
	}
	poolsFed, err := ippools.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			pools.observe(o.(*v1alpha1.IPPool))
			pools.wake(true, true)
		},
		UpdateFunc: func(before, o any) {
			was, is := before.(*v1alpha1.IPPool), o.(*v1alpha1.IPPool)
			pools.observe(is)
			pools.wake(was.Generation != is.Generation, reclaimChanged(was, is))
		},
		DeleteFunc: func(o any) {
			if p, ok := run.Deleted(o).(*v1alpha1.IPPool); ok {
				pools.forget(p.Name)
			}
			pools.wake(true, true)
		},
	})
	if err != nil {
		return nil, err
	}
	reservations, err := informers.GetInformer(ctx, &v1alpha1.IPReservation{})
	if err != nil {
		return nil, err
	}
	reservationsFed, err := reservations.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			pools.reserve(o.(*v1alpha1.IPReservation))
			pools.wake(true, false)
		},
		UpdateFunc: func(before, o any) {
			was, is := before.(*v1alpha1.IPReservation), o.(*v1alpha1.IPReservation)
			pools.reserve(is)
			pools.wake(was.Generation != is.Generation, false)
		},
		DeleteFunc: func(o any) {
			if r, ok := run.Deleted(o).(*v1alpha1.IPReservation); ok {
				pools.unreserve(r.Name)
			}
			pools.wake(true, false)
		},
	})
	if err != nil {
		return nil, err
	}
	return &Fed{informers: []cache.ResourceEventHandlerRegistration{blocksFed, poolsFed, reservationsFed}}, nil
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
