package upkeep

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// Each pool has its own series, which end with the pool and with the term of the leader,
// and every metric passes promlint. calico#5430, whereabouts#52: it was not visible how
// full a pool was, or which pool it was.
func TestPoolMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	var leads atomic.Bool
	leads.Store(true)
	m, err := NewMetrics(registry, leads.Load)
	if err != nil {
		t.Fatal(err)
	}
	m.Pool("web", "free", 3)
	m.Pool("web", "allocated", 5)
	m.Pool("db", "free", 1)
	m.Exhausts("web", time.Hour, true)
	m.Valid("web", true)
	m.Valid("db", false)
	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	if got := testutil.ToFloat64(m.addresses.WithLabelValues("web", "allocated")); got != 5 {
		t.Errorf("pool web has %v addresses allocated, want 5", got)
	}
	if web, db := testutil.ToFloat64(m.valid.WithLabelValues("web")), testutil.ToFloat64(m.valid.WithLabelValues("db")); web != 1 || db != 0 {
		t.Errorf("pool web is valid: %v, db: %v; want 1, 0", web, db)
	}
	m.NoPool("web")
	for name, want := range map[string]int{"fairlead_pool_addresses": 1, "fairlead_pool_seconds_until_exhausted": 0, "fairlead_pool_valid": 1} {
		if n, err := testutil.GatherAndCount(registry, name); err != nil || n != want {
			t.Errorf("%d series of %s, %v; want %d", n, name, err, want)
		}
	}
	leads.Store(false)
	if n, err := testutil.GatherAndCount(registry); err != nil || n != 0 {
		t.Errorf("a standby serves %d series, %v", n, err)
	}
}
