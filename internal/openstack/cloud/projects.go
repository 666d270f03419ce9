package cloud

import (
	"context"
	"errors"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/projects"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/qos/policies"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/quotas"
	"github.com/gophercloud/gophercloud/v2/pagination"
)

// Project is a project of Keystone.
type Project struct{ ID, Name string }

// Projects returns all projects, or those that the credentials have a role in, if they may
// not list all. Names are unique in a domain only. Errors: ErrForbidden, ErrUnavailable.
func (c *Cloud) Projects(ctx context.Context) ([]Project, error) {
	if c.api.keystone == nil {
		return nil, &failure{call: "list projects", kind: ErrForbidden, text: "the catalog of the cloud has no Keystone for these credentials"}
	}
	var all []Project
	var err error
	for _, from := range []pagination.Pager{projects.List(c.api.keystone, nil), projects.ListAvailable(c.api.keystone)} {
		err = c.api.do(ctx, "list projects", func(ctx context.Context) error {
			return from.EachPage(ctx, func(_ context.Context, page pagination.Page) (bool, error) {
				found, err := projects.ExtractProjects(page)
				for _, p := range found {
					all = append(all, Project{ID: p.ID, Name: p.Name})
				}
				return false, err // Keystone has one page; the token goes to no link of it
			})
		})
		if !errors.Is(err, ErrForbidden) {
			break
		}
	}
	return all, err
}

// Quota is a limit of a project and how much of it is used. Limit -1 is unlimited.
type Quota struct{ Limit, Used int }

// Quotas returns the quotas of a project by resource ("port", "network", "security_group"
// ...). Empty is the project of the credentials. Errors: ErrForbidden.
func (c *Cloud) Quotas(ctx context.Context, project string) (map[string]Quota, error) {
	if project == "" {
		project = c.api.project
	}
	return object[map[string]Quota](ctx, &c.api, "read quotas", "quota", func(ctx context.Context) gophercloud.Result {
		return quotas.GetDetail(ctx, c.api.neutron, project).Result
	}, project)
}

// QoSPolicy returns the ID of a QoS policy by its ID, which it does not read, or by its name
// if that is unique. A policy of the project comes before shared ones of the same name. Errors:
// ErrNotFound, ErrInvalid (several have the name), ErrForbidden (the cloud has none).
func (c *Cloud) QoSPolicy(ctx context.Context, idOrName string) (string, error) {
	if isID(idOrName) {
		return idOrName, nil
	}
	found, err := list[policies.Policy](ctx, &c.api, "qos/policies", policies.ListOpts{Name: idOrName})
	policy, err := only("QoS policy", idOrName, found, err, func(p policies.Policy) owned { return c.api.owned(p.ID, p.ProjectID, p.Shared) })
	return policy.ID, err
}
