package controller

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/internal/controller/proof"
)

// promlint accepts every metric.
func TestMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	m, err := NewMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	m.ensures.WithLabelValues("OK").Inc()
	m.releases.WithLabelValues("OK").Inc()
	m.proofs.WithLabelValues(string(proof.ByWord)).Inc()
	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

// The first network that is reclaimed counts: Prometheus sees no increase to the first sample
// of a series, so each proof has one before.
func TestFirstProofCounts(t *testing.T) {
	registry := prometheus.NewRegistry()
	if _, err := NewMetrics(registry); err != nil {
		t.Fatal(err)
	}
	want := "# HELP fairlead_release_proofs_total Networks of pods released, by the proof that nothing uses them. By proof: detached (the node's confirmation), rebooted, out_of_service, node_deleted, reclaimed.\n# TYPE fairlead_release_proofs_total counter\n"
	for _, p := range []string{"detached", "node_deleted", "out_of_service", "rebooted", "reclaimed"} {
		want += fmt.Sprintf("fairlead_release_proofs_total{proof=%q} 0\n", p)
	}
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "fairlead_release_proofs_total"); err != nil {
		t.Error(err)
	}
}

// The gauges of time begin when a pod or a release begins to wait. Further tries do not
// begin anew, and a pod that was replaced by another of its name does.
func TestLongestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		m, err := NewMetrics(registry)
		if err != nil {
			t.Fatal(err)
		}
		want := func(when string, wait, release float64) {
			t.Helper()
			text := ""
			for _, g := range []struct {
				name, help string
				value      float64
			}{
				{"release", "How long the oldest release of a PodAttachment has been going on, as the leader saw; 0 if there is none.", release},
				{"wait", "How long the first of the waiting pods has waited for its network, as the leader saw; 0 if none waits.", wait},
			} {
				name := "fairlead_controller_longest_" + g.name + "_seconds"
				text += fmt.Sprintf("# HELP %s %s\n# TYPE %s gauge\n%s %v\n", name, g.help, name, name, g.value)
			}
			if err := testutil.GatherAndCompare(registry, strings.NewReader(text), "fairlead_controller_longest_wait_seconds", "fairlead_controller_longest_release_seconds"); err != nil {
				t.Errorf("%s: %v", when, err)
			}
		}
		want("without a reconciler", 0, 0)
		r := New(Config{Metrics: m})
		pod := func(name, uid string) *corev1.Pod {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "t", Name: name, UID: "pod-" + types.UID(uid)}}
		}
		waits := func(mark *mark) { mark.waitsSince = time.Now() }
		r.memory.wait(pod("a", "1"), nil)
		r.memory.changeMark("x", waits)
		time.Sleep(time.Minute) //nolint:forbidigo // the bubble's clock
		r.memory.wait(pod("a", "1"), nil)
		r.memory.wait(pod("b", "2"), nil)
		r.memory.changeMark("y", waits)
		time.Sleep(time.Minute) //nolint:forbidigo // the bubble's clock
		want("two of each", 120, 120)
		r.memory.wait(pod("a", "3"), nil)
		r.memory.changeMark("x", func(mark *mark) { mark.stage = finalizerDropped })
		want("a successor, and a release that is done", 60, 60)
		r.memory.endWait(client.ObjectKeyFromObject(pod("b", "2")))
		r.memory.endWait(client.ObjectKeyFromObject(pod("a", "3")))
		r.memory.beginTerm()
		want("none", 0, 0)
		m.Leads(false)
		if n, err := testutil.GatherAndCount(registry, "fairlead_controller_longest_wait_seconds", "fairlead_controller_longest_release_seconds"); err != nil || n != 0 {
			t.Errorf("a standby serves %d series, %v", n, err)
		}
	})
}
