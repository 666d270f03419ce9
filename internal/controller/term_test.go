package controller

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/controller/proof"
)

// nothing is an API server without objects.
type nothing struct{ client.Reader }

func (nothing) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

func (nothing) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }

// cacheOf is a cache that has every record, under the UID "1".
type cacheOf struct{ client.Client }

func (cacheOf) Get(_ context.Context, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	o.SetUID("1")
	return nil
}

// A Node that was found deleted in a former term may have been back since, while another
// process led: its grace begins anew.
func TestGraceOfAFormerTerm(t *testing.T) {
	r := New(Config{NodeGrace: time.Minute, Client: cacheOf{}})
	record := &v1alpha1.PodAttachment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p-1", UID: "1", DeletionTimestamp: new(metav1.Now())}}
	record.Spec.NodeName = "n"
	weigh := func() proof.Verdict {
		t.Helper()
		e, err := r.releaser.gather(t.Context(), nothing{}, record)
		if err != nil {
			t.Fatal(err)
		}
		return proof.Weigh(record, e)
	}
	r.memory.changeMark(record.UID, func(m *mark) { m.stage = givenBack })
	r.memory.changeLoss(record.UID, func(proof.LostNode) proof.LostNode { return proof.FoundLost(time.Now().Add(-time.Hour)) })
	if v := weigh(); v.Proof != proof.ByDeletion {
		t.Fatalf("an hour later in the same term: %+v", v)
	}
	r.BeginTerm()
	if m := r.memory.markOf(record.UID); m != (mark{}) {
		t.Errorf("it is remembered that %+v", m)
	}
	if v := weigh(); v.Proof != proof.None || v.Due == 0 {
		t.Errorf("in the next term: %+v", v)
	}
}

// A gauge is exported only while the process leads: otherwise another process exports it.
// Counters are always exported.
func TestMetricsOfAStandby(t *testing.T) {
	registry := prometheus.NewRegistry()
	m, err := NewMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	m.ensures.WithLabelValues("OK").Inc()
	for _, leads := range []bool{true, false, true} {
		m.Leads(leads)
		present := 0
		if leads {
			present = 1
		}
		for name, want := range map[string]int{
			"fairlead_controller_waiting_pods": present, "fairlead_controller_ensures_total": 1,
		} {
			if n, err := testutil.GatherAndCount(registry, name); err != nil || n != want {
				t.Errorf("leads %v: %d series of %s, %v; want %d", leads, n, name, err, want)
			}
		}
	}
}
