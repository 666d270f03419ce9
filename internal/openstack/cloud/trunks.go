package cloud

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/trunks"
)

// Trunk is a trunk with its subports.
type Trunk struct {
	ID        string
	Name      string
	Parent    string `json:"port_id"`
	ProjectID string `json:"project_id"`
	Status    string
	Subports  []Subport `json:"sub_ports"`
	Tags      []string
	Revision  int `json:"revision_number"`
}

// Subport is a port behind a VLAN of a trunk.
type Subport struct {
	Port string `json:"port_id"`
	VLAN int    `json:"segmentation_id"` // 1 to 4094
}

// TrunkOf returns the trunk of a parent port. Errors: ErrNotFound, ErrUnavailable.
func (c *Cloud) TrunkOf(ctx context.Context, parent string) (Trunk, error) {
	found, err := list[Trunk](ctx, &c.api, "trunks", trunks.ListOpts{PortID: parent})
	if err != nil {
		return Trunk{}, err
	}
	if len(found) == 0 {
		return Trunk{}, &failure{call: "read trunk", kind: ErrNotFound, text: fmt.Sprintf("port %q is the parent of no trunk", parent)}
	}
	return found[0], nil
}

// Trunks returns all trunks of the project.
func (c *Cloud) Trunks(ctx context.Context) ([]Trunk, error) {
	return list[Trunk](ctx, &c.api, "trunks", trunks.ListOpts{ProjectID: c.api.project})
}

// CreateTrunk returns the trunk of a parent port, or creates it.
func (c *Cloud) CreateTrunk(ctx context.Context, name, parent string) (Trunk, error) {
	found, err := list[Trunk](ctx, &c.api, "trunks", trunks.ListOpts{PortID: parent})
	if err != nil {
		return Trunk{}, err
	}
	var t Trunk
	if len(found) > 0 {
		t = found[0]
	} else {
		t, err = object[Trunk](ctx, &c.api, "create trunk", "trunk", func(ctx context.Context) gophercloud.Result {
			return trunks.Create(ctx, c.api.neutron, trunks.CreateOpts{Name: name, PortID: parent}).Result
		})
		if err != nil {
			return Trunk{}, err
		}
	}
	if t.Name == name { // another may belong to an operator
		if _, err := c.api.addTags(ctx, "trunks", t.ID, t.Tags, []string{c.api.tag}); err != nil {
			return Trunk{}, err
		}
	}
	return t, nil
}

// DeleteTrunk deletes a trunk; nil if it is gone.
func (c *Cloud) DeleteTrunk(ctx context.Context, id string) error {
	return remove(ctx, &c.api, "delete trunk", id, trunks.Delete)
}

// AddSubports adds subports with one request: all or none. Errors: ErrTaken (a VLAN or a
// port is in use), ErrNotFound, ErrUnavailable (they may be added: read the trunk).
func (c *Cloud) AddSubports(ctx context.Context, trunk string, s []Subport) error {
	const call = "add subports"
	var all []trunks.Subport
	for _, p := range s {
		if p.VLAN < 1 || p.VLAN > 4094 {
			return &failure{call: call, kind: ErrInvalid, text: fmt.Sprintf("VLAN %d of port %q: want 1 to 4094", p.VLAN, p.Port)}
		}
		all = append(all, trunks.Subport{PortID: p.Port, SegmentationType: "vlan", SegmentationID: p.VLAN})
	}
	if len(all) == 0 {
		return nil
	}
	err := c.api.do(ctx, call, func(ctx context.Context) error {
		return trunks.AddSubports(ctx, c.api.neutron, trunk, trunks.AddSubportsOpts{Subports: all}).Err
	}, trunk)
	return as(ErrTaken, err, ErrInUse) // the port is a subport or a parent already
}

// RemoveSubports removes the subports that the trunk has of these ports.
func (c *Cloud) RemoveSubports(ctx context.Context, trunk string, ports []string) error {
	for {
		t, err := object[Trunk](ctx, &c.api, "read trunk", "trunk", func(ctx context.Context) gophercloud.Result {
			return trunks.Get(ctx, c.api.neutron, trunk).Result
		}, trunk)
		if err != nil {
			return err
		}
		var has []trunks.RemoveSubport
		for _, s := range t.Subports {
			if slices.Contains(ports, s.Port) {
				has = append(has, trunks.RemoveSubport{PortID: s.Port})
			}
		}
		if len(has) == 0 {
			return nil
		}
		err = c.api.do(ctx, "remove subports", func(ctx context.Context) error {
			return trunks.RemoveSubports(ctx, c.api.neutron, trunk, trunks.RemoveSubportsOpts{Subports: has}).Err
		}, trunk)
		// Another removed one of them: none of the rest was, and the next look has fewer.
		if !errors.Is(err, ErrNotFound) {
			return err
		}
	}
}
