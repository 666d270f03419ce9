package neutron

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/driver/neutron/pool"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/openstack/cloud"
)

// Release implements driver.Driver.
func (d *Driver) Release(ctx context.Context, ref driver.Ref) error {
	if pooled, err := d.toPool(ctx, ref); pooled || err != nil {
		return err
	}
	c, err := d.conn.get()
	if err != nil {
		return err
	}
	leave, err := d.enter(ctx, "releases", atOnce)
	if err != nil {
		return err
	}
	defer leave()
	found, err := d.owners.find(ctx, c, ref)
	if err != nil {
		return err
	}
	for _, p := range found {
		var err error
		if h, ok := d.owners.holderOf(c, p); ok && h.next != nil {
			err = d.handOver(ctx, c, ref.Owner, p.ID)
		} else {
			err = d.remove(ctx, c, p)
		}
		if err != nil {
			return unavailable(fmt.Errorf("port %s: %w", p.ID, err))
		}
	}
	if len(found) == 0 {
		if err := d.stepBack(ctx, c, ref); err != nil {
			return unavailable(err)
		}
	}
	d.ports.Released(ref.Owner)
	return nil
}

// toPool gives a port back to its pool. pooled is true if the owner has no other port, as
// far as its record goes: a port of its own beside it is found by garbage collection.
func (d *Driver) toPool(ctx context.Context, ref driver.Ref) (pooled bool, err error) {
	if d.pools == nil {
		return false, nil
	}
	freed, ok, err := d.pools.Free(ctx, poolHolder(holder{Owner: ref.Owner}))
	if err != nil {
		return false, unavailable(err)
	}
	if !ok {
		return false, nil
	}
	d.ports.Released(ref.Owner)
	id := ref.Interface.Binding.Port()
	return id == "" || id == freed.ID, nil
}

// unavailable makes every error fault.ErrUnavailable: a release is repeated for ever.
func unavailable(err error) error {
	if errors.Is(err, fault.ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", fault.ErrUnavailable, err)
}

// Confirm implements driver.Driver.
func (d *Driver) Confirm(ctx context.Context, ref driver.Ref) (v1alpha1.Interface, error) {
	if d.pools != nil {
		held, ok, err := d.pools.Confirm(ctx, poolHolder(holder{Owner: ref.Owner}))
		if err != nil {
			return v1alpha1.Interface{}, unavailable(err)
		}
		if ok {
			return pooledInterface(held)
		}
	}
	c, err := d.conn.get()
	if err != nil {
		return v1alpha1.Interface{}, err
	}
	found, err := d.owners.find(ctx, c, ref)
	if err != nil {
		return v1alpha1.Interface{}, err
	}
	for _, p := range found {
		if h, ok := d.owners.holderOf(c, p); ok {
			at, err := readParents(ctx, c, []holder{h})
			if err != nil {
				return v1alpha1.Interface{}, unavailable(err)
			}
			return d.interfaceOf(ctx, c, h, p, at)
		}
	}
	p, h, err := d.shareOf(ctx, c, ref)
	if err != nil {
		return v1alpha1.Interface{}, unavailable(err)
	}
	if h.next != nil {
		return d.interfaceOf(ctx, c, h.successor(), p, parents{})
	}
	return v1alpha1.Interface{}, fmt.Errorf("%w: no port of pod %s/%s for interface %s", fault.ErrNotFound, ref.Namespace, ref.PodName, ref.Owner.Interface)
}

func (d *Driver) interfaceOf(ctx context.Context, c *cloud.Cloud, h holder, p cloud.Port, at parents) (v1alpha1.Interface, error) {
	w, err := d.known.network(ctx, c, p.NetworkID)
	if err != nil {
		return v1alpha1.Interface{}, unavailable(err)
	}
	i, err := interfaceOf(h, p, w, at.binding(d, h, p))
	if err != nil {
		d.known.forget()
	}
	return i, err
}

// pooled returns the interfaces of the pods that have ports of pools.
func pooled(ctx context.Context, pools *pool.Pools) (refs []driver.Ref) {
	if pools == nil {
		return nil
	}
	for _, held := range pools.All() {
		i, err := pooledInterface(held)
		if err != nil {
			log.FromContext(ctx).Info("a port of a pool is not collected", "port", held.ID, "reason", err.Error())
			continue
		}
		refs = append(refs, driver.Ref{Owner: ownerOf(held), Interface: i})
	}
	return refs
}

// showPools passes the listed ports of pools to them.
func (d *Driver) showPools(c *cloud.Cloud, all []cloud.Port) {
	if d.pools == nil {
		return
	}
	var ids []string
	for _, p := range all {
		if _, pooled := placeOf(d.cfg.Cluster, p); pooled && d.projects.mayHold(c, p.ProjectID) {
			ids = append(ids, p.ID)
		}
	}
	d.pools.Listed(ids)
}

// List implements driver.Driver. It yields the ports of pools that pods have, and reads a list
// by the owner of the ports, which is written with the create: a port without its tag is in
// it. Neutron changes the owner of subports, which have their tag by then: a second list has
// them.
func (d *Driver) List(ctx context.Context) iter.Seq2[driver.Ref, error] {
	return func(yield func(driver.Ref, error) bool) {
		seen := map[driver.Owner]bool{}
		for _, ref := range pooled(ctx, d.pools) {
			seen[keyOf(ref.Owner)] = true
			if !yield(ref, nil) {
				return
			}
		}
		c, err := d.conn.get()
		if err != nil {
			yield(driver.Ref{}, err)
			return
		}
		all, at, err := d.listed(ctx, c)
		if err != nil {
			yield(driver.Ref{}, translate(err))
			return
		}
		d.showPools(c, all)
		for _, p := range all {
			if !d.yieldPort(ctx, c, p, at, seen, yield) {
				return
			}
		}
	}
}

// yieldPort yields a port for each of its owners, and reports whether the list goes on. A port is
// logged and left out if its network cannot be read: it holds up no other.
func (d *Driver) yieldPort(ctx context.Context, c *cloud.Cloud, p cloud.Port, at parents, seen map[driver.Owner]bool, yield func(driver.Ref, error) bool) bool {
	for _, h := range d.owners.collected(ctx, c, p, seen) {
		i, err := d.interfaceOf(ctx, c, h, p, at)
		if err != nil && !errors.Is(err, cloud.ErrUnavailable) {
			log.FromContext(ctx).Info("a port is not collected: its network cannot be read", "port", p.ID, "network", p.NetworkID, "reason", err.Error())
			continue
		}
		if !yield(driver.Ref{Owner: h.Owner, Interface: i}, err) || err != nil {
			return false
		}
	}
	return true
}
