package block

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"fairlead.dev/fairlead/test/blocktest"
)

// BenchmarkStorm takes and frees for 10,000 pods on 20 nodes at once. Each call to the
// API takes 2 ms.
func BenchmarkStorm(b *testing.B) {
	for _, bb := range []struct {
		name    string
		perNode bool
		cidrs   []string
	}{
		{"per node", true, []string{"10.244.0.0/16"}},
		{"shared", false, []string{"10.0.0.0/16"}},
		{"dual stack", true, []string{"10.244.0.0/16", "fd00:10::/64"}},
	} {
		b.Run(bb.name, func(b *testing.B) {
			const pods = 10000
			writes, takes := 0, time.Duration(0)
			for b.Loop() {
				api := blocktest.NewAPI()
				api.Hook(slow(2 * time.Millisecond))
				s := run(b, api, Config{})
				p := shared(b, bb.cidrs...)
				if bb.perNode {
					p = perNode(b, bb.cidrs...)
				}
				start := time.Now()
				if _, errs := takeAll(b, s.Store, p, holders(pods, 20)); len(errs) > 0 {
					b.Fatal(errs[0])
				}
				takes += time.Since(start)
				writes += api.Writes()
				var wg sync.WaitGroup
				for _, h := range holders(pods, 20) {
					wg.Go(func() { mustFree(b, s.Store, h) })
				}
				wg.Wait()
				s.stop()
			}
			b.ReportMetric(float64(b.N)*pods/takes.Seconds(), "takes/s")
			b.ReportMetric(float64(writes)/float64(b.N)/pods, "writes/life")
		})
	}
}

// BenchmarkTakeAlone takes one address after another without latency, to measure the
// store's own cost.
func BenchmarkTakeAlone(b *testing.B) {
	s := run(b, blocktest.NewAPI(), Config{FreeLinger: -1})
	p := perNode(b, "10.244.0.0/16")
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		mustTake(b, s.Store, p, holderOn(fmt.Sprint("node-", i%20), i))
		if i >= 1000 {
			mustFree(b, s.Store, holder(i-1000))
		}
	}
}

// BenchmarkCounts counts over 1,600 blocks.
func BenchmarkCounts(b *testing.B) {
	api := blocktest.NewAPI()
	s := run(b, api, Config{})
	p := shared(b, "10.0.0.0-10.1.143.255")
	if _, errs := takeAll(b, s.Store, p, holders(90000, 1)); len(errs) > 0 {
		b.Fatal(errs[0])
	}
	b.ReportMetric(float64(len(api.List())), "blocks")
	for b.Loop() {
		s.Counts(p)
	}
}
