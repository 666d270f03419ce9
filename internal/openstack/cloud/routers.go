package cloud

import (
	"context"
	"errors"
	"net/netip"

	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/layer3/extraroutes"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/layer3/routers"
)

// Route sends a prefix to a next hop.
type Route struct {
	Destination netip.Prefix
	NextHop     netip.Addr
}

// Router is a router of Neutron.
type Router struct {
	ID        string
	Name      string
	ProjectID string `json:"project_id"`
	Routes    []Route
	Tags      []string
	Revision  int `json:"revision_number"`
}

// Routers are the routers of Neutron, with their routes. It is safe for concurrent use.
type Routers struct{ api *api }

// Router reads a router by ID or unique name. A name is that of a router of the project.
// Errors: ErrNotFound, ErrInvalid.
func (r *Routers) Router(ctx context.Context, idOrName string) (Router, error) {
	if isID(idOrName) {
		return read[Router](ctx, r.api, "router", idOrName, routers.Get)
	}
	found, err := list[Router](ctx, r.api, "routers", routers.ListOpts{Name: idOrName})
	return only("router", idOrName, found, err, func(o Router) owned { return r.api.owned(o.ID, o.ProjectID, false) })
}

// Connect gives a router an interface in a subnet; nil if it has one.
func (r *Routers) Connect(ctx context.Context, router, subnet string) error {
	has, err := r.connected(ctx, router, subnet)
	if err != nil || has {
		return err
	}
	err = r.api.do(ctx, "connect router", func(ctx context.Context) error {
		return routers.AddInterface(ctx, r.api.neutron, router, routers.AddInterfaceOpts{SubnetID: subnet}).Err
	}, router)
	if errors.Is(err, ErrInvalid) {
		// Another connected it in between: Neutron has no name for that.
		if has, again := r.connected(ctx, router, subnet); again == nil && has {
			return nil
		}
	}
	return err
}

// Disconnect removes a router's interface in a subnet; nil if there is none.
func (r *Routers) Disconnect(ctx context.Context, router, subnet string) error {
	err := r.api.do(ctx, "disconnect router", func(ctx context.Context) error {
		return routers.RemoveInterface(ctx, r.api.neutron, router, routers.RemoveInterfaceOpts{SubnetID: subnet}).Err
	}, router)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// connected reports whether a router has an interface in a subnet.
func (r *Routers) connected(ctx context.Context, router, subnet string) (bool, error) {
	found, err := list[struct{ ID string }](ctx, r.api, "ports", portsOf{
		Devices: []string{router}, FixedIPs: []string{"subnet_id=" + subnet}, Fields: []string{"id"},
	})
	return len(found) > 0, err
}

// AddRoutes adds extra routes to a router (add_extraroutes) without any other change.
// Routes that exist stay. Errors: ErrLimit (max_routes), ErrNotFound, ErrInvalid (a next hop
// is in no subnet of the router), ErrForbidden (the cloud lacks this API), ErrUnavailable.
func (r *Routers) AddRoutes(ctx context.Context, router string, routes []Route) error {
	if len(routes) == 0 {
		return nil
	}
	return r.api.do(ctx, "add routes", func(ctx context.Context) error {
		return extraroutes.Add(ctx, r.api.neutron, router, routesBody(routes)).Err
	}, router)
}

// RemoveRoutes removes extra routes of a router; those that it lacks are no error.
func (r *Routers) RemoveRoutes(ctx context.Context, router string, routes []Route) error {
	if len(routes) == 0 {
		return nil
	}
	return r.api.do(ctx, "remove routes", func(ctx context.Context) error {
		return extraroutes.Remove(ctx, r.api.neutron, router, routesBody(routes)).Err
	}, router)
}

func routesBody(all []Route) extraroutes.Opts {
	var out []routers.Route
	for _, r := range all {
		out = append(out, routers.Route{DestinationCIDR: r.Destination.String(), NextHop: r.NextHop.String()})
	}
	return extraroutes.Opts{Routes: &out}
}
