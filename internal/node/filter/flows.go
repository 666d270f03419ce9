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

// flowPace is the shortest pause between two passes over the node's flows. Each pass reads
// all flows.
const flowPace = time.Second

// flowShare limits passes to one part in flowShare of the time.
const flowShare = 10

// flows ends the masquerading of flows within the cluster that began too early. A flow to a
// block or a node that this node does not know yet gets the node's address, and would keep
// it when the block or node is known. flows deletes its conntrack entry, so that it goes on
// with the pod's address.
type flows struct {
	forget func(ctx context.Context, from, to []netip.Prefix) error
	// written waits until all earlier changes of the packet filter are in the kernel.
	written func(ctx context.Context) error
	kicked  chan struct{}

	mu sync.Mutex
	// known has the networks of the cluster; it is nil before the first setNode.
	known map[netip.Prefix]bool
	// local are the blocks of this node.
	local []netip.Prefix
	// fresh are networks that joined the cluster since the last pass.
	fresh []netip.Prefix
}

func newFlows(k Kernel, keeper *nft.Keeper) *flows {
	return &flows{forget: k.ForgetMasqueraded, written: keeper.Wait, kicked: make(chan struct{}, 1)}
}

// setNode updates the networks of the cluster and queues a pass for the new ones. At the
// first call none are new: the flows that an earlier daemon left count as right.
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

// Run makes passes over the flows until ctx ends.
func (f *flows) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.kicked:
		}
		if err := f.written(ctx); err != nil {
			return nil //nolint:nilerr // written fails only after ctx has ended
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
