package driver

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/fault"
)

// failing is a driver whose every call fails with err.
type failing struct{ err error }

func (f failing) Ensure(context.Context, *Request) (*Attachment, error) { return nil, f.err }

func (f failing) Release(context.Context, Ref) error { return f.err }

func (f failing) Confirm(context.Context, Ref) (v1alpha1.Interface, error) {
	return v1alpha1.Interface{}, f.err
}

func (f failing) List(context.Context) iter.Seq2[Ref, error] {
	return func(yield func(Ref, error) bool) { yield(Ref{}, f.err) }
}

// Every sentinel has a label of its own.
func TestMetricsNameEverySentinel(t *testing.T) {
	sentinels := []error{nil, fault.ErrInvalid, fault.ErrExhausted, fault.ErrUnavailable, fault.ErrNotFound, fault.ErrConflict, errors.New("foreign")}
	want := map[string]uint64{}
	for _, name := range []string{"OK", "Invalid", "Exhausted", "Unavailable", "NotFound", "Conflict", "Unknown"} {
		for _, method := range []string{"ensure", "release", "list", "confirm"} {
			want[method+" "+name] = 1
		}
	}
	reg := prometheus.NewRegistry()
	m, err := NewMetrics(reg)
	if err != nil {
		t.Fatal(err)
	}
	for _, sentinel := range sentinels {
		if sentinel != nil {
			sentinel = fmt.Errorf("doing something: %w", sentinel)
		}
		d := m.Wrap("native", failing{sentinel})
		_, ensureErr := d.Ensure(t.Context(), &Request{})
		if !errors.Is(ensureErr, sentinel) || !errors.Is(d.Release(t.Context(), Ref{}), sentinel) {
			t.Errorf("the decorator changed %v", sentinel)
		}
		if _, err := d.Confirm(t.Context(), Ref{}); !errors.Is(err, sentinel) {
			t.Errorf("the decorator changed %v into %v", sentinel, err)
		}
		for _, err := range d.List(t.Context()) {
			if !errors.Is(err, sentinel) {
				t.Errorf("the decorator changed %v into %v", sentinel, err)
			}
		}
	}
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]uint64{}
	for _, f := range families {
		for _, metric := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range metric.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			got[labels["method"]+" "+labels["result"]] = metric.GetHistogram().GetSampleCount()
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
