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

	"fairlead.dev/fairlead/test/cluster"
	"fairlead.dev/fairlead/test/drivertest"
)

// A pod that is bound to a node that does not exist gets nothing and an event. When the
// Node comes, its event has the pod served at once.
func TestPodOnANodeThatDoesNotExist(t *testing.T) {
	c := cluster.Exclusive(t)
	h := start(t, c, drivertest.NewMemory("memory", 8), func(cfg *Config, _ ctrl.Manager) { cfg.Nodes = labels.Everything() })
	p := h.Pod("ghost", "ghost-1")
	if note := h.event(p, eventNodeUnknown); !strings.Contains(note, `there is no Node "ghost-1"`) {
		t.Errorf("the event: %s", note)
	}
	if held := h.driver.Held(); len(held) > 0 {
		t.Errorf("it has taken %v", held)
	}
	h.settle("other") // other pods are served
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

// The cache may show a new Node after its first pods. They get no event that it does not
// exist, and in every order the Node's event finds the pod waiting, or the pod is served.
func TestNodeThatHasJustJoined(t *testing.T) {
	metrics, err := NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "t", Name: "web", UID: "pod"}, Spec: corev1.PodSpec{NodeName: "n1"}}
	key := client.ObjectKeyFromObject(p)
	for _, tc := range []struct {
		name string
		// comes is the number of reads before the Node appears; -1 for never.
		comes int
		// warned is true if the pod gets an event that the Node does not exist.
		warned bool
	}{{"at once", 0, false}, {"between two looks", 1, false}, {"after the last", 2, false}, {"never", -1, true}} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nodes := &nodesOf{has: map[string]bool{}}
				r := New(Config{Client: nodes, Nodes: labels.Everything(), Metrics: metrics})
				looks, woken := 0, false
				nodes.look = func() {
					if looks == tc.comes {
						nodes.has["n1"] = true
						woken = r.memory.waiterOf(key) != nil // whether the Node's event would find the pod
					}
					looks++
				}
				served := r.nodes.serve(t.Context(), p)
				await := func(s observed) ctrl.Result {
					t.Helper()
					s.key = key
					result, err := r.ensurer.awaitItsNode(t.Context(), &s)
					if err != nil {
						t.Error(err)
					}
					return result
				}
				result := await(observed{pod: p, served: served})
				if tc.comes == 2 {
					nodes.look()
				}
				if tc.comes >= 0 && !served && !woken && result.RequeueAfter != time.Millisecond {
					t.Errorf("the Node is there, and nobody looks at the pod: %+v", result)
				}
				if tc.warned {
					if result.RequeueAfter != nodeCacheLag {
						t.Errorf("%+v, want an event in %v", result, nodeCacheLag)
					}
					<-time.After(nodeCacheLag)
					for range 3 {
						if result = await(observed{pod: p}); result.RequeueAfter != 0 {
							t.Errorf("%+v: it is polled", result)
						}
					}
				}
				want := 0
				if tc.warned {
					want = 1
				}
				if n := r.warnings.Due(); n != want {
					t.Errorf("%d events, want %d", n, want)
				}
				await(observed{})
				if remembered(r)["pods_without_node"] > 0 {
					t.Errorf("remembered: %v", remembered(r))
				}
			})
		})
	}
}
