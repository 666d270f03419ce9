package main

import "testing"

// TestGrowthFor: small heaps may grow by 32 MB, large ones by half, and none more
// than fivefold.
func TestGrowthFor(t *testing.T) {
	for live, want := range map[uint64]int{0: 400, 4 << 20: 400, 16 << 20: 200, 32 << 20: 100, 64 << 20: 50, 256 << 20: 50} {
		if got := growthFor(live); got != want {
			t.Errorf("of %d MB: %d%%, want %d%%", live>>20, got, want)
		}
	}
	if inUse() == 0 {
		t.Error("nothing of the heap is in use")
	}
}
