package cloud

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
)

// Binding is the binding of a port on a host. One binding of a port is active: its host is
// Port.Host, and has the traffic. Others are for the time of a live migration.
type Binding struct {
	Host   string
	Active bool
	// VIFType is as that of a Port.
	VIFType string
}

// Bindings returns the bindings of a port. Errors: ErrNotFound, ErrForbidden (the cloud or
// these credentials know of one binding only).
func (c *Cloud) Bindings(ctx context.Context, port string) ([]Binding, error) {
	var answer struct {
		Bindings []struct {
			Host, Status string
			VIFType      string `json:"vif_type"`
		}
	}
	if err := c.api.do(ctx, "list bindings", func(ctx context.Context) error {
		return c.api.request(ctx, http.MethodGet, nil, &answer, "ports", port, "bindings")
	}, port); err != nil {
		return nil, err
	}
	var all []Binding
	for _, b := range answer.Bindings {
		all = append(all, Binding{Host: b.Host, Active: b.Status == "ACTIVE", VIFType: b.VIFType})
	}
	return all, nil
}

// AddBinding binds a port on a further host as well, without its traffic; nil if the port is
// bound there. Errors: ErrNotFound, ErrForbidden as Bindings, ErrUnavailable, also for a host
// without an agent.
func (c *Cloud) AddBinding(ctx context.Context, port, host string) error {
	err := c.api.do(ctx, "create binding", func(ctx context.Context) error {
		body := map[string]any{"binding": map[string]any{"host": host}}
		return c.api.request(ctx, http.MethodPost, body, nil, "ports", port, "bindings")
	}, port)
	if failed(err, "PortBindingAlreadyExists") {
		return nil
	}
	if errors.Is(err, ErrUnavailable) { // so Neutron 2025.1 fails for a port that is gone
		if _, gone := c.Bindings(ctx, port); errors.Is(gone, ErrNotFound) {
			return gone
		}
	}
	return err
}

// ActivateBinding gives the traffic of a port to another host on which it is bound; nil if
// that has it. Errors: ErrNotFound (no port, or no such binding), ErrForbidden.
func (c *Cloud) ActivateBinding(ctx context.Context, port, host string) error {
	err := c.api.do(ctx, "activate binding", func(ctx context.Context) error {
		return c.api.request(ctx, http.MethodPut, nil, nil, "ports", port, "bindings", host, "activate")
	}, port, host)
	if failed(err, "PortBindingAlreadyActive") {
		return nil
	}
	return err
}

// DeleteBinding removes the binding of a port on a host; nil if there is none, or no port.
// Errors: ErrInUse for the active binding, because Neutron hides a port without one.
func (c *Cloud) DeleteBinding(ctx context.Context, port, host string) error {
	const call = "delete binding"
	all, err := c.Bindings(ctx, port)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	at := slices.IndexFunc(all, func(b Binding) bool { return b.Host == host })
	switch {
	case at < 0:
		return nil
	case all[at].Active:
		return &failure{call: call, kind: ErrInUse, text: fmt.Sprintf("the traffic of port %s is at host %q", port, clean(host))}
	}
	err = c.api.do(ctx, call, func(ctx context.Context) error {
		return c.api.request(ctx, http.MethodDelete, nil, nil, "ports", port, "bindings", host)
	}, port, host)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// failed reports whether a call failed by an exception of Neutron.
func failed(err error, name string) bool {
	f, ok := errors.AsType[*failure](err)
	return ok && f.name == name
}
