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

// Bindings are the bindings of ports beside their active ones. It is safe for concurrent use.
type Bindings struct{ api *api }

// List returns the bindings of a port. Errors: ErrNotFound, ErrForbidden (the cloud or
// these credentials know of one binding only).
func (b *Bindings) List(ctx context.Context, port string) ([]Binding, error) {
	var answer struct {
		Bindings []struct {
			Host, Status string
			VIFType      string `json:"vif_type"`
		}
	}
	if err := b.api.do(ctx, "list bindings", func(ctx context.Context) error {
		return b.api.request(ctx, http.MethodGet, nil, &answer, "ports", port, "bindings")
	}, port); err != nil {
		return nil, err
	}
	var all []Binding
	for _, one := range answer.Bindings {
		all = append(all, Binding{Host: one.Host, Active: one.Status == "ACTIVE", VIFType: one.VIFType})
	}
	return all, nil
}

// Add binds a port on a further host as well, without its traffic; nil if the port is
// bound there. Errors: ErrNotFound, ErrForbidden as List, ErrUnavailable, also for a host
// without an agent.
func (b *Bindings) Add(ctx context.Context, port, host string) error {
	err := b.api.do(ctx, "create binding", func(ctx context.Context) error {
		body := map[string]any{"binding": map[string]any{"host": host}}
		return b.api.request(ctx, http.MethodPost, body, nil, "ports", port, "bindings")
	}, port)
	if failed(err, "PortBindingAlreadyExists") {
		return nil
	}
	if errors.Is(err, ErrUnavailable) { // so Neutron 2025.1 fails for a port that is gone
		if _, gone := b.List(ctx, port); errors.Is(gone, ErrNotFound) {
			return gone
		}
	}
	return err
}

// Activate gives the traffic of a port to another host on which it is bound; nil if
// that has it. Errors: ErrNotFound (no port, or no such binding), ErrForbidden.
func (b *Bindings) Activate(ctx context.Context, port, host string) error {
	err := b.api.do(ctx, "activate binding", func(ctx context.Context) error {
		return b.api.request(ctx, http.MethodPut, nil, nil, "ports", port, "bindings", host, "activate")
	}, port, host)
	if failed(err, "PortBindingAlreadyActive") {
		return nil
	}
	return err
}

// Delete removes the binding of a port on a host; nil if there is none, or no port.
// Errors: ErrInUse for the active binding, because Neutron hides a port without one.
func (b *Bindings) Delete(ctx context.Context, port, host string) error {
	const call = "delete binding"
	all, err := b.List(ctx, port)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	at := slices.IndexFunc(all, func(one Binding) bool { return one.Host == host })
	switch {
	case at < 0:
		return nil
	case all[at].Active:
		return &failure{call: call, kind: ErrInUse, text: fmt.Sprintf("the traffic of port %s is at host %q", port, clean(host))}
	}
	err = b.api.do(ctx, call, func(ctx context.Context) error {
		return b.api.request(ctx, http.MethodDelete, nil, nil, "ports", port, "bindings", host)
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
