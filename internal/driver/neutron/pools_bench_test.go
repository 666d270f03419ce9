package neutron

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/driver/neutron/choice"
	"fairlead.dev/fairlead/internal/driver/neutron/pool"
	"fairlead.dev/fairlead/test/cloudtest"
	"fairlead.dev/fairlead/test/drivertest"
	"fairlead.dev/fairlead/test/pooltest"
)

// Latencies of a Neutron that is well: 250 ms for a port, and a second for a request of many.
const (
	latencyOfPort = 250 * time.Millisecond
	latencyOfBulk = time.Second
)

// BenchmarkPods starts 60 pods at once on one node, and reports pods per second and the calls
// of Neutron while a pod waits for its interface, for each pod: one port after the other is
// made, or ports are ready.
func BenchmarkPods(b *testing.B) {
	const pods = 60
	for name, m := range map[string]pool.Marks{"own": {}, "pooled": {Low: 60, High: 64, Batch: 20}} {
		b.Run(name, func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				s := cloudtest.New(b)
				s.AddNetwork(b, "pods", "10.8.0.0/16")
				var calls atomic.Int64
				latency := latencyOfPort
				if m.Low > 0 {
					latency = latencyOfBulk
				}
				s.Inject(func(method, path string) cloudtest.Fault {
					if !strings.HasPrefix(path, "/auth") {
						calls.Add(1)
					}
					if method == "POST" && path == "/ports" {
						return cloudtest.Fault{Delay: latency}
					}
					return cloudtest.Fault{}
				})
				d := ready(b, s, m)
				before := calls.Load()
				b.StartTimer()
				start := time.Now()
				var all sync.WaitGroup
				for n := range pods {
					all.Go(func() {
						if _, err := d.Ensure(context.Background(), drivertest.Request(n+1)); err != nil {
							b.Error(err)
						}
					})
				}
				all.Wait()
				took := time.Since(start)
				b.ReportMetric(pods/took.Seconds(), "pods/s")
				b.ReportMetric(float64(calls.Load()-before)/pods, "calls/pod")
			}
		})
	}
}

// ready returns a driver whose pool, if it has one, is full.
func ready(b *testing.B, s *cloudtest.Server, m pool.Marks) driver.Driver {
	b.Helper()
	cfg := Config{Cluster: "east", Choice: choice.Config{Namespace: "fairlead-system", Default: choice.Settings{Network: "pods"}}}
	if m.Low == 0 {
		return connected(b, cfg, s.File, cloudtest.Admin)
	}
	p := start(b, s, pooltest.New(), cfg, m)
	begun := time.Now()
	if _, err := p.Ensure(b.Context(), drivertest.Request(0)); err != nil {
		b.Fatal(err)
	}
	for p.pools.Ready() < m.Low {
		p.mu.Lock()
		woken := p.woken
		p.mu.Unlock()
		select {
		case <-woken:
		case <-time.After(10 * time.Second):
			b.Fatal(errors.New("the pool is not filled"))
		}
	}
	b.Logf("%d ports made in %v", m.Low, time.Since(begun))
	return p
}
