package filter

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"fairlead.dev/fairlead/internal/nft"
	"fairlead.dev/fairlead/internal/run"
)

// flowPace is the shortest time between two looks at the node's flows, which are all
// read each time.
const flowPace = time.Second

// flowShare bounds the part of the time that is spent on looks.
const flowShare = 10

// flows makes pods be seen as themselves where a flow of theirs began too early: to a
// block or a node that this node did not know yet, so that the flow got the node's
// address, which it would keep.
type flows struct {
	forget func(ctx context.Context, from, to []netip.Prefix) error
	// written returns when the packet filter has what was said before.
	written func(ctx context.Context) error
	kicked  chan struct{}

	mu sync.Mutex
	// known is what was said to be of the cluster last, nil before the first time.
	known map[netip.Prefix]bool
	// local are the blocks of this node, fresh what is of the cluster since the last
	// look.
	local []netip.Prefix
	fresh []netip.Prefix
}

func newFlows(k Kernel, keeper *nft.Keeper) *flows {
	return &flows{forget: k.ForgetMasqueraded, written: keeper.Wait, kicked: make(chan struct{}, 1)}
}

// setNode takes in what is of the cluster. What an earlier daemon left is taken to be
// right.
func (f *flows) setNode(n nft.Node) {
	if !n.Masquerade {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	first := f.known == nil
	before := f.known
	f.known, f.local = make(map[netip.Prefix]bool, len(n.Cluster)), n.Local
	for _, p := range n.Cluster {
		if !first && !before[p] && !f.known[p] {
			f.fresh = append(f.fresh, p)
		}
		f.known[p] = true
	}
	if len(f.fresh) > 0 {
		f.kick()
	}
}

func (f *flows) kick() {
	select {
	case f.kicked <- struct{}{}:
	default:
	}
}

// Run looks at the flows until ctx ends. It takes no more than a part of the
// processor's time.
func (f *flows) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.kicked:
		}
		if err := f.written(ctx); err != nil {
			return nil //nolint:nilerr // it waits for as long as ctx lasts
		}
		f.mu.Lock()
		local, fresh := f.local, f.fresh
		f.fresh = nil
		f.mu.Unlock()
		start := time.Now()
		if err := f.forget(ctx, local, fresh); err != nil && ctx.Err() == nil {
			logr.FromContextOrDiscard(ctx).Error(err, "flows of pods that began too early are still masqueraded, will be tried again", "networks", len(fresh))
			f.mu.Lock()
			f.fresh = append(f.fresh, fresh...)
			f.mu.Unlock()
			f.kick()
		}
		if !run.Sleep(ctx, max(flowPace, (flowShare-1)*time.Since(start))) {
			return nil
		}
	}
}
