package main

import (
	"context"
	"fmt"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/cache"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/run"
)

// How much, in percent, the heap may grow until garbage is collected. At first
// nearly all that is read is kept, and looking at it again and again for garbage
// would take longer than reading it. Then pods are served while PodAttachments are
// read. Afterwards memory is dearer than time, where there is much of it in use.
const (
	growthAtFirst = 400
	growthThen    = 100
	growth        = 50
)

// spare is what a heap may grow by in any case, in bytes. In a small cluster a burst
// of pods would else have garbage collected every few megabytes: a sixth of what the
// controller does in it.
const spare = 32 << 20

// growthFor is how much a heap may grow, in percent, of which so many bytes are in
// use.
func growthFor(live uint64) int {
	return int(min(max(growth, spare*100/max(live, 1)), growthAtFirst))
}

// giveBackEvery is how often memory is given back: as often as Go collects
// garbage in a program that is idle.
const giveBackEvery = 2 * time.Minute

// giveBack gives the system back the memory that is not used any more: what
// reading all objects for the first time took beside what is kept of them, and
// then what each burst of pods took. Go alone keeps up to twice of what is in use.
func giveBack(caches cache.Cache) run.Everywhere {
	return func(ctx context.Context) error {
		if !caches.WaitForCacheSync(ctx) {
			return nil
		}
		debug.SetGCPercent(growthThen)
		_, err := caches.GetInformer(ctx, &v1alpha1.PodAttachment{}) // which are read last
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("wait for the PodAttachments: %w", err)
		}
		tick := time.NewTicker(giveBackEvery)
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
}

// inUse is what the last garbage collection left of the heap, in bytes.
func inUse() uint64 {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	return live[0].Value.Uint64()
}
