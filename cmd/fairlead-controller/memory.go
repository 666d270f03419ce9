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
// (growthAtFirst) nearly all that is read is kept, and collecting garbage again and again
// would take longer than reading. Then (growthThen) pods are served while PodAttachments
// are read. Afterwards (growth) memory is dearer than time if much of it is in use.
const (
	growthAtFirst = 400
	growthThen    = 100
	growth        = 50
)

// spare is how much a heap may grow in any case, in bytes. Otherwise a burst of pods in a
// small cluster would have garbage collected every few megabytes, which took a sixth of
// the controller's work.
const spare = 32 << 20

// growthFor returns how much a heap with live bytes in use may grow, in percent.
func growthFor(live uint64) int {
	return int(min(max(growth, spare*100/max(live, 1)), growthAtFirst))
}

// freeEvery is how often memory is given back to the system: as often as Go collects
// garbage in a program that is idle.
const freeEvery = 2 * time.Minute

// freeMemory gives unused memory back to the system: after the first reading of all
// objects, and then every freeEvery, for instance after a burst of pods. Go alone keeps
// up to twice the memory in use.
func freeMemory(caches cache.Cache) run.Everywhere {
	return func(ctx context.Context) error {
		if !caches.WaitForCacheSync(ctx) {
			return nil
		}
		debug.SetGCPercent(growthThen)
		_, err := caches.GetInformer(ctx, &v1alpha1.PodAttachment{}) // PodAttachments are read last
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("wait for the PodAttachments: %w", err)
		}
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
}

// inUse returns the size of the heap after the last garbage collection, in bytes.
func inUse() uint64 {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	return live[0].Value.Uint64()
}
