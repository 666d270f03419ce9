package neutron

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/driver/neutron/nested"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/openstack/cloud"
)

// explainAttach translates an error of way.attach. The port of the node may be another by
// now: it is read again at the next try.
func (d *Driver) explainAttach(r *driver.Request, at parent, err error) error {
	switch {
	case errors.Is(err, nested.ErrNoTrunk):
		d.known.forgetMachine(r.NodeName)
		return fmt.Errorf("%w: node %s has pods on a trunk, and its port %s has none: 'openstack network trunk create --parent-port %s NAME', or label the Node %s=%s: %w",
			fault.ErrUnavailable, r.NodeName, at.ID, at.ID, v1alpha1.LabelNeutronPort, Host, err)
	case errors.Is(err, cloud.ErrLimit):
		return fmt.Errorf("%w: the port of node %s has no room for another allowed address pair: pods of other nodes get theirs; raise max_allowed_address_pair of Neutron, or use %s=%s: %w",
			fault.ErrExhausted, r.NodeName, v1alpha1.LabelNeutronPort, Trunk, err)
	case errors.Is(err, cloud.ErrFull):
		return fmt.Errorf("%w: node %s: %w", fault.ErrExhausted, r.NodeName, err)
	case errors.Is(err, cloud.ErrNotFound):
		d.known.forget()
		return fmt.Errorf("%w: the port of the pod or of node %s has gone: %w", fault.ErrUnavailable, r.NodeName, err)
	case errors.Is(err, cloud.ErrTaken):
		return fmt.Errorf("%w: node %s: another takes the VLANs of its trunk at the same time: %w", fault.ErrUnavailable, r.NodeName, err)
	}
	return translate(err)
}

// moved returns the error for a port that was made for another port of the node of a pod. If
// that port is gone, its machine is: the pod's port is deleted, and the next try makes another.
func (d *Driver) moved(ctx context.Context, c *cloud.Cloud, r *driver.Request, p cloud.Port, was holder) error {
	if was.parent != "" {
		_, err := c.Port(ctx, was.parent)
		if errors.Is(err, cloud.ErrNotFound) {
			return fmt.Errorf("%w: port %s of the pod was made for a machine of node %s that is gone: another is made: %w", fault.ErrUnavailable, p.ID, r.NodeName, errors.Join(err, d.remove(ctx, c, p)))
		}
		if err != nil {
			return translate(err)
		}
	}
	return fmt.Errorf("%w: port %s of the pod was made for another port of node %s: delete the pod", fault.ErrConflict, p.ID, r.NodeName)
}

// remove undoes the attachment of a port and deletes it. A port whose texts were changed may
// be a subport of any trunk.
func (d *Driver) remove(ctx context.Context, c *cloud.Cloud, p cloud.Port) error {
	if h, ok := d.owners.holderOf(c, p); ok && d.ways[h.way] != nil {
		if err := d.ways[h.way].detach(ctx, h.parent, p); err != nil {
			return err
		}
	}
	return d.deleteAnywhere(ctx, c, p.ID)
}

// deleteAnywhere deletes a port, also if it is a subport of any trunk.
func (d *Driver) deleteAnywhere(ctx context.Context, c *cloud.Cloud, id string) error {
	err := c.DeletePort(ctx, id)
	if !errors.Is(err, cloud.ErrInUse) {
		return err
	}
	if err := d.trunks.RemoveAnywhere(ctx, id); err != nil {
		return err
	}
	return c.DeletePort(ctx, id)
}

// reattach attaches a subport that stays DOWN again, with its VLAN.
func (d *Driver) reattach(ctx context.Context, id string, vlan int) {
	attach := func() error {
		c, err := d.conn.get()
		if err != nil {
			return err
		}
		p, err := c.Port(ctx, id)
		if err != nil {
			return err
		}
		at := ""
		if h, ok := d.owners.holderOf(c, p); ok && h.way == Trunk {
			at = h.parent
		} else if _, pooled := placeOf(d.cfg.Cluster, p); pooled && d.projects.mayHold(c, p.ProjectID) {
			at = parentIn(p)
		}
		if at == "" {
			return nil
		}
		return d.trunks.Reattach(ctx, at, id, vlan)
	}
	if err := attach(); err != nil && ctx.Err() == nil {
		log.FromContext(ctx).Error(err, "a subport that stays DOWN cannot be attached again, will be tried again", "port", id, "vlan", vlan)
	}
}

// parents are the ports of machines by ID, and the VLANs of subports.
type parents struct {
	ports map[string]parent
	vlans map[string]int
}

// readParents reads the ports of the machines of some holders, and their trunks.
func readParents(ctx context.Context, c *cloud.Cloud, of []holder) (parents, error) {
	out := parents{ports: map[string]parent{}, vlans: map[string]int{}}
	var ids []string
	trunks := map[string]bool{}
	for _, h := range of {
		if h.way != "" && !slices.Contains(ids, h.parent) {
			ids = append(ids, h.parent)
		}
		if h.way == Trunk {
			trunks[h.parent] = true
		}
	}
	if len(ids) == 0 {
		return out, nil
	}
	ports, err := c.Ports(ctx, cloud.PortQuery{IDs: ids})
	if err != nil {
		return out, err
	}
	for _, p := range ports {
		out.ports[p.ID] = parentOf(p)
	}
	for at := range trunks {
		t, err := c.TrunkOf(ctx, at)
		if err != nil && !errors.Is(err, cloud.ErrNotFound) {
			return out, err
		}
		for _, s := range t.Subports {
			out.vlans[s.Port] = s.VLAN
		}
	}
	return out, nil
}

// binding returns the binding of a listed port. A port that is not ready, or whose machine is
// gone, was never plugged or is no more: it has nothing for a node to do.
func (p parents) binding(d *Driver, h holder, port cloud.Port) v1alpha1.Binding {
	if d.ways[h.way] == nil {
		return bound{}.binding(port, parent{}, 0)
	}
	at, vlan := p.ports[h.parent], p.vlans[port.ID]
	if at.ID == "" || h.way == Trunk && vlan == 0 {
		return v1alpha1.Binding{AddressOnly: &v1alpha1.AddressOnlyBinding{}}
	}
	return d.ways[h.way].binding(port, at, vlan)
}

// listed returns the candidates, and the ports of machines that they are on.
func (d *Driver) listed(ctx context.Context, c *cloud.Cloud) ([]cloud.Port, parents, error) {
	all, err := d.owners.candidates(ctx, c)
	if err != nil {
		return nil, parents{}, err
	}
	var holders []holder
	for _, p := range all {
		if h, ok := d.owners.holderOf(c, p); ok {
			holders = append(holders, h)
		}
	}
	at, err := readParents(ctx, c, holders)
	return all, at, err
}
