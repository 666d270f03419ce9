package cloud

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"net/url"
)

// Route sends a prefix to a next hop.
type Route struct {
	Destination netip.Prefix
	NextHop     netip.Addr
}

type routeJSON struct {
	Destination netip.Prefix `json:"destination"`
	NextHop     netip.Addr   `json:"nexthop"`
}

func routes(all []routeJSON) []Route {
	var out []Route
	for _, r := range all {
		out = append(out, Route(r))
	}
	return out
}

// Router is a router of Neutron.
type Router struct {
	ID, Name, ProjectID string
	Routes              []Route
	Revision            int
	Tags                []string
}

// routerJSON is a router in an answer.
type routerJSON struct {
	ID        string      `json:"id"`
	Name      string      `json:"name"`
	ProjectID string      `json:"project_id"`
	Routes    []routeJSON `json:"routes"`
	Tags      []string    `json:"tags"`
	Revision  int         `json:"revision_number"`
}

// Router reads a router by ID or unique name. A name is that of a router of the project.
// Errors: ErrNotFound, ErrInvalid.
func (c *Cloud) Router(ctx context.Context, idOrName string) (Router, error) {
	j, err := find(ctx, c, "routers", idOrName, func(r routerJSON) bool { return r.ProjectID == c.project })
	return Router{
		ID: j.ID, Name: j.Name, ProjectID: j.ProjectID, Routes: routes(j.Routes),
		Revision: j.Revision, Tags: unempty(j.Tags),
	}, err
}

// Connect gives a router an interface in a subnet; nil if it has one.
func (c *Cloud) Connect(ctx context.Context, router, subnet string) error {
	has, err := c.connected(ctx, router, subnet)
	if err != nil || has {
		return err
	}
	err = c.routerInterface(ctx, "connect router", router, "add_router_interface", subnet)
	if errors.Is(err, ErrInvalid) {
		// Another connected it in between: Neutron has no name for that.
		if has, again := c.connected(ctx, router, subnet); again == nil && has {
			return nil
		}
	}
	return err
}

// Disconnect removes a router's interface in a subnet; nil if there is none.
func (c *Cloud) Disconnect(ctx context.Context, router, subnet string) error {
	err := c.routerInterface(ctx, "disconnect router", router, "remove_router_interface", subnet)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

func (c *Cloud) routerInterface(ctx context.Context, call, router, action, subnet string) error {
	return c.do(ctx, request{
		call: call, method: http.MethodPut, path: []string{"routers", router, action},
		body: map[string]any{"subnet_id": subnet},
	})
}

// connected reports whether a router has an interface in a subnet.
func (c *Cloud) connected(ctx context.Context, router, subnet string) (bool, error) {
	found, err := list[struct{ ID string }](ctx, c, "ports", url.Values{
		"device_id": {router}, "fixed_ips": {"subnet_id=" + subnet}, "fields": {"id"},
	})
	return len(found) > 0, err
}

// AddRoutes adds extra routes to a router (add_extraroutes) without any other change.
// Routes that exist stay. Errors: ErrLimit (max_routes), ErrNotFound, ErrInvalid (a next hop
// is in no subnet of the router), ErrForbidden (the cloud lacks this API), ErrUnavailable.
func (c *Cloud) AddRoutes(ctx context.Context, router string, routes []Route) error {
	return c.extraRoutes(ctx, "add routes", router, "add_extraroutes", routes)
}

// RemoveRoutes removes extra routes of a router; those that it lacks are no error.
func (c *Cloud) RemoveRoutes(ctx context.Context, router string, routes []Route) error {
	return c.extraRoutes(ctx, "remove routes", router, "remove_extraroutes", routes)
}

func (c *Cloud) extraRoutes(ctx context.Context, call, router, action string, routes []Route) error {
	if len(routes) == 0 {
		return nil
	}
	var all []routeJSON
	for _, r := range routes {
		all = append(all, routeJSON(r))
	}
	return c.do(ctx, request{
		call: call, method: http.MethodPut, path: []string{"routers", router, action},
		body: map[string]any{"router": map[string]any{"routes": all}},
	})
}
