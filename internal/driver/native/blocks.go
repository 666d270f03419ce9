package native

import (
	"context"
	"slices"

	"k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam/block"
)

// Feed connects the informers of IPBlocks, IPPools and IPReservations to the
// store and the set of pools, also on a standby, so that a new leader knows everything at once.
// A change of a pool or a reservation calls pods back, as Pools.Wake was told.
func Feed(ctx context.Context, informers ctrlcache.Informers, s *block.Store, pools *Pools) (*Fed, error) {
	blocks, err := informers.GetInformer(ctx, &v1alpha1.IPBlock{})
	if err != nil {
		return nil, err
	}
	blocksFed, err := blocks.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { s.Observe(o.(*v1alpha1.IPBlock)) },
		UpdateFunc: func(_, o any) { s.Observe(o.(*v1alpha1.IPBlock)) },
		DeleteFunc: func(o any) {
			if b, ok := last[*v1alpha1.IPBlock](o); ok {
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
			if p, ok := last[*v1alpha1.IPPool](o); ok {
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
			if r, ok := last[*v1alpha1.IPReservation](o); ok {
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

// Fed is how far a store and pools have been fed.
type Fed struct {
	informers []cache.ResourceEventHandlerRegistration
}

// Synced reports whether all that existed has been taken in.
func (f *Fed) Synced() bool {
	return !slices.ContainsFunc(f.informers, func(r cache.ResourceEventHandlerRegistration) bool { return !r.HasSynced() })
}

// Wait returns true when all that existed has been taken in, and false when ctx ends
// before.
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

// last is the object of a delete event, also of one that the watch missed.
func last[T any](o any) (T, bool) {
	if t, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = t.Obj
	}
	v, ok := o.(T)
	return v, ok
}
