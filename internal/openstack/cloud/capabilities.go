package cloud

import (
	"context"
	"errors"
	"net/netip"
	"slices"
)

// Capability is an ability that the cloud has, or lacks, for these credentials. It is
// learned from the cloud's behavior: the list of extensions names abilities that do nothing.
type Capability struct {
	// Name is one of the names below.
	Name string
	Has  bool
	// Reason is the answer of the cloud, in words for a condition.
	Reason string
}

// The names of capabilities.
const (
	// BindHost: ports may be bound to a host (binding:host_id).
	BindHost = "BindHost"
	// SetPairs: ports may get allowed address pairs.
	SetPairs = "SetPairs"
	// TagInCreate: a port has its tags from its creation on. Otherwise they are put afterwards.
	TagInCreate = "TagInCreate"
)

// The owner and name of the port that Capabilities creates.
const (
	probeOwner = "fairlead:probe"
	probeName  = "fairlead-probe"
)

// Capabilities tries on a port of a network which abilities these credentials have, and
// deletes the port. A port that an earlier call left is used and deleted. Errors: those of
// CreatePort.
//
// Address groups are not among them: releases accept rules that name one, and then open the
// port to all. Their effect is seen in packets only, so that Fairlead never uses them: its
// rules have prefixes.
func (c *Cloud) Capabilities(ctx context.Context, network, host string) (all []Capability, err error) {
	s := PortSpec{Name: probeName + "-" + c.api.tag, Network: network, DeviceID: c.api.tag, DeviceOwner: probeOwner}
	ports, err := c.adopt(ctx, []PortSpec{s})
	if err != nil {
		return nil, err
	}
	if ports[0].ID != "" {
		if err := c.DeletePort(ctx, ports[0].ID); err != nil {
			return nil, err
		}
	}
	p, err := c.newPort(ctx, s)
	if err != nil {
		return nil, err
	}
	defer func() {
		if left := c.DeletePort(ctx, p.ID); left != nil {
			all, err = nil, errors.Join(err, left)
		}
	}()
	pairs := []Pair{{Prefix: netip.MustParsePrefix("192.0.2.0/24")}} // for documentation: no machine has it
	for _, try := range []struct {
		name string
		ch   PortChange
	}{
		{BindHost, PortChange{Host: &host}},
		{SetPairs, PortChange{Pairs: &pairs}},
	} {
		found, err := c.try(ctx, try.name, p.ID, try.ch)
		if err != nil {
			return nil, err
		}
		all = append(all, found)
	}
	tags := Capability{Name: TagInCreate, Has: true, Reason: "the cloud keeps the tags of a new port"}
	if !slices.Contains(p.Tags, c.api.tag) {
		tags.Has, tags.Reason = false, "the cloud drops the tags of a new port; they are put by another request"
	}
	return append(all, tags), nil
}

// try reports whether the cloud makes a change. Errors: any but a refusal.
func (c *Cloud) try(ctx context.Context, name, port string, ch PortChange) (Capability, error) {
	_, err := c.UpdatePort(ctx, port, 0, ch)
	switch {
	case err == nil:
		return Capability{Name: name, Has: true, Reason: "the cloud did it"}, nil
	case errors.Is(err, ErrForbidden), errors.Is(err, ErrInvalid):
		return Capability{Name: name, Reason: err.Error()}, nil
	}
	return Capability{}, err
}
