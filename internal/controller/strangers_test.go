package controller

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/internal/driver/drivertest"
	"fairlead.dev/fairlead/test/cluster"
)

// A pod that somebody binds to a node that does not exist takes nothing, and is told so.
// When the Node comes it is served at once, by the Node's event.
func TestPodOnANodeThatDoesNotExist(t *testing.T) {
	c := cluster.Exclusive(t)
	h := start(t, c, drivertest.NewMemory("memory", 8), func(cfg *Config, _ ctrl.Manager) { cfg.Nodes = labels.Everything() })
	p := h.Pod("ghost", "ghost-1")
	if note := h.event(p, eventNodeUnknown); !strings.Contains(note, `there is no Node "ghost-1"`) {
		t.Errorf("the pod is told: %s", note)
	}
	if held := h.driver.Held(); len(held) > 0 {
		t.Errorf("it has taken %v", held)
	}
	h.settle("other") // others are served
	h.waitState(p, "absent")
	h.Node("ghost-1")
	h.record(p)
}

// nodesOf is a cache of Nodes; look is called before each answer.
type nodesOf struct {
	client.Client
	has  map[string]bool
	look func()
}

func (n *nodesOf) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	n.look()
	if !n.has[key.Name] {
		return apierrors.NewNotFound(corev1.Resource("nodes"), key.Name)
	}
	return nil
}

// Word of a Node that has just joined is behind that of its first pods: nobody is told
// that there is none, and whenever it comes, the pod is either found waiting or served.
func TestNodeThatHasJustJoined(t *testing.T) {
	metrics, err := NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "t", Name: "web", UID: "pod"}, Spec: corev1.PodSpec{NodeName: "n1"}}
	key := client.ObjectKeyFromObject(p)
	for _, tc := range []struct {
		name string
		// comes is after which look the Node is there; -1 for never.
		comes int
		// told of a Node that there is not.
		told bool
	}{{"at once", 0, false}, {"between two looks", 1, false}, {"after the last", 2, false}, {"never", -1, true}} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nodes := &nodesOf{has: map[string]bool{}}
				r := New(Config{Client: nodes, Nodes: labels.Everything(), Metrics: metrics})
				looks, woken := 0, false
				nodes.look = func() {
					if looks == tc.comes {
						nodes.has["n1"] = true
						woken = r.waiting.has(key) // what the Node's event would find
					}
					looks++
				}
				served := r.serves(t.Context(), p)
				await := func(s sight) ctrl.Result {
					t.Helper()
					s.key = key
					result, err := r.awaitItsNode(t.Context(), &s)
					if err != nil {
						t.Error(err)
					}
					return result
				}
				result := await(sight{pod: p, served: served})
				if tc.comes == 2 {
					nodes.look()
				}
				if tc.comes >= 0 && !served && !woken && result.RequeueAfter != time.Millisecond {
					t.Errorf("the Node is there, and nobody looks at the pod: %+v", result)
				}
				if tc.told {
					if result.RequeueAfter != nodeWord {
						t.Errorf("%+v, want to be told in %v", result, nodeWord)
					}
					<-time.After(nodeWord)
					for range 3 {
						if result = await(sight{pod: p}); result.RequeueAfter != 0 {
							t.Errorf("%+v: it is polled", result)
						}
					}
				}
				want := 0
				if tc.told {
					want = 1
				}
				if n := r.told.Due(); n != want {
					t.Errorf("%d events, want %d", n, want)
				}
				await(sight{})
				if len(r.strangers.m) > 0 {
					t.Errorf("remembered: %v", r.strangers.m)
				}
			})
		})
	}
}
