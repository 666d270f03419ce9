package block

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/test/blocktest"
)

// list feeds a store with all objects, as the first list of an informer does.
func list(api *blocktest.API, s *Store) {
	for _, o := range api.List() {
		s.Observe(o)
	}
}

// wrongClock configures a wall clock that is wrong by *by.
func wrongClock(by *time.Duration) Config {
	return Config{FreeLinger: -1, Now: func() time.Time { return time.Now().Add(*by) }}
}

// If a leader with a wrong clock frees an address, the next leader hands it out neither
// too early nor too late. Once, a pod got an address 77 us after another pod had it,
// and once an address was withheld for a year.
func TestCooldownUnderClocksThatLie(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for _, tt := range []struct {
		name string
		// first and next are the errors of two leaders' clocks.
		first, next time.Duration
		// warm is true if the next leader has watched the first.
		warm bool
		// least and most are how long the address cools down.
		least, most time.Duration
	}{
		{"right", 0, 0, true, 30 * time.Second, 30 * time.Second},
		{"right, and the next has just begun", 0, 0, false, 30 * time.Second, 30 * time.Second},
		{"a minute behind", -time.Minute, 0, true, 30 * time.Second, 30 * time.Second},
		{"a minute behind, and the next has just begun", -time.Minute, 0, false, ipam.MinCooldown, ipam.MinCooldown},
		{"a year ahead", year, 0, true, 30 * time.Second, 30 * time.Second},
		{"a year ahead, and the next has just begun", year, 0, false, 30 * time.Second, 30 * time.Second},
		{"the next is an hour ahead", 0, time.Hour, false, ipam.MinCooldown, ipam.MinCooldown},
		{"the next is an hour behind", 0, -time.Hour, false, 30 * time.Second, 30 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := blocktest.NewAPI()
				p := shared(t, "10.0.0.1")
				a, b := run(t, api, wrongClock(&tt.first)), run(t, api, wrongClock(&tt.next))
				if tt.warm {
					feedAll(t, api, b.Store)
				}
				mustTake(t, a.Store, p, holder(1))
				synctest.Wait()
				mustFree(t, a.Store, holder(1))
				synctest.Wait()
				if !tt.warm {
					list(api, b.Store)
				}
				early := ipam.MinCooldown // an exhausted pool hands out addresses that have cooled down for this long
				advance(early - 10*time.Millisecond)
				if _, err := b.Take(t.Context(), p, Request{Holder: holder(2)}); !errors.Is(err, fault.ErrExhausted) {
					t.Errorf("under the floor: %v", err)
				}
				if c := b.Counts(p); c.Cooling != 1 {
					t.Errorf("under the floor: %v", c)
				}
				if tt.least > early {
					advance(tt.least - early)
				}
				if c := b.Counts(p); c.Cooling != 1 {
					t.Errorf("before %v: %v", tt.least, c)
				}
				advance(tt.most - tt.least + 20*time.Millisecond)
				if c := b.Counts(p); c.Free != 1 {
					t.Errorf("after %v: %v", tt.most, c)
				}
				mustTake(t, b.Store, p, holder(2))
			})
		})
	}
}

// A jump of the process's own wall clock while an address cools down changes nothing.
func TestCooldownUnderClockThatJumps(t *testing.T) {
	for _, jump := range []time.Duration{time.Hour, -time.Hour, 365 * 24 * time.Hour} {
		t.Run(jump.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var wrong time.Duration
				s := run(t, blocktest.NewAPI(), wrongClock(&wrong))
				p := shared(t, "10.0.0.1")
				mustTake(t, s.Store, p, holder(1))
				mustFree(t, s.Store, holder(1))
				wrong = jump
				advance(ipam.MinCooldown - 10*time.Millisecond)
				if _, err := s.Take(t.Context(), p, Request{Holder: holder(2)}); !errors.Is(err, fault.ErrExhausted) {
					t.Errorf("under the floor: %v", err)
				}
				advance(ipam.DefaultCooldown - ipam.MinCooldown + 20*time.Millisecond)
				if c := s.Counts(p); c.Free != 1 {
					t.Errorf("after the cooldown: %v", c)
				}
			})
		})
	}
}

// A new process knows 64 addresses that were freed long ago, and the pool has no
// others. They are handed out after MinCooldown, not after their cooldown.
func TestColdStartOfAFullPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		p := shared(t, "10.0.0.0-10.0.0.63")
		s := run(t, api, Config{FreeLinger: -1})
		takeAll(t, s.Store, p, holders(64, 1))
		for _, h := range holders(64, 1) {
			mustFree(t, s.Store, h)
		}
		advance(time.Minute)
		next := run(t, api, Config{})
		list(api, next.Store)
		_, err := next.Take(t.Context(), p, Request{Holder: holder(99)})
		if !errors.Is(err, fault.ErrExhausted) || !strings.Contains(err.Error(), "cooling=64") {
			t.Errorf("at once: %v", err)
		}
		advance(ipam.MinCooldown + time.Millisecond)
		if c := next.Counts(p); c.Free != 64 {
			t.Errorf("after the floor: %v", c)
		}
		if got, errs := takeAll(t, next.Store, p, holders(64, 1)); len(got) != 64 {
			t.Errorf("%d given, errors: %v", len(got), errs)
		}
	})
}
