package node

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// TestMetricsLint runs promlint on every metric.
func TestMetricsLint(t *testing.T) {
	registry := prometheus.NewRegistry()
	m, err := newMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	m.step("wait", time.Now())
	m.swept.WithLabelValues("sandbox").Inc()
	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	if n, err := testutil.GatherAndCount(registry); err != nil || n != 3 {
		t.Errorf("%d series, %v; want one of each of the 3 metrics", n, err)
	}
}
