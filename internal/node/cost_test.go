package node

import (
	"fmt"
	"runtime"
	"testing"
)

// maxAllocations is how many allocations an ADD of one interface may cost on a node with a
// fake kernel, until its status is written: a tenth more than the 730 of Go 1.26. The
// number does not depend on the load of the machine, as the times of the benchmarks do.
const maxAllocations = 800

func TestCostOfADD(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		const pods = 200
		name := func(letter string, n int) string { return fmt.Sprintf("%s%d", letter, n) }
		for n := range 2 * pods {
			w.pod(name("p", n), name("u", n))
		}
		settle()
		add := func(from int) uint64 {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for n := from; n < from+pods; n++ {
				w.mustAdd(name("c", n), name("p", n), name("u", n))
			}
			runtime.ReadMemStats(&after)
			return (after.Mallocs - before.Mallocs) / pods
		}
		add(0)
		if got := add(pods); got > maxAllocations {
			w.t.Errorf("%d allocations per ADD, want at most %d", got, maxAllocations)
		}
	})
}
