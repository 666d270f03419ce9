package plugtest

import (
	"context"

	"github.com/vishvananda/netlink"

	"fairlead.dev/fairlead/internal/netdev/plug"
)

// Host is a host without links. A call of Links returns the error of the function.
type Host func(context.Context) error

// Links is part of kinds.Links.
func (h Host) Links(ctx context.Context) ([]netlink.Link, error) { return nil, h(ctx) }

// Finder is a plug.Finder that finds the results of the function.
type Finder func() []plug.Found

// Find is part of plug.Finder.
func (f Finder) Find(context.Context, []netlink.Link) []plug.Found { return f() }
