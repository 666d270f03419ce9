package cloud

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
)

// Trunk is a trunk with its subports.
type Trunk struct {
	ID, Name, Parent, ProjectID string
	Status                      string
	Subports                    []Subport
	Revision                    int
}

// Subport is a port behind a VLAN of a trunk.
type Subport struct {
	Port string
	VLAN int // 1 to 4094
}

// trunkJSON is a trunk in an answer.
type trunkJSON struct {
	ID        string        `json:"id"`
	Name      string        `json:"name"`
	Parent    string        `json:"port_id"`
	ProjectID string        `json:"project_id"`
	Status    string        `json:"status"`
	Subports  []subportJSON `json:"sub_ports"`
	Tags      []string      `json:"tags"`
	Revision  int           `json:"revision_number"`
}

type subportJSON struct {
	Port string `json:"port_id"`
	Type string `json:"segmentation_type,omitempty"`
	VLAN int    `json:"segmentation_id,omitempty"`
}

func (j trunkJSON) trunk() Trunk {
	t := Trunk{ID: j.ID, Name: j.Name, Parent: j.Parent, ProjectID: j.ProjectID, Status: j.Status, Revision: j.Revision}
	for _, s := range j.Subports {
		t.Subports = append(t.Subports, Subport{Port: s.Port, VLAN: s.VLAN})
	}
	return t
}

// TrunkOf returns the trunk of a parent port. Errors: ErrNotFound, ErrUnavailable.
func (c *Cloud) TrunkOf(ctx context.Context, parent string) (Trunk, error) {
	found, err := list[trunkJSON](ctx, c, "trunks", url.Values{"port_id": {parent}})
	if err != nil {
		return Trunk{}, err
	}
	if len(found) == 0 {
		return Trunk{}, &failure{call: "read trunk", kind: ErrNotFound, text: fmt.Sprintf("port %q is the parent of no trunk", parent)}
	}
	return found[0].trunk(), nil
}

// Trunks returns all trunks of the project.
func (c *Cloud) Trunks(ctx context.Context) ([]Trunk, error) {
	found, err := list[trunkJSON](ctx, c, "trunks", url.Values{"project_id": {c.project}})
	if err != nil {
		return nil, err
	}
	var all []Trunk
	for _, t := range found {
		all = append(all, t.trunk())
	}
	return all, nil
}

// CreateTrunk returns the trunk of a parent port, or creates it.
func (c *Cloud) CreateTrunk(ctx context.Context, name, parent string) (Trunk, error) {
	found, err := list[trunkJSON](ctx, c, "trunks", url.Values{"port_id": {parent}})
	if err != nil {
		return Trunk{}, err
	}
	var t trunkJSON
	if len(found) > 0 {
		t = found[0]
	} else {
		t, err = create[trunkJSON](ctx, c, "trunks", map[string]any{"name": name, "port_id": parent, "sub_ports": []string{}})
		if err != nil {
			return Trunk{}, err
		}
	}
	if t.Name == name { // another may belong to an operator
		if _, err := c.addTags(ctx, "trunks", t.ID, t.Tags, []string{c.tag}); err != nil {
			return Trunk{}, err
		}
	}
	return t.trunk(), nil
}

// DeleteTrunk deletes a trunk; nil if it is gone.
func (c *Cloud) DeleteTrunk(ctx context.Context, id string) error {
	return c.remove(ctx, "trunks", id)
}

// AddSubports adds subports with one request: all or none. Errors: ErrTaken (a VLAN or a
// port is in use), ErrNotFound, ErrUnavailable (they may be added: read the trunk).
func (c *Cloud) AddSubports(ctx context.Context, trunk string, s []Subport) error {
	var all []subportJSON
	for _, p := range s {
		if p.VLAN < 1 || p.VLAN > 4094 {
			return &failure{call: "add subports", kind: ErrInvalid, text: fmt.Sprintf("VLAN %d of port %q: want 1 to 4094", p.VLAN, p.Port)}
		}
		all = append(all, subportJSON{Port: p.Port, Type: "vlan", VLAN: p.VLAN})
	}
	err := c.subports(ctx, trunk, "add", all)
	return as(ErrTaken, err, ErrInUse) // the port is a subport or a parent already
}

// RemoveSubports removes the subports that the trunk has of these ports.
func (c *Cloud) RemoveSubports(ctx context.Context, trunk string, ports []string) error {
	for {
		t, err := read[trunkJSON](ctx, c, "trunks", trunk)
		if err != nil {
			return err
		}
		var has []subportJSON
		for _, s := range t.Subports {
			if slices.Contains(ports, s.Port) {
				has = append(has, subportJSON{Port: s.Port})
			}
		}
		if len(has) == 0 {
			return nil
		}
		err = c.subports(ctx, trunk, "remove", has)
		// Another removed one of them: none of the rest was, and the next look has fewer.
		if !errors.Is(err, ErrNotFound) {
			return err
		}
	}
}

func (c *Cloud) subports(ctx context.Context, trunk, verb string, all []subportJSON) error {
	if len(all) == 0 {
		return nil
	}
	return c.do(ctx, request{
		call: verb + " subports", method: http.MethodPut, path: []string{"trunks", trunk, verb + "_subports"},
		body: map[string]any{"sub_ports": all},
	})
}
