package neutron

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/driver/neutron/pool"
	"fairlead.dev/fairlead/internal/openstack/cloud"
)

// poolHolder returns the holder of a port of a pool.
func poolHolder(h holder) pool.Holder {
	return pool.Holder{UID: h.PodUID, Namespace: h.Namespace, Pod: h.PodName, Interface: h.Interface, Network: h.network, Default: h.isDefault}
}

// poolKey returns the pool of a request. ok is false if the pod wishes what a port of a pool
// does not have.
func poolKey(r *driver.Request, what choice, host string) (k pool.Key, ok bool) {
	if what.machine || len(r.Addresses) > 0 || r.MAC != "" || what.dnsName || what.QoSPolicy != "" || len(what.Groups) == 0 && what.Groups != nil && !what.noSecurity {
		return pool.Key{}, false
	}
	k = pool.Key{Node: r.NodeName, Host: host, Project: what.Project, Network: what.Network, Subnets: what.Subnets, PortSecurityOff: what.noSecurity}
	if len(what.Groups) > 0 {
		k.Groups = slices.Compact(slices.Sorted(slices.Values(what.Groups)))
	}
	return k, true
}

// fromPool obtains a port of a pool, without a call of the cloud. ok is false if the owner
// gets a port of its own.
func (d *Driver) fromPool(ctx context.Context, r *driver.Request, h holder, what choice, host string) (a *driver.Attachment, ok bool, err error) {
	if d.pools == nil {
		return nil, false, nil
	}
	if held, has := d.pools.Of(poolHolder(h)); has {
		a, err = d.handOut(r, held)
		return a, true, err
	}
	k, ok := poolKey(r, what, host)
	if !ok {
		return nil, false, nil
	}
	if next, ready := d.pools.Peek(k); ready && r.Writable != nil {
		next.Holder = poolHolder(h)
		i, err := pooledInterface(next)
		if err == nil {
			err = r.Writable(i)
		}
		if err != nil {
			return nil, true, fmt.Errorf("%w: %w", driver.ErrInvalid, err)
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
	d.ports.obtained(driver.Ref{Owner: r.Owner, Interface: i}, true)
	return &driver.Attachment{Interface: i, Active: true}, nil
}

// pooledInterface returns the interface of a port of a pool. Nobody waits until Neutron
// reports it as ACTIVE: the port is bound on its node since it was made, and to ask would be
// a call of the cloud for each pod.
func pooledInterface(held pool.Held) (v1alpha1.Interface, error) {
	w, err := wiringOf(held.Network)
	if err != nil {
		return v1alpha1.Interface{}, err
	}
	p := cloud.Port{ID: held.ID, MAC: held.MAC, Bridge: held.Bridge}
	for _, a := range held.Addresses {
		n := slices.IndexFunc(w.subnets, func(s cloud.Subnet) bool { return s.Prefix == a.Masked() })
		if n < 0 {
			return v1alpha1.Interface{}, fmt.Errorf("%w: port %s: the subnet of its address %s is not known yet", driver.ErrUnavailable, held.ID, a)
		}
		p.Addresses = append(p.Addresses, cloud.Address{Subnet: w.subnets[n].ID, Addr: a.Addr()})
	}
	i, err := interfaceOf(holder{Owner: ownerOf(held), network: held.Holder.Network, isDefault: held.Default}, p, w, bound{}.binding(p, parent{}, 0))
	i.WaitForActive = false
	return i, err
}

func ownerOf(held pool.Held) driver.Owner {
	return driver.Owner{PodUID: held.UID, Interface: held.Interface, Namespace: held.Namespace, PodName: held.Pod, NodeName: held.Key.Node}
}

// wiringOf is the reverse of networkOf.
func wiringOf(n v1alpha1.PortPoolNetwork) (wiring, error) {
	w := wiring{Network: cloud.Network{ID: n.ID, MTU: int(n.MTU)}}
	for _, s := range n.Subnets {
		prefix, err := netip.ParsePrefix(s.CIDR)
		if err != nil {
			return w, fmt.Errorf("%w: PortPool: subnet %s: CIDR %q: %w", driver.ErrUnavailable, s.ID, s.CIDR, err)
		}
		out := cloud.Subnet{ID: s.ID, NetworkID: n.ID, Prefix: prefix}
		out.Gateway, _ = netip.ParseAddr(s.Gateway) // empty is none
		for _, r := range s.Routes {
			to, err := netip.ParsePrefix(r.Destination)
			via, viaErr := netip.ParseAddr(r.Gateway)
			if err == nil && viaErr == nil {
				out.Routes = append(out.Routes, cloud.Route{Destination: to, NextHop: via})
			}
		}
		for _, text := range s.Nameservers {
			if a, err := netip.ParseAddr(text); err == nil {
				out.Nameservers = append(out.Nameservers, a)
			}
		}
		w.subnets = append(w.subnets, out)
	}
	return w, nil
}

// networkOf returns what a pool keeps of its network.
func networkOf(w wiring, groups []string) v1alpha1.PortPoolNetwork {
	n := v1alpha1.PortPoolNetwork{ID: w.ID, MTU: int32(min(w.MTU, 65535)), GroupIDs: slices.Sorted(slices.Values(groups))}
	for _, s := range w.subnets {
		out := v1alpha1.PortPoolSubnet{ID: s.ID, CIDR: s.Prefix.String()}
		if s.Gateway.IsValid() {
			out.Gateway = s.Gateway.String()
		}
		for _, r := range s.Routes[:min(len(s.Routes), maxRoutes)] {
			out.Routes = append(out.Routes, v1alpha1.Route{Destination: r.Destination.String(), Gateway: r.NextHop.String()})
		}
		for _, a := range s.Nameservers[:min(len(s.Nameservers), maxNameservers)] {
			out.Nameservers = append(out.Nameservers, a.String())
		}
		n.Subnets = append(n.Subnets, out)
	}
	return n
}

// poolPrefix is the beginning of the device IDs of the ports of pools. No UID of a pod is
// "pool".
func poolPrefix(cluster string) string { return prefixOf(cluster) + "pool/" }

// placeOf returns the place of a port of a pool: "fairlead/CLUSTER/pool/POOL/SLOT" is its
// device ID.
func placeOf(cluster string, p cloud.Port) (pool.Place, bool) {
	own, found := strings.CutPrefix(p.DeviceID, poolPrefix(cluster))
	name, number, _ := strings.Cut(own, "/")
	n, err := strconv.Atoi(number)
	return pool.Place{Pool: name, Slot: n}, found && err == nil && p.DeviceOwner == DeviceOwner
}

// maker is pool.Maker for ports that a node plugs into Open vSwitch.
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
	w, addresses, err := m.d.place(ctx, c, &driver.Request{}, choice{Settings: Settings{Network: k.Network, Subnets: k.Subnets}})
	if err != nil {
		return n, nil, err
	}
	groups, err := m.d.known.groups(ctx, c, k.Groups)
	return networkOf(w, groups), addresses, err
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
	specs := make([]cloud.PortSpec, len(places))
	for i, at := range places {
		specs[i] = cloud.PortSpec{
			Name: "fairlead-pool/" + at.Pool + "/" + strconv.Itoa(at.Slot), Description: "node=" + k.Node, Project: k.Project, Network: n.ID,
			DeviceID: poolPrefix(m.d.cfg.Cluster) + at.Pool + "/" + strconv.Itoa(at.Slot), DeviceOwner: DeviceOwner,
			Host: k.Host, Groups: n.GroupIDs, NoSecurity: k.PortSecurityOff,
		}
		if len(k.Groups) == 0 && !k.PortSecurityOff {
			specs[i].Groups = nil // the default group
		}
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
		return nil, fmt.Errorf("%w: the network, a subnet or a security group has gone since it was read: %w", driver.ErrUnavailable, err)
	case errors.Is(err, cloud.ErrQuota):
		return nil, fmt.Errorf("%w: the quota of OpenStack project %s is used up: raise the quota, delete ports, or lower openstack.ports.pools.low: %w", driver.ErrExhausted, cmp.Or(k.Project, c.Project()), err)
	case err != nil:
		return nil, translate(err)
	}
	return m.ready(ctx, c, k, n, made)
}

// ready returns ports that a node can plug. It deletes those that Neutron could not bind, so
// that they are made again, and changes the groups of those that it adopted.
func (m maker) ready(ctx context.Context, c *cloud.Cloud, k pool.Key, n v1alpha1.PortPoolNetwork, made []cloud.Port) ([]pool.Port, error) {
	w, err := wiringOf(n)
	if err != nil {
		return nil, err
	}
	out := make([]pool.Port, len(made))
	var errs []error
	for i, p := range made {
		if err := servable(p); err != nil {
			if len(errs) == 0 {
				errs = append(errs, err)
			}
			if p.VIFType == bindingFailed {
				errs = append(errs, c.DeletePort(ctx, p.ID))
			}
			continue
		}
		if out[i], err = readyPort(p, w); err != nil {
			m.d.known.forget() // a subnet may be new
			return nil, err
		}
		if len(k.Groups) > 0 && !slices.Equal(slices.Sorted(slices.Values(p.Groups)), n.GroupIDs) {
			if err := m.Change(ctx, out[i], n); err != nil {
				return nil, err
			}
		}
	}
	return out, errors.Join(errs...)
}

// readyPort returns a port for a pool. Errors: driver.ErrUnavailable.
func readyPort(p cloud.Port, w wiring) (pool.Port, error) {
	out := pool.Port{ID: p.ID, MAC: strings.ToLower(p.MAC), Bridge: p.Bridge}
	for _, a := range inOrder(p.Addresses) {
		n := slices.IndexFunc(w.subnets, func(s cloud.Subnet) bool { return s.ID == a.Subnet })
		if n < 0 {
			return out, fmt.Errorf("%w: port %s: its subnet %s is not known yet", driver.ErrUnavailable, p.ID, a.Subnet)
		}
		out.Addresses = append(out.Addresses, netip.PrefixFrom(a.Addr, w.subnets[n].Prefix.Bits()))
	}
	if len(out.Addresses) == 0 {
		return out, fmt.Errorf("%w: port %s has no address: its network must have a subnet", driver.ErrInvalid, p.ID)
	}
	return out, nil
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
func (m maker) Delete(ctx context.Context, p pool.Port) error {
	c, err := m.d.conn.get()
	if err != nil {
		return err
	}
	return translate(c.DeletePort(ctx, p.ID))
}

// made lists the ports of pools in the cloud.
func (d *Driver) made(ctx context.Context) ([]pool.Made, error) {
	c, err := d.conn.get()
	if err != nil {
		return nil, err
	}
	all, err := c.Ports(ctx, cloud.PortQuery{DeviceOwner: DeviceOwner})
	if err != nil {
		return nil, translate(err)
	}
	var out []pool.Made
	for _, p := range all {
		at, ok := placeOf(d.cfg.Cluster, p)
		if !ok || !d.mayHold(c, p.ProjectID) {
			continue
		}
		w, err := d.known.wiring(ctx, c, p.NetworkID)
		if err != nil {
			return nil, err
		}
		ready, err := readyPort(p, w)
		if err != nil {
			ready = pool.Port{ID: p.ID, MAC: p.MAC} // not adopted
		}
		out = append(out, pool.Made{Port: ready, Place: at, Network: p.NetworkID, Host: p.Host})
	}
	return out, nil
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
