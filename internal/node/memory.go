package node

import (
	"context"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"time"
)

const (
	// memoryLook lies between two looks at what was allocated.
	memoryLook = 10 * time.Second
	// memoryBurst is how much has to be allocated for memory to be given back, in
	// bytes: a few pods, and not what an idle daemon needs for its ticks. As much may
	// stay when a burst ends.
	memoryBurst = 2 << 20
	// memoryAllocated counts what was ever allocated (runtime/metrics).
	memoryAllocated = "/gc/heap/allocs:bytes"
)

// giveBack gives the system back what a burst of pods took. Go alone keeps up to
// twice of what is in use, for good in a daemon that is idle then; and this one
// is on every node.
func giveBack(ctx context.Context) error {
	tick := time.NewTicker(memoryLook)
	defer tick.Stop()
	sample := []runtimemetrics.Sample{{Name: memoryAllocated}}
	var before uint64
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		runtimemetrics.Read(sample)
		if now := sample[0].Value.Uint64(); now-before >= memoryBurst {
			debug.FreeOSMemory()
			before = now
		}
	}
}
