package soak

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Scrape has the metrics of a program at one moment.
type Scrape map[string]*dto.MetricFamily

// ParseScrape reads the text that a program serves at /metrics.
func ParseScrape(text string) (Scrape, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	return families, nil
}

// Value returns the sum of the counters or gauges of a name whose labels include those of
// labels, which are names and values in turns.
func (s Scrape) Value(name string, labels ...string) (sum float64) {
	for _, m := range s[name].GetMetric() {
		if has(m, labels) {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return sum
}

// Counts returns the counters of a name by the value of one label.
func (s Scrape) Counts(name, label string, labels ...string) map[string]float64 {
	out := map[string]float64{}
	for _, m := range s[name].GetMetric() {
		if has(m, labels) {
			out[valueOf(m, label)] += m.GetCounter().GetValue()
		}
	}
	return out
}

// Histogram returns the cumulative counts of a histogram by the upper bound of the bucket.
func (s Scrape) Histogram(name string, labels ...string) Histogram {
	out := Histogram{}
	for _, m := range s[name].GetMetric() {
		if !has(m, labels) {
			continue
		}
		h := m.GetHistogram()
		for _, b := range h.GetBucket() {
			if !math.IsInf(b.GetUpperBound(), 1) {
				out[b.GetUpperBound()] += float64(b.GetCumulativeCount())
			}
		}
		out[math.Inf(1)] += float64(h.GetSampleCount())
	}
	return out
}

func has(m *dto.Metric, labels []string) bool {
	for i := 0; i+1 < len(labels); i += 2 {
		if valueOf(m, labels[i]) != labels[i+1] {
			return false
		}
	}
	return true
}

func valueOf(m *dto.Metric, label string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == label {
			return l.GetValue()
		}
	}
	return ""
}

// Histogram has cumulative counts by the upper bound of the bucket.
type Histogram map[float64]float64

// Count returns the number of observations.
func (h Histogram) Count() float64 { return h[math.Inf(1)] }

// Quantile returns the upper bound of the bucket that has the quantile q, from 0 to 1; zero
// without an observation. It is infinite if the last bucket has it.
func (h Histogram) Quantile(q float64) float64 {
	if h.Count() == 0 {
		return 0
	}
	for _, bound := range slices.Sorted(maps.Keys(h)) {
		if h[bound] >= q*h.Count() {
			return bound
		}
	}
	return math.Inf(1)
}

// Totals adds up the metrics of processes that are killed and started again: each counts
// from zero. Several goroutines may use it at once.
type Totals struct {
	mu   sync.Mutex
	last map[string]Scrape
}

// Add replaces the former scrape of the same process of a program.
func (t *Totals) Add(program string, s Scrape) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last == nil {
		t.last = map[string]Scrape{}
	}
	t.last[fmt.Sprintf("%s %v", program, s.Value("process_start_time_seconds"))] = s
}

// Processes returns the number of processes that were scraped.
func (t *Totals) Processes() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.last)
}

// Value returns the sum of a counter over all processes.
func (t *Totals) Value(name string, labels ...string) (sum float64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.last {
		sum += s.Value(name, labels...)
	}
	return sum
}

// Counts returns the sums of a counter over all processes, by the value of one label.
func (t *Totals) Counts(name, label string, labels ...string) map[string]float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := map[string]float64{}
	for _, s := range t.last {
		for value, n := range s.Counts(name, label, labels...) {
			out[value] += n
		}
	}
	return out
}

// Histogram returns the sum of a histogram over all processes.
func (t *Totals) Histogram(name string, labels ...string) Histogram {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := Histogram{}
	for _, s := range t.last {
		for bound, n := range s.Histogram(name, labels...) {
			out[bound] += n
		}
	}
	return out
}
