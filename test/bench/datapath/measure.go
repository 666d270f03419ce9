package datapath

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"fairlead.dev/fairlead/test/netlab"
)

const (
	// slice is how long a flow sends in one turn.
	slice = 25 * time.Millisecond
	// best is the share of the turns that are better than the figure. A disturbance of a turn
	// can only make it worse, so the figure is a good turn and not the median.
	best = 0.1
)

// The places of two pods.
const (
	SameNode = "node"   // on one node
	Direct   = "direct" // on two nodes that share a link
	Tunnel   = "tunnel" // on two nodes, through the tunnel
)

// The networks that are compared.
const (
	Fairlead = "Fairlead"
	Bridge   = "bridge" // the reference plugin bridge
	Routed   = "routed" // a plain veth, routed
	Host     = "host"   // the nodes themselves
)

// Key names a figure.
type Key struct {
	Network, Place, Family string
	Kind                   Kind
}

// path is a pair of ends that are measured.
type path struct {
	network, place, family string
	*flow
}

// Measure measures all paths in turns, and returns a figure of each: a tenth of its turns
// are better. Both families are measured if the kernel has them.
func Measure(ctx context.Context, turns int) (figures map[Key]float64, err error) {
	v6 := netlab.HasIPv6()
	var beds []*bed
	var paths []path
	defer func() {
		for _, p := range paths {
			p.close()
		}
		for _, b := range beds {
			err = errors.Join(err, b.close())
		}
	}()
	for _, n := range networks() {
		b, err := n.make(ctx, v6)
		if err != nil {
			return nil, fmt.Errorf("network %s: %w", n.name, err)
		}
		beds = append(beds, b)
		more, err := n.paths(b)
		paths = append(paths, more...)
		if err != nil {
			return nil, fmt.Errorf("network %s: %w", n.name, err)
		}
	}
	taken, err := inTurns(ctx, paths, turns)
	if err != nil {
		return nil, err
	}
	figures = map[Key]float64{}
	for key, all := range taken {
		slices.Sort(all)
		if key.Kind != RoundTrip {
			slices.Reverse(all)
		}
		figures[key] = all[int(best*float64(len(all)))]
	}
	return figures, nil
}

// inTurns measures all paths, each first in its turn, and returns what each turn gave.
func inTurns(ctx context.Context, paths []path, turns int) (map[Key][]float64, error) {
	taken := map[Key][]float64{}
	for turn := range turns {
		for _, kind := range Kinds() {
			for i := range paths {
				if err := context.Cause(ctx); err != nil {
					return nil, err
				}
				p := paths[(i+turn)%len(paths)]
				got, err := p.measure(kind, slice)
				if err != nil {
					return nil, fmt.Errorf("%s of %s, %s, %s: %w", kind, p.network, p.place, p.family, err)
				}
				key := Key{p.network, p.place, p.family, kind}
				taken[key] = append(taken[key], got)
			}
		}
	}
	return taken, nil
}

// network is one way to make pods, and the paths to measure between them.
type network struct {
	name   string
	make   func(ctx context.Context, v6 bool) (*bed, error)
	places []string
}

func networks() []network {
	return []network{
		{Fairlead, func(ctx context.Context, v6 bool) (*bed, error) { return ours(ctx, v6, false) }, []string{SameNode, Direct}},
		{Fairlead, func(ctx context.Context, v6 bool) (*bed, error) { return ours(ctx, v6, true) }, []string{Tunnel}},
		{Bridge, plain{bridge: true}.make, []string{SameNode, Direct}},
		{Routed, plain{}.make, []string{SameNode, Direct}},
		{Routed, plain{tunnel: true}.make, []string{Tunnel}},
		{Host, newBed, []string{SameNode, Direct}},
	}
}

// paths connects the ends of all paths of a network.
func (n network) paths(b *bed) ([]path, error) {
	var out []path
	for _, place := range n.places {
		for f := range b.lab.Nodes[0].Addresses() {
			from, to := b.ends(place, f)
			opened, err := open(from, to)
			if err != nil {
				return out, fmt.Errorf("%s: %w", place, err)
			}
			out = append(out, path{n.name, place, family(to.address), opened})
		}
	}
	return out, nil
}

// ends returns the ends of a path: pods, or the nodes themselves if there are none.
func (b *bed) ends(place string, f int) (from, to end) {
	of := func(node, n int) end {
		if len(b.pods[node]) == 0 {
			return end{b.lab.Nodes[node].Namespace, b.lab.Nodes[node].Addresses()[f].Addr()}
		}
		p := b.pods[node][n]
		return end{p.ns, p.addresses[f]}
	}
	if place == SameNode {
		return of(0, 0), of(0, 1)
	}
	return of(0, 0), of(1, 0)
}

func family(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}
