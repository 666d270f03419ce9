package native

import (
	"context"

	"k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam/block"
)

// Feed connects the informers of IPBlocks, IPPools and IPReservations to the
// store and the set of pools, also on a standby, so that a new leader knows everything at once.
// The returned function reports whether all that existed has been taken in.
func Feed(ctx context.Context, informers ctrlcache.Informers, s *block.Store, pools *Pools) (synced func() bool, err error) {
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
		AddFunc:    func(o any) { pools.observe(o.(*v1alpha1.IPPool)) },
		UpdateFunc: func(_, o any) { pools.observe(o.(*v1alpha1.IPPool)) },
		DeleteFunc: func(o any) {
			if p, ok := last[*v1alpha1.IPPool](o); ok {
				pools.forget(p.Name)
			}
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
		AddFunc:    func(o any) { pools.reserve(o.(*v1alpha1.IPReservation)) },
		UpdateFunc: func(_, o any) { pools.reserve(o.(*v1alpha1.IPReservation)) },
		DeleteFunc: func(o any) {
			if r, ok := last[*v1alpha1.IPReservation](o); ok {
				pools.unreserve(r.Name)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	return func() bool {
		return blocksFed.HasSynced() && poolsFed.HasSynced() && reservationsFed.HasSynced()
	}, nil
}

// last is the object of a delete event, also of one that the watch missed.
func last[T any](o any) (T, bool) {
	if t, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = t.Obj
	}
	v, ok := o.(T)
	return v, ok
}
