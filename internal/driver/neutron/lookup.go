package neutron

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/driver/neutron/wiring"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/openstack/cloud"
)

const (
	// knownFor is how long a network, subnet or group is not read again.
	knownFor = time.Minute
	// maxKnown bounds the number of things that are remembered. At the limit the memory
	// starts empty again.
	maxKnown = 4096
)

// topology is the part of the cloud that lookups read.
type topology interface {
	Network(ctx context.Context, idOrName string) (cloud.Network, error)
	Subnet(ctx context.Context, idOrName string) (cloud.Subnet, error)
	Subnets(ctx context.Context, network string) ([]cloud.Subnet, error)
}

// groups is the part of the cloud that knows security groups.
type groups interface {
	Group(ctx context.Context, idOrName string) (cloud.Group, error)
}

// policies is the part of the cloud that knows QoS policies.
type policies interface {
	QoSPolicy(ctx context.Context, idOrName string) (string, error)
}

// lookups remember networks, subnets and groups for a while. Callers that look for the same
// thing at once share one read.
type lookups struct {
	reads singleflight.Group
	mu    sync.Mutex
	m     map[string]known
}

type known struct {
	value any
	until time.Time
}

// lookup returns a thing by its key, by read if it is not known.
func lookup[T any](l *lookups, key string, read func() (T, error)) (T, error) {
	l.mu.Lock()
	have, ok := l.m[key]
	l.mu.Unlock()
	if ok && time.Now().Before(have.until) {
		return have.value.(T), nil
	}
	value, err, _ := l.reads.Do(key, func() (any, error) {
		value, err := read()
		if err != nil {
			return value, err
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.m == nil || len(l.m) >= maxKnown {
			l.m = map[string]known{}
		}
		l.m[key] = known{value, time.Now().Add(knownFor)}
		return value, nil
	})
	return value.(T), err
}

// forget drops everything, because something that was known is gone.
func (l *lookups) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.m = nil
}

// forgetMachine drops the port of the machine of a node.
func (l *lookups) forgetMachine(node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.m, machineKey(node))
}

func machineKey(node string) string { return "machine " + node }

// network returns a network with its subnets.
func (l *lookups) network(ctx context.Context, c topology, network string) (wiring.Network, error) {
	return lookup(l, "network "+network, func() (wiring.Network, error) {
		n, err := c.Network(ctx, network)
		if err != nil {
			return wiring.Network{}, fmt.Errorf("network %q: %w", network, translate(err))
		}
		subnets, err := c.Subnets(ctx, n.ID)
		if err != nil {
			return wiring.Network{}, fmt.Errorf("subnets of network %q: %w", network, translate(err))
		}
		return wiring.Network{Network: n, Subnets: subnets}, nil
	})
}

func (l *lookups) subnet(ctx context.Context, c topology, name string) (cloud.Subnet, error) {
	return lookup(l, "subnet "+name, func() (cloud.Subnet, error) {
		s, err := c.Subnet(ctx, name)
		if err != nil {
			return s, fmt.Errorf("subnet %q: %w", name, translate(err))
		}
		return s, nil
	})
}

// policy returns the ID of a QoS policy; empty for an empty name.
func (l *lookups) policy(ctx context.Context, c policies, name string) (string, error) {
	if name == "" {
		return "", nil
	}
	return lookup(l, "QoS policy "+name, func() (string, error) {
		id, err := c.QoSPolicy(ctx, name)
		if err != nil {
			return "", fmt.Errorf("QoS policy %q: %w", name, translate(err))
		}
		return id, nil
	})
}

// groups returns the IDs of security groups; nil for nil.
func (l *lookups) groups(ctx context.Context, c groups, groups []string) ([]string, error) {
	if groups == nil {
		return nil, nil
	}
	ids := make([]string, len(groups))
	for i, name := range groups {
		g, err := lookup(l, "group "+name, func() (cloud.Group, error) { return c.Group(ctx, name) })
		if err != nil {
			return nil, fmt.Errorf("security group %q: %w", name, translate(err))
		}
		ids[i] = g.ID
	}
	return ids, nil
}

// translations have the error of the contract for each error of the cloud. The text
// describes the cause and the remedy.
var translations = []struct {
	cloud, driver error
	text          string
}{
	{cloud.ErrQuota, fault.ErrExhausted, "a quota of the project is used up"},
	{cloud.ErrFull, fault.ErrExhausted, "no address is left in the subnet: add a subnet to the network, or delete ports"},
	{cloud.ErrTaken, fault.ErrConflict, "the requested address or MAC is that of another port"},
	{cloud.ErrNotFound, fault.ErrNotFound, "it does not exist, or the project of the credentials may not see it"},
	{cloud.ErrForbidden, fault.ErrUnavailable, "the credentials of the controller may not do this: the operator's guide lists the rights"},
	{cloud.ErrInvalid, fault.ErrInvalid, "OpenStack refuses the request"},
	{cloud.ErrLimit, fault.ErrExhausted, "a limit of the cloud is reached"},
	{cloud.ErrInUse, fault.ErrUnavailable, "others still use it"},
	{cloud.ErrChanged, fault.ErrUnavailable, "it was changed by another at this moment"},
}

// translate returns an error of the driver contract for one of the cloud.
func translate(err error) error {
	if err == nil || driver.Result(err) != "Unknown" {
		return err
	}
	for _, t := range translations {
		if errors.Is(err, t.cloud) {
			return fmt.Errorf("%w: %s: %w", t.driver, t.text, err)
		}
	}
	return fmt.Errorf("%w: %w", fault.ErrUnavailable, err)
}
