package native

import (
	"sync"
	"time"

	"fairlead.dev/fairlead/internal/ipam"
)

const (
	// forecastWindow is how far a forecast looks back, and forecastStep how
	// far apart its samples are at least.
	forecastWindow = 30 * time.Minute
	forecastStep   = time.Minute
	// maxForecast is the longest that is told.
	maxForecast = 366 * 24 * time.Hour
)

// sample is how full a family of a pool was.
type sample struct {
	at        time.Time
	allocated uint64
}

// family is one of a pool's.
type family struct {
	pool string
	ipam.Family
}

// forecast tells from the past half hour when pools will be exhausted.
type forecast struct {
	mu sync.Mutex
	m  map[family][]sample
}

// note takes in how full a family of a pool is, and returns how long what is
// not allocated lasts at the rate at which allocations have grown; false when
// they have not, or not for long enough to tell, or when it lasts for years.
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
	// What cools down is free again by then.
	perSecond := float64(c.Allocated-seen[0].allocated) / took.Seconds()
	left := float64(c.Free+c.Cooling) / perSecond
	if left > maxForecast.Seconds() {
		return 0, false
	}
	return time.Duration(left * float64(time.Second)), true
}

// forget drops what is known of a pool that is gone or cannot be used.
func (f *forecast) forget(pool string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for of := range f.m {
		if of.pool == pool {
			delete(f.m, of)
		}
	}
}
