package node

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Memory is returned once after each burst, not during it, and not for the allocations of
// an idle daemon.
func TestMemoryIsGivenBackAfterABurst(t *testing.T) {
	const some, much = memoryBurst / 8, 3 * memoryBurst
	for _, tt := range []struct {
		name      string
		allocated []uint64 // between two readings
		want      []int    // the readings at which memory is returned
	}{
		{"idle", []uint64{some, some, some}, nil},
		{"idle for long", []uint64{some, some, some, some, some, some, some, some, some}, []int{7}},
		{"a burst", []uint64{some, much, much, much, some, some, some}, []int{4}},
		{"a burst that a look parts", []uint64{some, much, memoryBurst - 1, some, some}, []int{2}},
		{"what a burst left until the look before", []uint64{much, memoryBurst - 1, memoryBurst - 1, some}, []int{1, 3}},
		{"two bursts", []uint64{much, some, much, some}, []int{1, 3}},
		{"nothing", []uint64{0, 0, 0}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var a allocations
			var now uint64
			var got []int
			for look, n := range tt.allocated {
				now += n
				if a.over(now) {
					got = append(got, look)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("looks (-want +got):\n%s", diff)
			}
		})
	}
}
