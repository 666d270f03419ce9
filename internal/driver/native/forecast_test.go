package native

import (
	"testing"
	"time"

	"fairlead.dev/fairlead/internal/ipam"
)

func TestForecast(t *testing.T) {
	// at is the number of allocated addresses of a pool of 1,000, minute by minute.
	cases := []struct {
		name  string
		at    []uint64
		want  time.Duration
		known bool
	}{
		{"one look says nothing", []uint64{100}, 0, false},
		{"level", []uint64{100, 100, 100}, 0, false},
		{"emptying", []uint64{300, 200, 100}, 0, false},
		{"filling", []uint64{100, 200, 300}, 7 * time.Minute, true},
		{"up and down counts what is left of it", []uint64{100, 500, 200, 300, 200}, 32 * time.Minute, true},
		{"full", []uint64{1000}, 0, true},
		{"what grew more than half an hour ago is over", append([]uint64{100}, level(600, 40)...), 0, false},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			var f forecast
			of := family{"a", ipam.IPv4}
			var got time.Duration
			var known bool
			for i, n := range tc.at {
				now := time.Unix(0, 0).Add(time.Duration(i) * time.Minute)
				// A note between two samples changes nothing.
				f.note(of, ipam.Counts{Usable: 1000, Free: 1000 - n, Allocated: n}, now)
				got, known = f.note(of, ipam.Counts{Usable: 1000, Free: 1000 - n, Allocated: n}, now)
			}
			if got != tc.want || known != tc.known {
				t.Errorf("%s, %v, want %s, %v", got, known, tc.want, tc.known)
			}
			if n := len(f.m[of]); n > 32 {
				t.Errorf("%d samples are kept", n)
			}
			f.forget("a")
			if len(f.m) != 0 {
				t.Error("the pool is not forgotten")
			}
		})
	}
}

func level(n uint64, minutes int) []uint64 {
	out := make([]uint64, minutes)
	for i := range out {
		out[i] = n
	}
	return out
}
