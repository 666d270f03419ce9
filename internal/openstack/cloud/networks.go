package cloud

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/networks"
)

// Network is a network of Neutron.
type Network struct {
	ID          string
	Name        string
	Description string
	ProjectID   string `json:"project_id"`
	MTU         int
	Shared      bool
	Subnets     []string
	Tags        []string
	Revision    int `json:"revision_number"`
}

// Network reads a network by ID, or by name if it is unique. A network of the project comes
// before shared ones of the same name. Errors: ErrNotFound, ErrInvalid (several have the name).
func (c *Cloud) Network(ctx context.Context, idOrName string) (Network, error) {
	if isID(idOrName) {
		return read[Network](ctx, &c.api, "network", idOrName, networks.Get)
	}
	found, err := list[Network](ctx, &c.api, "networks", networks.ListOpts{Name: idOrName})
	return only("network", idOrName, found, err, func(n Network) owned { return c.api.owned(n.ID, n.ProjectID, n.Shared) })
}

// maxListed bounds the IDs in an error.
const maxListed = 8

// owned is an object with its relation to the project.
type owned struct {
	id          string
	own, shared bool
}

func (a *api) owned(id, project string, shared bool) owned {
	return owned{id, project == a.project, shared}
}

// only returns the one object of those with a name, which a list found. Those of the project count;
// if there is none, the shared ones. Any tenant may name its own object alike, and share it with the
// project. Errors: that of the list, ErrNotFound, ErrInvalid with the IDs if there are several.
func only[T any](noun, name string, found []T, err error, whose func(T) owned) (one T, _ error) {
	if err != nil {
		return one, err
	}
	anyOwn := slices.ContainsFunc(found, func(o T) bool { return whose(o).own })
	var ids []string
	for _, o := range found {
		if w := whose(o); w.own || w.shared && !anyOwn {
			one, ids = o, append(ids, clean(w.id))
		}
	}
	call := "read " + noun
	switch len(ids) {
	case 0:
		return one, &failure{call: call, kind: ErrNotFound, text: fmt.Sprintf("the project has no %s %q", noun, clean(name))}
	case 1:
		return one, nil
	}
	var none T
	some := slices.Sorted(slices.Values(ids[:min(len(ids), maxListed)]))
	return none, &failure{call: call, kind: ErrInvalid, text: fmt.Sprintf("%d of the name %q exist: give the ID, as one of %s", len(ids), clean(name), strings.Join(some, ", "))}
}

// Networks returns the networks with Cloud.Tag.
func (c *Cloud) Networks(ctx context.Context) ([]Network, error) {
	return list[Network](ctx, &c.api, "networks", networks.ListOpts{Tags: c.api.tag})
}

// NetworksOf returns the networks that this cluster made in a project: those with Cloud.Tag,
// and those whose tag was never put. Empty is the project of the credentials.
func (c *Cloud) NetworksOf(ctx context.Context, project string) ([]Network, error) {
	project = cmp.Or(project, c.api.project)
	var all []Network
	for _, filter := range []networks.ListOpts{{Tags: c.api.tag, ProjectID: project}, {Description: c.api.describe(""), ProjectID: project}} {
		found, err := list[Network](ctx, &c.api, "networks", filter)
		if err != nil {
			return nil, err
		}
		for _, n := range found {
			if !slices.ContainsFunc(all, func(has Network) bool { return has.ID == n.ID }) {
				all = append(all, n)
			}
		}
	}
	return all, nil
}

// NetworksNamed returns the networks of a project with a name that this cluster made, each
// with Cloud.Tag. Several are there if replies were lost, or two made one at once.
func (c *Cloud) NetworksNamed(ctx context.Context, project, name string) ([]Network, error) {
	found, err := list[Network](ctx, &c.api, "networks", networks.ListOpts{Name: name, ProjectID: cmp.Or(project, c.api.project)})
	if err != nil {
		return nil, err
	}
	var all []Network
	for _, n := range found {
		if !c.api.isOurs(n.Tags, n.Description) {
			continue
		}
		if n, err = tagged(ctx, &c.api, "networks", tags{n.ID, n.Tags}, n, networks.Get); err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, nil
}

// CreateNetwork returns the tagged network with the name, or creates it.
func (c *Cloud) CreateNetwork(ctx context.Context, project, name string) (Network, error) {
	project = cmp.Or(project, c.api.project)
	found, err := c.NetworksNamed(ctx, project, name)
	if err != nil {
		return Network{}, err
	}
	if len(found) > 0 {
		return found[0], nil
	}
	n, err := object[Network](ctx, &c.api, "create network", "network", func(ctx context.Context) gophercloud.Result {
		return networks.Create(ctx, c.api.neutron, networks.CreateOpts{Name: name, ProjectID: project, Description: c.api.describe("")}).Result
	})
	if err != nil {
		return Network{}, err
	}
	return tagged(ctx, &c.api, "networks", tags{n.ID, n.Tags}, n, networks.Get)
}

// DeleteNetwork deletes a network; nil if it is gone. Errors: ErrInUse.
func (c *Cloud) DeleteNetwork(ctx context.Context, id string) error {
	return remove(ctx, &c.api, "delete network", id, networks.Delete)
}
