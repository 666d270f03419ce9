package neutron

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/driver/neutron/activation"
	"fairlead.dev/fairlead/internal/driver/neutron/wiring"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/openstack/cloud"
)

// Bounds of the calls for one network of a project, and of all releases. A call beyond both
// fails at once, so that a network on which calls hang occupies no more of the controller's
// workers.
const (
	// atOnce is the number of calls under way: more are slower together.
	atOnce = 8
	// inQueue is the number of calls that wait for these.
	inQueue = 64
)

// enter waits for one of atOnce places of a key. Errors: fault.ErrUnavailable.
func (d *Driver) enter(ctx context.Context, key string, atOnce int) (leave func(), err error) {
	leave, err = d.gates.Enter(ctx, key, atOnce, inQueue)
	if err != nil {
		return nil, fmt.Errorf("%w: calls of Neutron: %w", fault.ErrUnavailable, err)
	}
	return leave, nil
}

// obtain adopts or creates the port of a request. Calls for the same owner run one after the
// other: two creates at once would make two ports. If ctx ends, obtain returns, and the call
// to the cloud goes on: the next one for the owner waits for its end, and adopts its port.
func (d *Driver) obtain(ctx context.Context, c *cloud.Cloud, r *driver.Request, h holder, what target, spec cloud.PortSpec) (*driver.Attachment, error) {
	leaveOwner, err := d.enter(ctx, deviceID(d.cfg.Cluster, r.Owner), 1) // a subport has no device ID
	if err != nil {
		return nil, err
	}
	place := fmt.Sprintf("network %q of project %q", strings.Join(append([]string{what.Network}, what.Subnets...), " "), what.Project)
	leave, err := d.enter(ctx, place, atOnce)
	if err != nil {
		leaveOwner()
		return nil, err
	}
	type result struct {
		attachment *driver.Attachment
		err        error
	}
	ended := make(chan result, 1)
	go func() {
		defer leaveOwner()
		defer leave()
		a, err := d.make(context.WithoutCancel(ctx), c, r, h, what, spec)
		ended <- result{a, err}
	}()
	select {
	case out := <-ended:
		return out.attachment, out.err
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: the port may exist: %w", fault.ErrUnavailable, context.Cause(ctx))
	}
}

// make adopts or creates the port of a request.
func (d *Driver) make(ctx context.Context, c *cloud.Cloud, r *driver.Request, h holder, what target, spec cloud.PortSpec) (*driver.Attachment, error) {
	w, addresses, err := d.place(ctx, c, r, what)
	if err != nil {
		return nil, d.ofNamespace(ctx, r, what, err)
	}
	if spec.Groups, err = d.known.groups(ctx, c.Groups, what.Groups); err != nil {
		return nil, err
	}
	if spec.QoSPolicy, err = d.known.policy(ctx, c, what.QoSPolicy); err != nil {
		return nil, err
	}
	spec.Network = w.ID
	way := d.ways[what.way]
	if err := way.serves(r, what, w); err != nil {
		return nil, err
	}
	outlined := w.Outline(addresses[0])
	written, err := interfaceOf(h, outlined, w, way.binding(outlined, what.at, maxVLAN))
	if err != nil {
		return nil, err
	}
	if r.Writable != nil {
		if err := r.Writable(written); err != nil {
			return nil, fmt.Errorf("%w: %w", fault.ErrInvalid, err)
		}
	}
	p, err := d.create(ctx, c, spec, addresses)
	if errors.Is(err, cloud.ErrFull) {
		return nil, d.ofNamespace(ctx, r, what, translate(err))
	}
	if err != nil {
		return nil, d.explain(ctx, c, r, cmp.Or(spec.Project, c.Project()), err)
	}
	if err := asRequested(r, p); err != nil {
		return nil, err
	}
	if was, ok := d.owners.holderOf(c, p); ok && (was.way != h.way || was.parent != h.parent) {
		return nil, d.moved(ctx, c, r, p, was)
	}
	vlan, err := way.attach(ctx, what.at, p)
	if err != nil {
		return nil, d.explainAttach(r, what.at, err)
	}
	i, err := interfaceOf(h, p, w, way.binding(p, what.at, vlan))
	if err != nil {
		d.known.forget() // a subnet may be new
		return nil, err
	}
	isActive := p.Status == activation.Active || !i.WaitForActive
	d.ports.Obtained(driver.Ref{Owner: r.Owner, Interface: i}, isActive)
	return &driver.Attachment{Interface: i, Active: isActive}, nil
}

// ofNamespace has the own network of a namespace mended if it is gone or full, and returns the
// error for the pod.
func (d *Driver) ofNamespace(ctx context.Context, r *driver.Request, what target, err error) error {
	if !what.own {
		return err
	}
	d.known.forget() // its subnets will be others
	return d.cfg.Namespaces.Failed(ctx, r.Namespace, err)
}

// place returns the network of a choice, and the addresses to ask for, by wiring.Plans.
func (d *Driver) place(ctx context.Context, c *cloud.Cloud, r *driver.Request, what target) (wiring.Network, [][]cloud.Address, error) {
	network := what.Network
	var chosen []cloud.Subnet
	for _, name := range what.Subnets {
		s, err := d.known.subnet(ctx, c, name)
		if err != nil {
			return wiring.Network{}, nil, err
		}
		if network == "" {
			network = s.NetworkID
		}
		chosen = append(chosen, s)
	}
	w, err := d.known.network(ctx, c, network)
	if err != nil {
		return wiring.Network{}, nil, err
	}
	for n, s := range chosen {
		if s.NetworkID != w.ID {
			return wiring.Network{}, nil, fmt.Errorf("%w: subnet %q is not one of network %q: name subnets of one network", fault.ErrInvalid, what.Subnets[n], network)
		}
	}
	addresses, err := wiring.Plans(chosen, w.Subnets, r.Addresses)
	return w, addresses, err
}

// create adopts or creates a port, with the first addresses that Neutron has. A port that
// Neutron could not bind is replaced once.
func (d *Driver) create(ctx context.Context, c *cloud.Cloud, spec cloud.PortSpec, addresses [][]cloud.Address) (p cloud.Port, err error) {
	try := func() error {
		for _, spec.Addresses = range addresses {
			if p, err = c.CreatePort(ctx, spec); !errors.Is(err, cloud.ErrFull) {
				return err
			}
		}
		return err
	}
	if err := try(); err != nil || spec.Host == "" {
		return p, err
	}
	if p.VIFType != bindingFailed {
		return p, servable(p)
	}
	if err := c.DeletePort(ctx, p.ID); err != nil {
		return p, err
	}
	if err := try(); err != nil {
		return p, err
	}
	return p, servable(p)
}

// Values of binding:vif_type.
const (
	bindingFailed = "binding_failed"
	unbound       = "unbound"
	vifOVS        = "ovs"
)

// servable returns nil if a node can plug a port. Errors: fault.ErrUnavailable.
func servable(p cloud.Port) error {
	switch p.VIFType {
	case vifOVS, "":
		return nil
	case bindingFailed, unbound:
		return fmt.Errorf("%w: Neutron cannot bind port %s on host %q (vif_type %s): must be the host of a running OVN controller or OVS agent: see the Node's label or name, and 'openstack network agent list'",
			fault.ErrUnavailable, p.ID, p.Host, p.VIFType)
	default:
		return fmt.Errorf("%w: Neutron binds port %s on host %q by vif_type %s: must be ovs", fault.ErrUnavailable, p.ID, p.Host, p.VIFType)
	}
}

// interfaceOf returns the interface for a port with a binding. Errors: fault.ErrUnavailable
// if a subnet of the port is not among those of its network.
func interfaceOf(h holder, p cloud.Port, w wiring.Network, b v1alpha1.Binding) (v1alpha1.Interface, error) {
	i := v1alpha1.Interface{
		Name: h.Interface, Network: h.network, Driver: Name, Default: h.isDefault,
		MAC: strings.ToLower(p.MAC), MTU: int32(min(w.MTU, 65535)), WaitForActive: h.way != Macvlan,
		Binding: b,
	}
	if h.way == Macvlan {
		i.MAC = pairMAC(p.MAC)
	}
	err := w.Fill(&i, p)
	return i, err
}

// asRequested returns nil if a port has the addresses and the MAC of a request. An adopted
// port may have those of an earlier one. Errors: fault.ErrInvalid.
func asRequested(r *driver.Request, p cloud.Port) error {
	if r.MAC != "" && !strings.EqualFold(r.MAC, p.MAC) {
		return fmt.Errorf("%w: the pod asks for MAC %s, and has a port with %s already, from an earlier request: delete the pod", fault.ErrInvalid, r.MAC, p.MAC)
	}
	for _, a := range r.Addresses {
		if !slices.ContainsFunc(p.Addresses, func(has cloud.Address) bool { return has.Addr == a }) {
			return fmt.Errorf("%w: the pod asks for address %s, and has a port without it already, from an earlier request: delete the pod", fault.ErrInvalid, a)
		}
	}
	return nil
}

// explain translates an error of a create. A network or group that was found before may be
// gone: it is read again at the next try. The holder of an address is named to its own
// namespace only.
func (d *Driver) explain(ctx context.Context, c *cloud.Cloud, r *driver.Request, project string, err error) error {
	switch {
	case errors.Is(err, cloud.ErrNotFound):
		d.known.forget()
		return fmt.Errorf("%w: the network, a subnet or a security group has gone since it was read: %w", fault.ErrUnavailable, err)
	case errors.Is(err, cloud.ErrQuota):
		return fmt.Errorf("%w: the quota of OpenStack project %s is used up: pods with ports in other projects get theirs; raise the quota, or delete ports: %w", fault.ErrExhausted, project, err)
	case errors.Is(err, cloud.ErrTaken):
		for _, a := range r.Addresses {
			if name := d.owners.podAt(ctx, c, r.Namespace, a); name != "" {
				return fmt.Errorf("%w: address %s is that of pod %s", fault.ErrConflict, a, name)
			}
		}
	}
	return translate(err)
}
