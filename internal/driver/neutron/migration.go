package neutron

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/driver/neutron/activation"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/openstack/cloud"
	"fairlead.dev/fairlead/internal/pod"
)

// This file serves live migrations of virtual machines: the port of the source launcher is
// that of the target launcher too, and stays with the machine (docs/adr/0020). Its
// description names the target before the port is bound on the target's node. The release
// of either launcher leaves the port to the other.

// Machines knows the virtual machines of KubeVirt.
type Machines interface {
	// Sources returns the pods from which a machine may migrate to a launcher in the
	// namespace. Errors: fault.ErrUnavailable.
	Sources(ctx context.Context, namespace string, target pod.Launcher) ([]pod.Identity, error)
}

// nextOf returns the owner of a request as the next owner of a port.
func nextOf(o driver.Owner, host string) *nextOwner {
	if host == o.NodeName {
		host = ""
	}
	return &nextOwner{uid: o.PodUID, pod: o.PodName, node: o.NodeName, host: host}
}

// ofSource returns the port of a machine's source launcher for its target launcher, and
// binds it on the target's node as well. ok is false if the target gets a port of its own, or
// has one. Errors: those of the driver contract.
func (d *Driver) ofSource(ctx context.Context, c *cloud.Cloud, r *driver.Request, h holder, host string, l *pod.Launcher) (a *driver.Attachment, ok bool, err error) {
	if d.cfg.Machines == nil || l == nil || l.Migration == "" {
		return nil, false, nil
	}
	if own, err := d.owners.portsOf(ctx, c, h); err != nil || len(own) > 0 {
		return nil, false, translate(err)
	}
	sources, err := d.cfg.Machines.Sources(ctx, r.Namespace, *l)
	if err != nil {
		return nil, false, err
	}
	for _, id := range sources {
		if id.Node == r.NodeName {
			continue
		}
		source := h
		source.Owner = driver.Owner{PodUID: id.UID, Interface: r.Interface, Namespace: id.Namespace, PodName: id.Name}
		found, err := d.owners.portsOf(ctx, c, source)
		if err != nil {
			return nil, false, translate(err)
		}
		if len(found) == 0 {
			continue
		}
		port, err := plugged(found)
		if err == nil {
			a, err = d.share(ctx, c, r, h, sharing{source.Owner, port, host})
		}
		return a, true, translate(err)
	}
	return nil, false, nil
}

// plugged returns the ID of the port of a source that its node has plugged. There is another
// if the reply of a create was lost. Errors: fault.ErrUnavailable if it is not certain.
func plugged(of []cloud.Port) (string, error) {
	if len(of) > 1 {
		of = slices.DeleteFunc(of, func(p cloud.Port) bool { return p.Status != activation.Active })
	}
	if len(of) != 1 {
		return "", fmt.Errorf("%w: several ports are those of the source launcher, and it is not certain which of them is plugged", fault.ErrUnavailable)
	}
	return of[0].ID, nil
}

// sharing is the port of a source, and the host of the Neutron agent of its target's node.
type sharing struct {
	source     driver.Owner
	port, host string
}

// share gives the port of a source to a target as well: first the description of the port
// names the target, then the port is bound on its node.
func (d *Driver) share(ctx context.Context, c *cloud.Cloud, r *driver.Request, h holder, s sharing) (*driver.Attachment, error) {
	port := s.port
	leave, err := d.enter(ctx, "port "+port, 1)
	if err != nil {
		return nil, err
	}
	defer leave()
	p, err := c.Port(ctx, port)
	if err != nil {
		return nil, err
	}
	has, ok := d.owners.holderOf(c, p)
	next := nextOf(r.Owner, s.host)
	switch {
	case !ok || keyOf(has.Owner) != keyOf(s.source):
		return nil, fmt.Errorf("%w: port %s of the machine changes its owner at this moment", fault.ErrUnavailable, port)
	case has.next != nil && *has.next != *next:
		return nil, fmt.Errorf("%w: port %s of the machine is that of another target of a migration, pod %s, until that is gone", fault.ErrUnavailable, port, has.next.pod)
	}
	if err := asRequested(r, p); err != nil {
		return nil, err
	}
	w, err := d.known.network(ctx, c, p.NetworkID)
	if err != nil {
		return nil, err
	}
	i, err := interfaceOf(h, p, w, bound{}.binding(p, parent{}, 0))
	if err != nil {
		return nil, err
	}
	// The source has the traffic: the port is ACTIVE there, and the target must not announce
	// its addresses.
	i.WaitForActive = false
	if r.Writable != nil {
		if err := r.Writable(i); err != nil {
			return nil, fmt.Errorf("%w: %w", fault.ErrInvalid, err)
		}
	}
	if has.next == nil {
		has.next = next
		if err := d.rename(ctx, c, p, has); err != nil {
			return nil, err
		}
	}
	switch err := c.Bindings.Add(ctx, port, s.host); {
	case errors.Is(err, cloud.ErrForbidden):
		log.FromContext(ctx).Info("the cloud binds a port on one host at a time: it follows its machine when the source launcher is gone", "port", port, "reason", err.Error())
	case err != nil:
		return nil, err
	}
	d.ports.Obtained(driver.Ref{Owner: r.Owner, Interface: i}, true)
	return &driver.Attachment{Interface: i, Active: true}, nil
}

// rename writes the texts of a holder to a port, unless the port was changed since it was
// read.
func (d *Driver) rename(ctx context.Context, c *cloud.Cloud, p cloud.Port, h holder) error {
	t, err := h.write(d.cfg.Cluster)
	if err != nil {
		return err
	}
	_, err = c.UpdatePort(ctx, p.ID, p.Revision, cloud.PortChange{Name: &t.name, Description: &t.description, DeviceID: &t.deviceID})
	return err
}

// handOver leaves the port of a source that is gone to the target of its migration: first
// the traffic, then the identity. A port without a target is deleted.
func (d *Driver) handOver(ctx context.Context, c *cloud.Cloud, source driver.Owner, port string) error {
	leave, err := d.enter(ctx, "port "+port, 1)
	if err != nil {
		return err
	}
	defer leave()
	p, err := c.Port(ctx, port)
	if errors.Is(err, cloud.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	h, ok := d.owners.holderOf(c, p)
	switch {
	case !ok || keyOf(h.Owner) != keyOf(source):
		return nil // handed over already
	case h.next == nil:
		return d.remove(ctx, c, p) // the target is gone
	}
	if err := moveTo(ctx, c, p, h.next.on()); err != nil {
		return err
	}
	if p, err = c.Port(ctx, port); err != nil { // its revision is another
		return err
	}
	log.FromContext(ctx).Info("a port follows its machine", "port", port, "from", h.PodName, "to", h.next.pod, "node", h.next.node)
	return d.rename(ctx, c, p, h.successor())
}

// moveTo gives the traffic of a port to a host, and removes its other bindings.
func moveTo(ctx context.Context, c *cloud.Cloud, p cloud.Port, host string) error {
	bindings, err := c.Bindings.List(ctx, p.ID)
	if err != nil && !errors.Is(err, cloud.ErrForbidden) {
		return err
	}
	if slices.ContainsFunc(bindings, func(b cloud.Binding) bool { return b.Host == host }) {
		err = c.Bindings.Activate(ctx, p.ID, host)
	} else {
		_, err = c.UpdatePort(ctx, p.ID, 0, cloud.PortChange{Host: &host})
	}
	if err != nil {
		return err
	}
	for _, b := range bindings {
		if b.Host == host {
			continue
		}
		if err := c.Bindings.Delete(ctx, p.ID, b.Host); err != nil {
			return err
		}
	}
	return nil
}

// stepBack gives back the share that the target of a migration has in the port of its record;
// it does nothing if the target has none.
func (d *Driver) stepBack(ctx context.Context, c *cloud.Cloud, ref driver.Ref) error {
	b := ref.Interface.Binding.OVS
	if b == nil {
		return nil
	}
	leave, err := d.enter(ctx, "port "+b.PortID, 1)
	if err != nil {
		return err
	}
	defer leave()
	p, h, err := d.shareOf(ctx, c, ref)
	if err != nil || h.next == nil {
		return err
	}
	// An active binding is that of a source which is gone: its release deletes the port.
	err = c.Bindings.Delete(ctx, p.ID, h.next.on())
	if err != nil && !errors.Is(err, cloud.ErrForbidden) && !errors.Is(err, cloud.ErrInUse) {
		return err
	}
	if p, err = c.Port(ctx, p.ID); err != nil { // its revision is another
		return err
	}
	h.next = nil
	return d.rename(ctx, c, p, h)
}

// shareOf returns the port of a record whose next owner is that of the record, with its
// holder; a holder without next if there is none. The identity decides, not the record.
func (d *Driver) shareOf(ctx context.Context, c *cloud.Cloud, ref driver.Ref) (cloud.Port, holder, error) {
	b := ref.Interface.Binding.OVS
	if b == nil {
		return cloud.Port{}, holder{}, nil
	}
	p, err := c.Port(ctx, b.PortID)
	if errors.Is(err, cloud.ErrNotFound) || errors.Is(err, cloud.ErrInvalid) {
		return cloud.Port{}, holder{}, nil
	}
	if err != nil {
		return cloud.Port{}, holder{}, err
	}
	if h, ok := d.owners.holderOf(c, p); ok && h.next != nil && keyOf(h.successor().Owner) == keyOf(ref.Owner) {
		return p, h, nil
	}
	return p, holder{}, nil
}
