package neutron

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/openstack/cloud"
)

// ours returns the holder of a port of this cluster. A port in a project that no port of
// this cluster can be in is another's, whatever it has in its texts.
func (d *Driver) ours(c *cloud.Cloud, p cloud.Port) (holder, bool) {
	if !owned(p) || !d.mayHold(c, p.ProjectID) {
		return holder{}, false
	}
	return read(d.cfg.Cluster, texts{p.DeviceID, p.Name, p.Description})
}

// find returns the ports of an owner, that of the record first. There may be several, if a
// create whose reply was lost ended after the next one. The identity decides, not the
// record: the record of another pod may name any port.
func (d *Driver) find(ctx context.Context, c *cloud.Cloud, ref driver.Ref) ([]cloud.Port, error) {
	var found []cloud.Port
	for _, q := range d.queries(ref) {
		some, err := c.Ports(ctx, q)
		if err != nil {
			return nil, unavailable(err)
		}
		for _, p := range some {
			if p.DeviceID == q.DeviceID && (q.Name == "" || p.Name == q.Name) && owned(p) && d.mayHold(c, p.ProjectID) {
				found = append(found, p)
			}
		}
	}
	if n := slices.IndexFunc(found, func(p cloud.Port) bool { return p.ID == ref.Interface.Binding.Port() }); n > 0 {
		found[0], found[n] = found[n], found[0]
	}
	return found, nil
}

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
	found, err := d.find(ctx, c, ref)
	if err != nil {
		return err
	}
	for _, p := range found {
		var err error
		if h, ok := d.ours(c, p); ok && h.next != nil {
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
	d.ports.released(ref.Owner)
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
	d.ports.released(ref.Owner)
	id := ref.Interface.Binding.Port()
	return id == "" || id == freed.ID, nil
}

// unavailable makes every error driver.ErrUnavailable: a release is repeated for ever.
func unavailable(err error) error {
	if errors.Is(err, driver.ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
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
	found, err := d.find(ctx, c, ref)
	if err != nil {
		return v1alpha1.Interface{}, err
	}
	for _, p := range found {
		if h, ok := d.ours(c, p); ok {
			at, err := d.readParents(ctx, c, []holder{h})
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
		return d.interfaceOf(ctx, c, h.inheritance(), p, parents{})
	}
	return v1alpha1.Interface{}, fmt.Errorf("%w: no port of pod %s/%s for interface %s", driver.ErrNotFound, ref.Namespace, ref.PodName, ref.Owner.Interface)
}

func (d *Driver) interfaceOf(ctx context.Context, c *cloud.Cloud, h holder, p cloud.Port, at parents) (v1alpha1.Interface, error) {
	w, err := d.known.wiring(ctx, c, p.NetworkID)
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
func (d *Driver) pooled(ctx context.Context) (refs []driver.Ref) {
	if d.pools == nil {
		return nil
	}
	for _, held := range d.pools.All() {
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
		if _, pooled := placeOf(d.cfg.Cluster, p); pooled && d.mayHold(c, p.ProjectID) {
			ids = append(ids, p.ID)
		}
	}
	d.pools.Listed(ids)
}

// collected returns the holders of a port that a pod has for itself, but for those seen
// before. There are none of any other port.
func (d *Driver) collected(ctx context.Context, c *cloud.Cloud, p cloud.Port, seen map[portKey]bool) []holder {
	if _, pooled := placeOf(d.cfg.Cluster, p); pooled {
		return nil
	}
	h, ok := d.ours(c, p)
	if !ok && strings.HasPrefix(p.DeviceID, prefixOf(d.cfg.Cluster)) {
		log.FromContext(ctx).Info("a port with the device ID of this cluster is not collected: its name, description or project was changed", "port", p.ID, "name", p.Name)
	}
	if !ok {
		return nil
	}
	return h.unseen(seen)
}

// List implements driver.Driver. It yields the ports of pools that pods have, and reads a list
// by the owner of the ports, which is written with the create: a port without its tag is in
// it. Neutron changes the owner of subports, which have their tag by then: a second list has
// them.
func (d *Driver) List(ctx context.Context) iter.Seq2[driver.Ref, error] {
	return func(yield func(driver.Ref, error) bool) {
		seen := map[portKey]bool{}
		for _, ref := range d.pooled(ctx) {
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
			for _, h := range d.collected(ctx, c, p, seen) {
				i, err := d.interfaceOf(ctx, c, h, p, at)
				if !yield(driver.Ref{Owner: h.Owner, Interface: i}, err) || err != nil {
					return
				}
			}
		}
	}
}
