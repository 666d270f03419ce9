package native

import (
	"sync"
	"time"

	"fairlead.dev/fairlead/internal/ipam"
)

const (
	// forecastWindow is how far a forecast looks back, and forecastStep the least time
	// between two of its samples.
	forecastWindow = 30 * time.Minute
	forecastStep   = time.Minute
	// maxForecast is the longest forecast that is reported.
	maxForecast = 366 * 24 * time.Hour
)

// sample is the number of allocated addresses of one family of a pool at a time.
type sample struct {
	at        time.Time
	allocated uint64
}

// family is an address family of a pool.
type family struct {
	pool string
	ipam.Family
}

// forecast predicts from the past half hour when pools will be exhausted.
type forecast struct {
	mu sync.Mutex
	m  map[family][]sample
}

// note records the counts of a family of a pool. It returns how long the free and cooling
// addresses last at the rate at which allocations have grown, 0 if none is free. It returns
// false if allocations have not grown, if the samples span less than forecastStep, or if
// the addresses last longer than maxForecast.
func (f *forecast) note(of family, c ipam.Counts, now time.Time) (time.Duration, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	seen := f.m[of]
	for len(seen) > 1 && now.Sub(seen[1].at) >= forecastWindow {
		seen = seen[1:]
	}
	if len(seen) == 0 || now.Sub(seen[len(seen)-1].at) >= forecastStep {
		seen = append(seen, sample{now, c.Allocated})
	}
	if f.m == nil {
		f.m = map[family][]sample{}
	}
	f.m[of] = seen
	took := now.Sub(seen[0].at)
	if c.Free > 0 && (took < forecastStep || c.Allocated <= seen[0].allocated) {
		return 0, false
	}
	if c.Free == 0 {
		return 0, true
	}
	// Addresses that cool down now are free again by then.
	perSecond := float64(c.Allocated-seen[0].allocated) / took.Seconds()
	left := float64(c.Free+c.Cooling) / perSecond
	if left > maxForecast.Seconds() {
		return 0, false
	}
	return time.Duration(left * float64(time.Second)), true
}

// forget drops the samples of a pool that is gone or cannot be used.
func (f *forecast) forget(pool string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for of := range f.m {
		if of.pool == pool {
			delete(f.m, of)
		}
	}
}
