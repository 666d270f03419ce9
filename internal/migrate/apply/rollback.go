package apply

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block"
	"fairlead.dev/fairlead/internal/migrate"
	"fairlead.dev/fairlead/internal/pod"
)

// PlanRollback reads the cluster and returns its state and the objects to write so that
// whereabouts can continue. It changes nothing.
func (m Migration) PlanRollback(ctx context.Context) (*Cluster, *migrate.Export, error) {
	c, err := Read(ctx, m.API, m.Namespace, m.FlatFile)
	if err != nil {
		return nil, nil, err
	}
	out, err := migrate.MakeExport(c.State, c.Namespace)
	if err != nil {
		return nil, nil, err
	}
	return c, out, nil
}

// Rollback writes Fairlead's state into whereabouts' objects, deletes it from Fairlead,
// and releases the Leases, in this order.
func (m Migration) Rollback(ctx context.Context) (*Cluster, *migrate.Export, error) {
	c, _, err := m.PlanRollback(ctx)
	if err != nil {
		return nil, nil, err
	}
	if err := m.quiet(ctx, c); err != nil {
		return nil, nil, err
	}
	barrier := m.Barrier(c)
	if err := barrier.Take(ctx); err != nil {
		return nil, nil, err
	}
	c, out, err := m.PlanRollback(ctx)
	if err != nil {
		return nil, nil, err
	}
	if err := m.export(ctx, out); err != nil {
		return nil, nil, err
	}
	again, left, err := m.PlanRollback(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("verify: %w", err)
	}
	if !left.Done() {
		return nil, nil, fmt.Errorf("verify: Fairlead has given or taken back addresses meanwhile: stop its controller from serving these networks, and roll back again")
	}
	if err := m.forget(ctx, again, left.Given); err != nil {
		return nil, nil, err
	}
	return c, out, barrier.Release(ctx)
}

// export writes whereabouts' objects.
func (m Migration) export(ctx context.Context, e *migrate.Export) error {
	for _, p := range e.Pools {
		allocations, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&struct {
			Allocations map[string]migrate.Allocation `json:"allocations"`
		}{p.Allocations})
		if err != nil {
			return fmt.Errorf("IPPool %s: %w", p.Name, err)
		}
		spec := map[string]any{"range": p.Range, "allocations": allocations["allocations"]}
		if err := m.put(ctx, poolKind.object(p.Namespace, p.Name), spec); err != nil {
			return err
		}
	}
	for _, r := range e.Reservations {
		spec := map[string]any{"podref": r.PodRef, "ifname": r.Interface}
		if err := m.put(ctx, reservationKind.object(r.Namespace, r.Name), spec); err != nil {
			return err
		}
	}
	for _, r := range e.Delete {
		if err := m.API.Delete(ctx, reservationKind.object(r.Namespace, r.Name)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete OverlappingRangeIPReservation %s/%s: %w", r.Namespace, r.Name, err)
		}
	}
	return nil
}

// put creates an object of whereabouts, or updates its spec.
func (m Migration) put(ctx context.Context, o *unstructured.Unstructured, spec map[string]any) error {
	what := fmt.Sprintf("%s %s/%s", o.GetKind(), o.GetNamespace(), o.GetName())
	err := m.API.Get(ctx, client.ObjectKeyFromObject(o), o)
	o.Object["spec"] = spec
	switch {
	case apierrors.IsNotFound(err):
		err = m.API.Create(ctx, o)
	case err == nil:
		err = m.API.Update(ctx, o)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", what, err)
	}
	return nil
}

// forget deletes Fairlead's reservations, records and allocations of whereabouts'
// networks. Records with interfaces that Fairlead made stay: they are immutable, and
// their pods use them.
func (m Migration) forget(ctx context.Context, c *Cluster, given []migrate.Given) error {
	for i := range c.Withheld {
		if r := &c.Withheld[i]; r.Labels[v1alpha1.LabelMigratedFrom] == migrate.System {
			if err := m.API.Delete(ctx, r); client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("delete IPReservation %s: %w", r.Name, err)
			}
		}
	}
	records := map[pod.Key]*v1alpha1.PodAttachment{}
	for i := range c.Records {
		records[pod.HolderOf(&c.Records[i])] = &c.Records[i]
	}
	recordOf := func(h ipam.Holder) *v1alpha1.PodAttachment {
		return records[pod.Key{Namespace: h.Namespace, Name: h.Pod, UID: types.UID(h.PodUID)}]
	}
	given = slices.DeleteFunc(slices.Clone(given), func(g migrate.Given) bool {
		r := recordOf(g.Holder)
		return r != nil && !foreign(r)
	})
	for _, g := range given {
		if r := recordOf(g.Holder); r != nil {
			if err := m.deleteRecord(ctx, r); err != nil {
				return err
			}
		}
	}
	return m.store(ctx, c.Blocks, func(ctx context.Context, s *block.Store) error {
		todo, ctx := errgroup.WithContext(ctx)
		todo.SetLimit(concurrentTakes)
		for _, g := range given {
			todo.Go(func() error {
				if err := s.Free(ctx, g.Holder, g.Domain, []netip.Addr{g.Addr}); err != nil {
					return fmt.Errorf("free %s of %s: %w", g.Addr, g.Holder, err)
				}
				return nil
			})
		}
		return todo.Wait()
	})
}

// foreign reports whether other plugins made all interfaces of a record.
func foreign(r *v1alpha1.PodAttachment) bool {
	return !slices.ContainsFunc(r.Spec.Interfaces, func(i v1alpha1.Interface) bool { return i.Binding.AddressOnly == nil })
}

// deleteRecord deletes a record without its release: whereabouts has its addresses now.
func (m Migration) deleteRecord(ctx context.Context, r *v1alpha1.PodAttachment) error {
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	err := m.controller().Patch(ctx, r.DeepCopy(), patch)
	if err == nil {
		err = m.controller().Delete(ctx, r, client.Preconditions{UID: &r.UID})
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete PodAttachment %s: %w", klog.KObj(r), err)
	}
	return nil
}
