package node

import (
	"context"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"time"
)

const (
	// heapGrowth is how much, in percent, the heap may grow until garbage is collected:
	// half of Go's default. What hundreds of pods at once need for a moment lies among
	// the little that is kept of each, and most of that room cannot be given back: beside
	// 250 pods 7 MB, where 25,000 had come and gone, 200 at a time.
	heapGrowth = 50
	// memoryLook lies between two looks at what was allocated.
	memoryLook = 5 * time.Second
	// memoryBurst is how much has to be allocated for memory to be given back, in
	// bytes: a few pods, and not what an idle daemon needs for its ticks. While as
	// much is allocated between two looks, a burst goes on.
	memoryBurst = 2 << 20
	// memoryAllocated counts what was ever allocated (runtime/metrics).
	memoryAllocated = "/gc/heap/allocs:bytes"
)

// giveBack keeps the daemon small, which is on every node, and gives the system back
// what a burst of pods took, when it is over: Go alone keeps up to twice of what is in
// use, for good in a daemon that is idle then. It looks at the whole heap, which the
// pods of the burst are not to wait for.
func giveBack(ctx context.Context) error {
	debug.SetGCPercent(heapGrowth)
	tick := time.NewTicker(memoryLook)
	defer tick.Stop()
	sample := []runtimemetrics.Sample{{Name: memoryAllocated}}
	var a allocations
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		runtimemetrics.Read(sample)
		if a.over(sample[0].Value.Uint64()) {
			debug.FreeOSMemory()
		}
	}
}

// allocations are what had ever been allocated at the last look, and when memory was
// given back last, in bytes.
type allocations struct{ seen, given uint64 }

// over takes in what has been allocated by now, and reports whether a burst was since
// memory was given back, and is over.
func (a *allocations) over(now uint64) bool {
	goesOn := now-a.seen >= memoryBurst
	a.seen = now
	if goesOn || now-a.given < memoryBurst {
		return false
	}
	a.given = now
	return true
}
