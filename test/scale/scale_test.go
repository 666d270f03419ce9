package main

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/apimachinery/pkg/types"
)

func TestFlags(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		want string
	}{
		{"defaults", nil, ""},
		{"few nodes", []string{"--nodes", "9", "--pods", "9"}, "--nodes is 9; must be 10 to 5000"},
		{"no pods", []string{"--pods", "0"}, "--pods is 0; must be 1 to 250 for each of the 100 nodes"},
		{"too many pods", []string{"--nodes", "10", "--pods", "2501"}, "--pods is 2501; must be 1 to 250 for each of the 10 nodes"},
		{"negative", []string{"--two", "-1"}, "--seconds is 15, --two -1 and --blocks 0; must be at least 0"},
		{"argument", []string{"now"}, `unexpected argument "now"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := parseFlags(tc.args, io.Discard)
			got := ""
			if err != nil {
				got = err.Error()
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Without the programs nothing is started.
func TestRefused(t *testing.T) {
	var stderr bytes.Buffer
	if code := launch([]string{"--bin", t.TempDir()}, io.Discard, &stderr); code != 3 || !strings.Contains(stderr.String(), "make bin/kubelab") {
		t.Errorf("exit code %d: %s", code, &stderr)
	}
}

// A batch counts each pod once, and names a pod that is missing.
func TestBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBatch()
		for _, name := range []string{"a", "b"} {
			b.lives = append(b.lives, &life{key: types.NamespacedName{Namespace: "scale", Name: name}, node: &node{name: "node-0001"}, batch: b})
		}
		for _, l := range b.lives {
			l.reach(created)
			<-time.After(time.Second)
			l.reach(recorded)
		}
		b.lives[0].reach(attached)
		b.lives[0].reach(attached)
		if err := b.await(context.Background(), recorded, time.Second); err != nil {
			t.Error(err)
		}
		err := b.await(context.Background(), attached, time.Second)
		if want := "1 of 2 pods are attached within 1s; scale/b on node-0001 is not"; err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
		if got := b.latency(created, recorded, 99); got != time.Second {
			t.Errorf("latency %v", got)
		}
	})
}

// Requests that write and that succeeded are counted by verb and resource.
func TestWritten(t *testing.T) {
	const text = `# TYPE apiserver_request_total counter
apiserver_request_total{verb="PATCH",resource="podattachments",subresource="status",code="200"} 3
apiserver_request_total{verb="PATCH",resource="podattachments",subresource="status",code="409"} 1
apiserver_request_total{verb="GET",resource="pods",subresource="",code="200"} 5
apiserver_request_total{verb="POST",resource="pods",subresource="",code="201"} 2
`
	parser := expfmt.NewTextParser(model.UTF8Validation)
	all, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]float64{"PATCH podattachments/status": 3, "POST pods": 2}
	if diff := cmp.Diff(want, sum(all["apiserver_request_total"], written)); diff != "" {
		t.Error(diff)
	}
}

// The processor time of a program that was started again counts from its start.
func TestProcessorTime(t *testing.T) {
	r := result{
		before: reading{pids: map[string]int{theLeader: 1, thePlane: 3}, cpu: map[string]float64{theLeader: 9, thePlane: 4}},
		after:  reading{pids: map[string]int{theLeader: 2, thePlane: 3}, cpu: map[string]float64{theLeader: 2, thePlane: 6}},
	}
	if got := [2]float64{r.cpu(theLeader), r.cpu(thePlane)}; got != [2]float64{2, 2} {
		t.Errorf("got %v", got)
	}
}
