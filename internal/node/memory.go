package node

import (
	"context"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"time"
)

const (
	// heapGrowth is how far, in percent, the heap may grow until garbage is collected:
	// half of Go's default. Hundreds of simultaneous pods need memory for a moment, which
	// lies among the little that is kept of each pod. Most of this room cannot be
	// returned: 7 MB beside 250 pods after 25,000 had come and gone, 200 at a time.
	heapGrowth = 50
	// memoryInterval is the time between two readings of the allocation counter.
	memoryInterval = 5 * time.Second
	// memoryBurst is the allocation, in bytes, from which on memory is returned to the
	// system: that of a few pods, and more than the ticks of an idle daemon need. A burst
	// goes on while as much is allocated between two readings.
	memoryBurst = 2 << 20
	// memoryAllocated counts all bytes that were ever allocated (runtime/metrics).
	memoryAllocated = "/gc/heap/allocs:bytes"
)

// releaseMemory keeps the daemon small, since it runs on every node. It returns memory to
// the system after a burst of pods: Go alone keeps up to twice the memory in use, and an
// idle daemon would keep it forever. Returning memory scans the whole heap, so it is done
// after the burst and delays none of its pods.
func releaseMemory(ctx context.Context) error {
	debug.SetGCPercent(heapGrowth)
	tick := time.NewTicker(memoryInterval)
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

// allocations holds two values of the allocation counter, in bytes: seen at the last
// reading, given when memory was last returned.
type allocations struct{ seen, given uint64 }

// over takes the current value of the counter. It reports whether a burst has come and
// ended since memory was last returned.
func (a *allocations) over(now uint64) bool {
	goesOn := now-a.seen >= memoryBurst
	a.seen = now
	if goesOn || now-a.given < memoryBurst {
		return false
	}
	a.given = now
	return true
}
