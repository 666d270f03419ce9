package main

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// growth is how much, in percent, the heap may grow until garbage is collected. Memory is
// dearer than time if much of it is in use (ADR 0017).
const growth = 50

// spare is how much a heap may grow in any case, in bytes. Otherwise a burst of pods in a
// small cluster would have garbage collected every few megabytes, which took a sixth of
// the controller's work.
const spare = 32 << 20

// growthFor returns how much a heap with live bytes in use may grow, in percent: at most
// fivefold.
func growthFor(live uint64) int {
	return int(min(max(growth, spare*100/max(live, 1)), 400))
}

// freeEvery is how often memory is given back to the system: as often as Go collects
// garbage in a program that is idle.
const freeEvery = 2 * time.Minute

// freeMemory gives unused memory back to the system every freeEvery, for instance after the
// first reading of all objects, and after a burst of pods. Go alone keeps up to twice the
// memory in use.
func freeMemory(ctx context.Context) error {
	tick := time.NewTicker(freeEvery)
	defer tick.Stop()
	for {
		debug.FreeOSMemory()
		debug.SetGCPercent(growthFor(inUse()))
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// inUse returns the size of the heap after the last garbage collection, in bytes.
func inUse() uint64 {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	return live[0].Value.Uint64()
}
