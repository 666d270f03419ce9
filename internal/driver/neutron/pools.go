package neutron

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/driver/neutron/choice"
	"fairlead.dev/fairlead/internal/driver/neutron/pool"
	"fairlead.dev/fairlead/internal/driver/neutron/wiring"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/openstack/cloud"
)

// poolHolder returns the holder of a port of a pool.
func poolHolder(h holder) pool.Holder {
	return pool.Holder{UID: h.PodUID, Namespace: h.Namespace, Name: h.PodName, Interface: h.Interface, Network: h.network, Default: h.isDefault}
}

// poolKey returns the pool of a request. ok is false if the pod wishes what a port of a pool
// does not have.
func poolKey(r *driver.Request, what target, host string) (k pool.Key, ok bool) {
	if what.Machine || len(r.Addresses) > 0 || r.MAC != "" || what.PodDNS || what.QoSPolicy != "" || len(what.Groups) == 0 && what.Groups != nil && !what.NoSecurity {
		return pool.Key{}, false
	}
	k = pool.Key{Node: r.NodeName, Host: host, Project: what.Project, Network: what.Network, Subnets: what.Subnets, PortSecurityOff: what.NoSecurity}
	if what.way == Trunk {
		k.Way, k.Host = string(Trunk), ""
	}
	if len(what.Groups) > 0 {
		k.Groups = slices.Compact(slices.Sorted(slices.Values(what.Groups)))
	}
	return k, true
}

// fromPool obtains a port of a pool, without a call of the cloud. ok is false if the owner
// gets a port of its own.
func (d *Driver) fromPool(ctx context.Context, r *driver.Request, h holder, what target, host string) (a *driver.Attachment, ok bool, err error) {
	if d.pools == nil {
		return nil, false, nil
	}
	if held, has, err := d.pools.Of(poolHolder(h)); err != nil {
		return nil, true, translate(err)
	} else if has {
		a, err = d.handOut(r, held)
		return a, true, err
	}
	k, ok := poolKey(r, what, host)
	if !ok || what.way == Macvlan {
		return nil, false, nil
	}
	if next, ready := d.pools.Peek(k); ready && r.Writable != nil {
		next.Holder = poolHolder(h)
		i, err := pooledInterface(next)
		if err == nil {
			err = r.Writable(i)
		}
		if err != nil {
			return nil, true, fmt.Errorf("%w: %w", fault.ErrInvalid, err)
		}
	}
	held, err := d.pools.Take(ctx, k, poolHolder(h))
	switch {
	case errors.Is(err, pool.ErrOwn):
		return nil, false, nil
	case err != nil:
		return nil, true, translate(err)
	}
	a, err = d.handOut(r, held)
	return a, true, err
}

func (d *Driver) handOut(r *driver.Request, held pool.Held) (*driver.Attachment, error) {
	i, err := pooledInterface(held)
	if err != nil {
		return nil, err
	}
	ref := driver.Ref{Owner: r.Owner, Interface: i}
	if i.Binding.VLAN == nil {
		d.ports.Obtained(ref, true)
	} else {
		d.ports.Watched(ref)
	}
	return &driver.Attachment{Interface: i, Active: true}, nil
}

// pooledInterface returns the interface of a port of a pool. Its ADD does not wait until
// Neutron reports the port as ACTIVE (ADR 0027).
func pooledInterface(held pool.Held) (v1alpha1.Interface, error) {
	w, err := wiring.Restore(held.Network)
	if err != nil {
		return v1alpha1.Interface{}, err
	}
	p, err := w.RestorePort(held.Port)
	if err != nil {
		return v1alpha1.Interface{}, err
	}
	b := bound{}.binding(p, parent{}, 0)
	if held.Key.Way == string(Trunk) {
		b = subport{}.binding(p, parent{MAC: held.Network.ParentMAC}, int(held.VLAN))
	}
	i, err := interfaceOf(holder{Owner: ownerOf(held), network: held.Holder.Network, isDefault: held.Default}, p, w, b)
	i.WaitForActive = false
	return i, err
}

func ownerOf(held pool.Held) driver.Owner {
	return driver.Owner{PodUID: held.UID, Interface: held.Interface, Namespace: held.Namespace, PodName: held.Name, NodeName: held.Key.Node}
}

// poolPrefix is the beginning of the identities of the ports of pools. No UID of a pod is
// "pool".
func poolPrefix(cluster string) string { return prefixOf(cluster) + "pool/" }

// placeOf returns the place of a port of a pool: "fairlead/CLUSTER/pool/POOL/SLOT" is its
// device ID. A subport has none: its name is the identity.
func placeOf(cluster string, p cloud.Port) (pool.Place, bool) {
	own, found := strings.CutPrefix(cmp.Or(p.DeviceID, p.Name), poolPrefix(cluster))
	name, number, _ := strings.Cut(own, "/")
	n, err := strconv.Atoi(number)
	return pool.Place{Pool: name, Slot: n}, found && err == nil && owned(p)
}

// specOf returns the port of a place. n is the network of the pool.
func specOf(cluster string, k pool.Key, n v1alpha1.PortPoolNetwork, at pool.Place) cloud.PortSpec {
	place := at.Pool + "/" + strconv.Itoa(at.Slot)
	s := cloud.PortSpec{
		Name: "fairlead-pool/" + place, Description: "node=" + k.Node, DeviceID: poolPrefix(cluster) + place, DeviceOwner: DeviceOwner,
		Project: k.Project, Network: n.ID, Host: k.Host, Groups: n.GroupIDs, NoSecurity: k.PortSecurityOff,
	}
	if k.Way == string(Trunk) {
		s.Name, s.DeviceID = s.DeviceID, ""
		s.Description += parentField + n.ParentPort
	}
	if len(k.Groups) == 0 && !k.PortSecurityOff {
		s.Groups = nil // the default group
	}
	return s
}

// parentField precedes the ID of the port of the machine in the description of a port of a
// pool.
const parentField = " parent="

// parentIn returns the ID of the port of the machine of a port of a pool; empty if it is no
// subport.
func parentIn(p cloud.Port) string {
	_, id, _ := strings.Cut(p.Description, parentField)
	return id
}

// maker is pool.Maker. It binds ports on a host, or adds them to the trunk of a machine.
type maker struct{ d *Driver }

// Network implements pool.Maker.
func (m maker) Network(ctx context.Context, k pool.Key) (v1alpha1.PortPoolNetwork, error) {
	n, _, err := m.network(ctx, k)
	return n, err
}

func (m maker) network(ctx context.Context, k pool.Key) (n v1alpha1.PortPoolNetwork, addresses [][]cloud.Address, err error) {
	c, err := m.d.conn.get()
	if err != nil {
		return n, nil, err
	}
	w, addresses, err := m.d.place(ctx, c, &driver.Request{}, target{Choice: choice.Choice{Settings: choice.Settings{Network: k.Network, Subnets: k.Subnets}}})
	if err != nil {
		return n, nil, err
	}
	groups, err := m.d.known.groups(ctx, c.Groups, k.Groups)
	n = w.Store(groups)
	if err == nil && k.Way == string(Trunk) {
		var at parent
		at, err = m.d.nodes.machinePort(ctx, c, k.Node)
		n.ParentPort, n.ParentMAC = at.ID, at.MAC
	}
	return n, addresses, err
}

// Make implements pool.Maker.
func (m maker) Make(ctx context.Context, k pool.Key, n v1alpha1.PortPoolNetwork, places []pool.Place) ([]pool.Port, error) {
	c, err := m.d.conn.get()
	if err != nil {
		return nil, err
	}
	_, addresses, err := m.network(ctx, k)
	if err != nil {
		return nil, err
	}
	var specs []cloud.PortSpec
	for _, at := range places {
		specs = append(specs, specOf(m.d.cfg.Cluster, k, n, at))
	}
	var made []cloud.Port
	for _, plan := range addresses {
		for i := range specs {
			specs[i].Addresses = plan
		}
		if made, err = c.CreatePorts(ctx, specs); !errors.Is(err, cloud.ErrFull) {
			break
		}
	}
	switch {
	case errors.Is(err, cloud.ErrNotFound):
		m.d.known.forget()
		return nil, fmt.Errorf("%w: the network, a subnet or a security group has gone since it was read: %w", fault.ErrUnavailable, err)
	case errors.Is(err, cloud.ErrQuota):
		return nil, fmt.Errorf("%w: the quota of OpenStack project %s is used up: raise the quota, delete ports, or lower openstack.ports.pools.low: %w", fault.ErrExhausted, cmp.Or(k.Project, c.Project()), err)
	case err != nil:
		return nil, translate(err)
	}
	return m.ready(ctx, c, k, n, made)
}

// ready returns ports that a node can plug. Of the ports that are not, the first error is
// returned once all others are done.
func (m maker) ready(ctx context.Context, c *cloud.Cloud, k pool.Key, n v1alpha1.PortPoolNetwork, made []cloud.Port) ([]pool.Port, error) {
	w, err := wiring.Restore(n)
	if err != nil {
		return nil, err
	}
	var first error
	out := make([]pool.Port, len(made))
	ids := make([]string, len(made))
	for i, p := range made {
		ids[i] = p.ID
		if out[i], err = m.fit(ctx, c, k, n, w, p); err != nil && first == nil {
			first = err
		}
	}
	if n.ParentPort == "" || first != nil {
		return out, first
	}
	vlans, err := m.d.trunks.AddAll(ctx, n.ParentPort, ids)
	if err != nil {
		return nil, m.d.explainAttach(&driver.Request{Owner: driver.Owner{NodeName: k.Node}}, parent{ID: n.ParentPort}, err)
	}
	for i := range out {
		out[i].VLAN = int32(vlans[i]) //nolint:gosec // 1 to 4094
	}
	return out, nil
}

// fit returns a port for a pool. It deletes a port that Neutron could not bind, or that was
// made for another machine, so that it is made again. An adopted port gets the groups of the
// pool.
func (m maker) fit(ctx context.Context, c *cloud.Cloud, k pool.Key, n v1alpha1.PortPoolNetwork, w wiring.Network, p cloud.Port) (pool.Port, error) {
	if useless, err := fitting(p, n); err != nil {
		if useless {
			err = errors.Join(err, m.remove(ctx, c, p.ID, parentIn(p)))
		}
		return pool.Port{}, err
	}
	out, err := w.StorePort(p)
	if err != nil {
		m.d.known.forget() // a subnet may be new
		return out, err
	}
	if len(k.Groups) > 0 && !slices.Equal(slices.Sorted(slices.Values(p.Groups)), n.GroupIDs) {
		return out, m.Change(ctx, out, n)
	}
	return out, nil
}

// fitting returns nil if a port can be made ready for its pool. useless is true if it never
// can. Errors: fault.ErrUnavailable.
func fitting(p cloud.Port, n v1alpha1.PortPoolNetwork) (useless bool, err error) {
	if n.ParentPort == "" {
		return p.VIFType == bindingFailed, servable(p)
	}
	if was := parentIn(p); was != n.ParentPort {
		return true, fmt.Errorf("%w: port %s was made for the machine with port %s: it is made again for that with port %s", fault.ErrUnavailable, p.ID, was, n.ParentPort)
	}
	return false, nil
}

// Change implements pool.Maker.
func (m maker) Change(ctx context.Context, p pool.Port, n v1alpha1.PortPoolNetwork) error {
	c, err := m.d.conn.get()
	if err != nil {
		return err
	}
	_, err = c.UpdatePort(ctx, p.ID, 0, cloud.PortChange{Groups: &n.GroupIDs})
	return translate(err)
}

// Delete implements pool.Maker.
func (m maker) Delete(ctx context.Context, p pool.Port, n v1alpha1.PortPoolNetwork) error {
	c, err := m.d.conn.get()
	if err != nil {
		return err
	}
	return translate(m.remove(ctx, c, p.ID, n.ParentPort))
}

// remove deletes a port, after it has left the trunk of a machine; empty for none. Ports that
// leave one trunk together share a call.
func (m maker) remove(ctx context.Context, c *cloud.Cloud, id, parent string) error {
	if parent != "" {
		if err := m.d.trunks.Remove(ctx, parent, id); err != nil {
			return err
		}
	}
	return m.d.deleteAnywhere(ctx, c, id)
}

// made lists the ports of pools in the cloud.
func (d *Driver) made(ctx context.Context) ([]pool.Made, error) {
	c, err := d.conn.get()
	if err != nil {
		return nil, err
	}
	all, err := d.owners.candidates(ctx, c)
	if err != nil {
		return nil, translate(err)
	}
	var ports []cloud.Port
	var onTrunks []holder
	for _, p := range all {
		if _, ok := placeOf(d.cfg.Cluster, p); ok && d.projects.mayHold(c, p.ProjectID) {
			ports = append(ports, p)
			if at := parentIn(p); at != "" {
				onTrunks = append(onTrunks, holder{way: Trunk, parent: at})
			}
		}
	}
	at, err := readParents(ctx, c, onTrunks)
	if err != nil {
		return nil, translate(err)
	}
	var out []pool.Made
	for _, p := range ports {
		w, err := d.known.network(ctx, c, p.NetworkID)
		if errors.Is(err, cloud.ErrUnavailable) {
			return nil, err
		}
		out = append(out, madeOf(d.cfg.Cluster, p, w, err, at.vlans[p.ID]))
	}
	return out, nil
}

// madeOf returns a port of a pool with its VLAN on a trunk. It has no addresses, and is not adopted,
// if its network could not be read, which is no error of other ports, or if it is on no trunk.
func madeOf(cluster string, p cloud.Port, w wiring.Network, unread error, vlan int) pool.Made {
	m := pool.Made{Network: p.NetworkID, Host: p.Host, Parent: parentIn(p)}
	m.Place, _ = placeOf(cluster, p)
	if unread == nil {
		m.Port, unread = w.StorePort(p)
	}
	if unread != nil {
		m.Port = pool.Port{ID: p.ID, MAC: p.MAC}
	}
	if m.Parent == "" {
		return m
	}
	if vlan == 0 {
		m.Addresses = nil
	}
	m.Host, m.VLAN = "", int32(vlan) //nolint:gosec // 1 to 4094
	return m
}

// FreePools deletes the ready ports on a network, and makes none there any more: the network
// is removed.
func (d *Driver) FreePools(network string) {
	if d.pools != nil {
		d.pools.Close(network)
	}
}

// newPools returns the pools of a driver; nil if the configuration has none.
func (d *Driver) newPools() *pool.Pools {
	if d.cfg.Pools == nil {
		return nil
	}
	cfg := *d.cfg.Pools
	cfg.Maker, cfg.Made, cfg.Wake = maker{d}, d.made, d.conn.wakeWaiting
	cfg.Scarce = func(err error) bool { return errors.Is(err, cloud.ErrQuota) || errors.Is(err, cloud.ErrFull) }
	return pool.New(cfg)
}
