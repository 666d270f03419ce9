package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/node/answer"
	"fairlead.dev/fairlead/internal/node/wait"
	"fairlead.dev/fairlead/test/nodetest"
)

func TestAddPlugsAnswersAndAcknowledgesOnce(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		key := w.pod("p", "u1", "eth0", "net1")
		answer, err := w.add("c1", "p", "u1")
		if err != nil {
			t.Fatal(err)
		}
		host := func(ifName string) string { return plug.RoutedName("c1", ifName) }
		want := map[string]any{
			"cniVersion": "1.1.0",
			"interfaces": []any{
				map[string]any{"name": host("eth0")},
				map[string]any{"name": "eth0", "mac": "0a:58:0a:f4:00:05", "mtu": 1500.0, "sandbox": w.netns("c1")},
				map[string]any{"name": host("net1")},
				map[string]any{"name": "net1", "mac": "0a:58:0a:f4:00:05", "mtu": 1500.0, "sandbox": w.netns("c1")},
			},
			"ips":    []any{map[string]any{"interface": 1.0, "address": "10.244.1.5/32", "gateway": "169.254.1.1"}},
			"routes": []any{map[string]any{"dst": "0.0.0.0/0", "gw": "169.254.1.1"}},
		}
		var got map[string]any
		if err := json.Unmarshal(answer, &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		settle()
		w.wantLinks("c1/eth0", "c1/net1")
		w.wantRecords("c1")
		w.wantWrites(key, "Attached/c1")
		pa := w.api.get(key)
		s := pa.Status.Sandbox
		if s.BootID != "boot-1" || s.AttachedAt == nil || s.DetachedAt != nil {
			t.Errorf("sandbox %+v", s)
		}
		for _, c := range []string{v1alpha1.ConditionAttached, v1alpha1.ConditionReady} {
			if !meta.IsStatusConditionTrue(pa.Status.Conditions, c) {
				t.Errorf("condition %s is not true: %+v", c, pa.Status.Conditions)
			}
		}
		if w.api.reads != 0 {
			t.Errorf("%d reads of the API", w.api.reads)
		}
	})
}

func TestAddAgain(t *testing.T) {
	cases := []struct {
		name   string
		change func(w *testNode, r *cniproto.Request)
		code   int
		word   string
	}{
		{name: "the same request has the same answer", change: func(*testNode, *cniproto.Request) {}},
		{
			name: "another namespace", code: cniproto.CodeInvalidEnvironment, word: "CNI_NETNS",
			change: func(w *testNode, r *cniproto.Request) { r.Netns = w.netns("c2"); w.kernel.namespace(r.Netns) },
		},
		{
			name: "its address is gone meanwhile", code: answer.CodeDiffers, word: "10.244.1.5/32",
			change: func(w *testNode, _ *cniproto.Request) {
				w.kernel.change(func(links map[string]fakeLink) {
					l := links[plug.RoutedName("c1", "eth0")]
					l.plug.Addresses = nil
					links[plug.RoutedName("c1", "eth0")] = l
				})
			},
		},
		{
			name: "another interface name", code: cniproto.CodeInvalidEnvironment, word: "CNI_IFNAME",
			change: func(_ *testNode, r *cniproto.Request) { r.IfName = "eth9" },
		},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			onTestNode(t, func(w *testNode) {
				t := w.t
				key := w.pod("p", "u1")
				first, err := w.add("c1", "p", "u1")
				if err != nil {
					t.Fatal(err)
				}
				r := request(cniproto.VerbAdd, "c1", w.netns("c1"), "p", "u1")
				tc.change(w, &r)
				second, err := w.handle(r)
				nodetest.WantCode(t, err, tc.code)
				if tc.code != 0 && !strings.Contains(err.Error(), tc.word) {
					t.Errorf("the message does not say %q: %v", tc.word, err)
				}
				if tc.code == 0 && string(first) != string(second) {
					t.Errorf("first %s\nthen %s", first, second)
				}
				settle()
				w.wantLinks("c1/eth0")
				w.wantWrites(key, "Attached/c1")
			})
		})
	}
}

func TestAddRefusesBadInputAndChangesNothing(t *testing.T) {
	cases := []struct {
		name   string
		change func(w *testNode, r *cniproto.Request)
		code   int
		words  []string
	}{
		{
			name: "a namespace path that is none", code: cniproto.CodeInvalidEnvironment, words: []string{"CNI_NETNS", "/no/such/netns"},
			change: func(_ *testNode, r *cniproto.Request) { r.Netns = "/no/such/netns" },
		},
		{
			name: "no pod in CNI_ARGS", code: cniproto.CodeInvalidEnvironment, words: []string{"CNI_ARGS", "K8S_POD_NAMESPACE and K8S_POD_NAME"},
			change: func(_ *testNode, r *cniproto.Request) { r.Args = "IgnoreUnknown=1" },
		},
		{
			name: "an interface without a binding", code: cniproto.CodeInvalidConfig, words: []string{"ns/p-u1", "eth0", "binding"},
			change: func(w *testNode, _ *cniproto.Request) {
				w.api.change(types.NamespacedName{Namespace: "ns", Name: "p-u1"}, func(pa *v1alpha1.PodAttachment) {
					pa.Spec.Interfaces[0].Binding = v1alpha1.Binding{}
				})
			},
		},
		{
			name: "no bridge", code: cniproto.CodeTryAgainLater, words: []string{"br9"},
			change: func(w *testNode, _ *cniproto.Request) {
				w.kernel.setHook(func(_ context.Context, step, _ string) error {
					if step == "attach" {
						return fmt.Errorf("%w: br9", link.ErrNoBridge)
					}
					return nil
				})
			},
		},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			onTestNode(t, func(w *testNode) {
				t := w.t
				key := w.pod("p", "u1")
				w.kernel.namespace(w.netns("c1"))
				r := request(cniproto.VerbAdd, "c1", w.netns("c1"), "p", "u1")
				tc.change(w, &r)
				_, err := w.handle(r)
				nodetest.WantCode(t, err, tc.code, tc.words...)
				settle()
				w.wantLinks()
				w.wantRecords()
				w.wantWrites(key)
			})
		})
	}
}

func TestAddVersions(t *testing.T) {
	for _, version := range cniproto.Versions {
		t.Run(version, func(t *testing.T) {
			onTestNode(t, func(w *testNode) {
				t := w.t
				w.pod("p", "u1")
				w.kernel.namespace(w.netns("c1"))
				r := request(cniproto.VerbAdd, "c1", w.netns("c1"), "p", "u1")
				r.Config = json.RawMessage(`{"cniVersion":"` + version + `"}`)
				answer, err := w.handle(r)
				if err != nil {
					t.Fatal(err)
				}
				var got struct {
					CNIVersion string
					Interfaces []map[string]any
					IPs        []map[string]any
				}
				if err := json.Unmarshal(answer, &got); err != nil {
					t.Fatal(err)
				}
				if got.CNIVersion != version || len(got.IPs) != 1 || got.IPs[0]["address"] != "10.244.1.5/32" || len(got.Interfaces) != 2 {
					t.Errorf("answer %s", answer)
				}
				// "version" left the addresses with 1.0.0, "mtu" came with 1.1.0.
				if _, old := got.IPs[0]["version"]; old != (version < "1.0.0") {
					t.Errorf("ips %v", got.IPs)
				}
				if _, mtu := got.Interfaces[1]["mtu"]; mtu != (version == "1.1.0") {
					t.Errorf("interfaces %v", got.Interfaces)
				}
			})
		})
	}
}

func TestAddWaitsForItsPodAttachment(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		start := time.Now()
		time.AfterFunc(300*time.Millisecond, func() { w.pod("p", "u1") })
		w.mustAdd("c1", "p", "u1")
		if waited := time.Since(start); waited > 400*time.Millisecond {
			t.Errorf("waited %s: the record was there after 300ms", waited)
		}
		if w.api.reads != 0 {
			t.Errorf("%d reads of the API", w.api.reads)
		}
	})
}

func TestAddOfAPodWithoutRecordAsksTheAPITwiceThenTriesLater(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		w.pod("p", "u1")
		w.api.remove(types.NamespacedName{Namespace: "ns", Name: "p-u1"})
		start := time.Now()
		_, err := w.add("c1", "p", "u1")
		nodetest.WantCode(t, err, cniproto.CodeTryAgainLater, "ns/p", `"u1"`, "node n1", "controller")
		if waited := time.Since(start); waited != 10*time.Second {
			t.Errorf("waited %s", waited)
		}
		if w.api.reads != 2 { // when the record is late, and at the end of the wait
			t.Errorf("%d reads of the API, want 2", w.api.reads)
		}
		w.wantRecords()
	})
}

// A pod goes after the API server was asked, or while it cannot be reached. ADD reports
// the pod as gone when the wait is over, since a retry by the runtime would be in vain.
func TestAddOfAPodThatGoesWhileItIsWaitedFor(t *testing.T) {
	gone := func(w *testNode) {
		w.api.mu.Lock()
		defer w.api.mu.Unlock()
		clear(w.api.pods)
	}
	for _, tt := range []struct {
		name   string
		during func(w *testNode)
	}{
		{"asked before", func(w *testNode) { time.AfterFunc(5*time.Second, func() { gone(w) }) }},
		{"the API server was away", func(w *testNode) {
			gone(w)
			w.api.setDown(errors.New("connection refused"))
			time.AfterFunc(5*time.Second, func() { w.api.setDown(nil) })
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onTestNode(t, func(w *testNode) {
				w.pod("p", "u1")
				w.api.remove(types.NamespacedName{Namespace: "ns", Name: "p-u1"})
				tt.during(w)
				_, err := w.add("c1", "p", "u1")
				nodetest.WantCode(t, err, cniproto.CodeUnknownContainer, "pod ns/p is gone")
				w.wantRecords()
			})
		})
	}
}

// An API server that does not answer during the whole wait is no proof that the pod is
// gone.
func TestAddWhileTheAPIServerIsAway(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		w.api.setHook(func(ctx context.Context, step, _ string) error {
			if step == "pod" {
				<-ctx.Done()
			}
			return ctx.Err()
		})
		start := time.Now()
		_, err := w.add("c1", "p", "u1")
		nodetest.WantCode(w.t, err, cniproto.CodeTryAgainLater, "controller")
		if waited := time.Since(start); waited != 10*time.Second+wait.LastConfirmTimeout {
			w.t.Errorf("waited %s", waited)
		}
	})
}

func TestAddOfAPodThatIsGone(t *testing.T) {
	cases := []struct {
		name  string
		setup func(w *testNode)
		after time.Duration
		words []string
	}{
		{name: "never heard of", setup: func(*testNode) {}, after: time.Second, words: []string{"pod ns/p is gone"}},
		{
			// Kuryr's bug 1854928: the record of an earlier pod of the same name was
			// plugged into the new pod.
			name: "another pod has its name", after: time.Second,
			setup: func(w *testNode) { w.pod("p", "u2") }, words: []string{"u1", "u2"},
		},
		{
			name: "its record is being deleted, the pod is gone",
			setup: func(w *testNode) {
				w.deleteAttachment(w.pod("p", "u1"))
				w.api.mu.Lock()
				clear(w.api.pods)
				w.api.mu.Unlock()
			},
			words: []string{"gone"},
		},
		{
			name: "its record is being deleted, the pod too",
			setup: func(w *testNode) {
				w.deleteAttachment(w.pod("p", "u1"))
				w.api.mu.Lock()
				now := w.api.attachments[types.NamespacedName{Namespace: "ns", Name: "p-u1"}].DeletionTimestamp
				w.api.pods[types.NamespacedName{Namespace: "ns", Name: "p"}].DeletionTimestamp = now
				w.api.mu.Unlock()
			},
			words: []string{"being deleted"},
		},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			onTestNode(t, func(w *testNode) {
				t := w.t
				tc.setup(w)
				start := time.Now()
				_, err := w.add("c1", "p", "u1")
				nodetest.WantCode(t, err, cniproto.CodeUnknownContainer, tc.words...)
				if waited := time.Since(start); waited != tc.after {
					t.Errorf("waited %s, want %s", waited, tc.after)
				}
				w.wantLinks()
				w.wantRecords()
			})
		})
	}
}

func TestAddWhileTheAPIIsAway(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		w.api.setDown(errors.New("connection refused"))
		_, err := w.add("c1", "p", "u1")
		nodetest.WantCode(t, err, cniproto.CodeTryAgainLater)
		w.pod("q", "u2")
		w.mustAdd("c2", "q", "u2") // the record is here, so the API server is not needed
		w.wantLinks("c2/eth0")
	})
}

func TestStaticPodIsKnownByItsMirror(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		w.pod("p", "hash")
		w.api.mu.Lock()
		pod := w.api.pods[types.NamespacedName{Namespace: "ns", Name: "p"}]
		pod.UID, pod.Annotations = "mirror", map[string]string{corev1.MirrorPodAnnotationKey: "hash"}
		w.api.mu.Unlock()
		key := types.NamespacedName{Namespace: "ns", Name: "p-hash"}
		pa := w.api.get(key)
		w.api.remove(key)
		time.AfterFunc(2*time.Second, func() { w.api.put(pa) }) // after the API was asked
		w.mustAdd("c1", "p", "hash")
		if w.api.reads != 1 {
			t.Errorf("%d reads", w.api.reads)
		}
	})
}

// A failure at any step of ADD leaves nothing, on the host and in the API.
func TestAddIsAllOrNothing(t *testing.T) {
	for _, step := range []string{"attach eth0", "attached eth0", "attach net1", "attached net1"} {
		t.Run(step, func(t *testing.T) {
			onTestNode(t, func(w *testNode) {
				t := w.t
				key := w.pod("p", "u1", "eth0", "net1")
				w.kernel.setHook(func(_ context.Context, s, what string) error {
					if s+" "+what == step {
						return errors.New("no buffer space")
					}
					return nil
				})
				_, err := w.add("c1", "p", "u1")
				nodetest.WantCode(t, err, cniproto.CodeInternal, "no buffer space")
				settle()
				w.wantLinks()
				w.wantRecords()
				w.wantWrites(key)
				w.kernel.setHook(nil)
				w.mustAdd("c1", "p", "u1") // the sandbox is not dead: no DEL came
				w.wantLinks("c1/eth0", "c1/net1")
			})
		})
	}
}

// An undo that fails is retried in the background until it is done.
func TestUndoGoesOn(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		w.pod("p", "u1", "eth0", "net1")
		fails := 3
		w.kernel.setHook(func(_ context.Context, s, what string) error {
			switch {
			case s == "attach" && what == "net1":
				return errors.New("no buffer space")
			case s == "detach" && fails > 0:
				fails--
				return errors.New("device busy")
			}
			return nil
		})
		_, err := w.add("c1", "p", "u1")
		nodetest.WantCode(t, err, cniproto.CodeInternal, "no buffer space")
		w.wantRecords("c1")
		_, err = w.add("c1", "p", "u1")
		nodetest.WantCode(t, err, cniproto.CodeUnknownContainer, "c1")
		w.kernel.setHook(nil)
		time.Sleep(time.Minute) //nolint:forbidigo // the bubble's clock
		settle()
		w.wantLinks()
		w.wantRecords()
	})
}
