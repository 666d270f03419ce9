package cli

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli/kube"
	"fairlead.dev/fairlead/test/clitest"
)

func TestUsageBar(t *testing.T) {
	for _, tt := range []struct {
		name string
		pool poolView
		want string
	}{
		{"nothing usable", poolView{}, "[                    ]"},
		{"empty", poolView{Usable: 254, Free: 254}, "[....................] 0%"},
		{"full", poolView{Usable: 254, Allocated: 254}, "[####################] 100%"},
		{"half", poolView{Usable: 4, Free: 2, Allocated: 2}, "[##########..........] 50%"},
		{"one of many shows", poolView{Usable: 65534, Free: 65533, Allocated: 1}, "[#...................] <1%"},
		{"one left shows", poolView{Usable: 65534, Free: 1, Allocated: 65533}, "[###################.] 99%"},
		{"all kinds", poolView{Usable: 100, Free: 60, Allocated: 10, Cooling: 10, Held: 10, Reserved: 10}, "[##~~HHxx............] 40%"},
		{"few of each", poolView{Usable: 1000, Free: 996, Allocated: 1, Cooling: 1, Held: 1, Reserved: 1}, "[#~Hx................] <1%"},
		{"an IPv6 pool", poolView{Usable: math.MaxInt64, Free: math.MaxInt64 - 9, Allocated: 9}, "[#...................] <1%"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, usageBar(tt.pool)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestMapOfALargePool: the map of a /64 shows only the blocks that exist.
func TestMapOfALargePool(t *testing.T) {
	pool := clitest.PoolOf("v6", clitest.Ranges("fd00::/64"))
	snap := kube.Snapshot{Now: clitest.Now, Blocks: []v1alpha1.IPBlock{clitest.BlockOf("fd00::/122", "", clitest.Taken(1, clitest.PodOf("a", "node-1"), 0))}}
	v, err := buildMap(&pool, snap)
	if err != nil {
		t.Fatal(err)
	}
	want := mapView{
		Pool: "v6", Domain: "default", Usable: math.MaxInt64, Free: math.MaxInt64 - 1, Allocated: 1,
		Blocks: []mapBlock{{CIDR: "fd00::/122", Slots: "-#" + strings.Repeat(".", 62)}}, UntouchedBlocks: 1<<58 - 1,
	}
	if diff := cmp.Diff(want, v); diff != "" {
		t.Error(diff)
	}
}

// TestMapOfALostRecord: a record without an address withholds all addresses without a
// record.
func TestMapOfALostRecord(t *testing.T) {
	pool := clitest.PoolOf("lan", clitest.Ranges("10.0.0.0-10.0.0.3"))
	snap := kube.Snapshot{Now: clitest.Now, Blocks: []v1alpha1.IPBlock{clitest.BlockOf("10.0.0.0/26", "", clitest.Taken(1, clitest.PodOf("a", "node-1"), 0), "nonsense")}}
	v, err := buildMap(&pool, snap)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("?#??"+strings.Repeat(" ", 60), v.Blocks[0].Slots); diff != "" {
		t.Error(diff)
	}
	if v.Free != 0 || v.Damaged != 3 {
		t.Errorf("free %d, damaged %d; want 0, 3", v.Free, v.Damaged)
	}
}

func TestMapOfABrokenPool(t *testing.T) {
	pool := clitest.PoolOf("lan", clitest.Ranges("10.0.0.1/24"))
	if _, err := buildMap(&pool, kube.Snapshot{}); err == nil || !strings.Contains(err.Error(), "pool lan cannot be drawn: spec.ranges[0]") {
		t.Errorf("got %v", err)
	}
}

func TestPoolNamed(t *testing.T) {
	pools := []v1alpha1.IPPool{clitest.PoolOf("b"), clitest.PoolOf("a")}
	if got, err := poolNamed(pools, "a"); err != nil || len(got) != 1 || got[0].Name != "a" {
		t.Errorf("got %v, %v", got, err)
	}
	for name, list := range map[string][]v1alpha1.IPPool{`there is no pool "c": there are a, b`: pools, `there is no pool "c": there are no pools`: nil} {
		if _, err := poolNamed(list, "c"); err == nil || err.Error() != name {
			t.Errorf("got %v, want %s", err, name)
		}
	}
}
