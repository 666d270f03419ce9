package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/internal/node/report"
	"fairlead.dev/fairlead/internal/node/wait"
	"fairlead.dev/fairlead/test/nodetest"
)

// waiting makes pod p, with UID u1, whose second interface has to become active.
func (w *testNode) waiting() types.NamespacedName {
	key := w.pod("p", "u1", "eth0", "net1")
	w.api.change(key, func(pa *v1alpha1.PodAttachment) { pa.Spec.Interfaces[1].WaitForActive = true })
	return key
}

// setStatus sets the status of an interface as the controller does.
func (w *testNode) setStatus(key types.NamespacedName, s v1alpha1.InterfaceStatus) {
	w.api.change(key, func(pa *v1alpha1.PodAttachment) { pa.Status.Interfaces = []v1alpha1.InterfaceStatus{s} })
}

// The interfaces are plugged before ADD waits for the driver: a port often becomes active
// only because it is plugged (kuryr 1.3, step 5).
func TestAddPlugsBeforeItWaitsForActive(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		key := w.waiting()
		time.AfterFunc(3*time.Second, func() {
			w.wantLinks("c1/eth0", "c1/net1")
			w.wantRecordFiles(ledger.TempPrefix + "c1") // not answered yet
			w.wantWrites(key)
			w.setStatus(key, v1alpha1.InterfaceStatus{Name: "net1", Active: true})
		})
		start := time.Now()
		if _, err := w.add("c1", "p", "u1"); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(start); waited != 3*time.Second {
			t.Errorf("waited %s, it was active after 3s", waited)
		}
		settle()
		w.wantLinks("c1/eth0", "c1/net1")
		w.wantWrites(key, "Attached/c1")
		if len(w.api.reports) != 0 {
			t.Errorf("events of what went well: %v", w.api.reports)
		}
	})
}

// The addresses of an interface are announced when it is active, not before: the network
// drops the announcement until then. Those of the others are not. The ADD succeeds without.
func TestAddAnnouncesActiveInterfaces(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		key := w.waiting()
		start := time.Now()
		var announced []string
		w.kernel.setHook(func(_ context.Context, step, what string) error {
			if step != "announce" {
				return nil
			}
			announced = append(announced, fmt.Sprintf("%s after %v", what, time.Since(start)))
			return errors.New("no buffer space")
		})
		time.AfterFunc(3*time.Second, func() { w.setStatus(key, v1alpha1.InterfaceStatus{Name: "net1", Active: true}) })
		if _, err := w.add("c1", "p", "u1"); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"net1 after 3s"}, announced); diff != "" {
			t.Errorf("announced (-want +got):\n%s", diff)
		}
	})
}

// The addresses of an interface that is plugged into a running pod are announced once, when it
// is active, also by the next daemon: its neighbors sent to the MAC of an earlier pod.
func TestHotPlugAnnouncesActiveInterfaces(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		t.Run(fmt.Sprintf("restarted %v", restarted), func(t *testing.T) {
			onTestNode(t, func(w *testNode) {
				key := w.pod("p", "u1", "eth0")
				w.mustAdd("c1", "p", "u1")
				further := nodetest.Attachment("p", "u1", "eth0", "net1", "net2").Spec.Interfaces[1:]
				further[0].WaitForActive = true
				w.api.change(key, func(pa *v1alpha1.PodAttachment) {
					pa.Generation++
					pa.Spec.Interfaces = append(pa.Spec.Interfaces, further...)
				})
				settle()
				w.wantLinks("c1/eth0", "c1/net1", "c1/net2")
				if restarted {
					w.restart()
				}
				var announced []string
				w.kernel.setHook(func(_ context.Context, step, what string) error {
					if step == "announce" {
						announced = append(announced, what)
					}
					return nil
				})
				w.setStatus(key, v1alpha1.InterfaceStatus{Name: "net1", Message: "not yet"})
				settle()
				if len(announced) > 0 {
					w.t.Errorf("announced %v before it is active", announced)
				}
				for _, message := range []string{"", "again"} {
					w.setStatus(key, v1alpha1.InterfaceStatus{Name: "net1", Active: true, Message: message})
					settle()
					if diff := cmp.Diff([]string{"net1"}, announced); diff != "" {
						w.t.Errorf("announced (-want +got):\n%s", diff)
					}
				}
			})
		})
	}
}

// The event contains the reason that the controller wrote, long before the ADD fails, and so
// does the error. Kuryr's CNITimedOutWaitingForActiveVIFs; OVN-Kubernetes#3859: "timed out
// waiting for annotations" did not contain it.
func TestAddGivesUpWaitingForActive(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		key := w.waiting()
		w.setStatus(key, v1alpha1.InterfaceStatus{Name: "net1", Message: "port 17 is DOWN: no agent on this host"})
		start := time.Now()
		time.AfterFunc(11*time.Second, func() {
			settle()
			w.wantLinks("c1/eth0", "c1/net1")
			w.wantEvents("10s", "port 17 is DOWN")
		})
		_, err := w.add("c1", "p", "u1")
		nodetest.WantCode(t, err, cniproto.CodeTryAgainLater, "ns/p", "net1", "p-u1", "active", "3m0s", "port 17 is DOWN")
		if waited := time.Since(start); waited != wait.ActiveTimeout {
			t.Errorf("waited %s", waited)
		}
		settle()
		w.wantLinks()
		w.wantRecords()
		w.wantWrites(key)
		w.wantEvents("10s", "port 17 is DOWN")              // no further one
		time.Sleep(report.ReportEvery - wait.ActiveTimeout) //nolint:forbidigo // the bubble's clock
		_, err = w.add("c2", "p", "u1")
		nodetest.WantCode(t, err, cniproto.CodeTryAgainLater)
		settle()
		if len(w.api.reports) != 2 {
			t.Errorf("%d events after %s, want 2", len(w.api.reports), report.ReportEvery)
		}
	})
}

// wantEvents checks that pod p has one event about an interface that is not active, with words.
func (w *testNode) wantEvents(words ...string) {
	w.t.Helper()
	if len(w.api.reports) != 1 {
		w.t.Errorf("%d events, want 1", len(w.api.reports))
		return
	}
	e := w.api.reports[0]
	if e.Reason != wait.ReasonNotActive || e.Type != "Warning" || e.Regarding.Name != "p" || e.Regarding.Namespace != "ns" || e.Namespace != "ns" ||
		e.Regarding.UID != "u1" || e.ReportingInstance != "n1" {
		w.t.Errorf("event %+v", e)
	}
	for _, word := range words {
		if !strings.Contains(e.Note, word) {
			w.t.Errorf("event %q lacks %q", e.Note, word)
		}
	}
}

// A port of Neutron that always took longer than addTimeout never had a pod: each ADD
// unplugged it, and the next one began anew. A GC does not wait for this ADD, and an ADD of
// another pod does not wait for it behind that GC.
func TestAddWaitsForSlowPorts(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		key := w.waiting()
		w.pod("q", "u2", "eth0")
		start := time.Now()
		time.AfterFunc(20*time.Second, func() {
			if _, err := w.handle(gcRequest(`,"cni.dev/valid-attachments":[]`)); err != nil {
				t.Errorf("GC: %v", err)
			}
			if _, err := w.add("c2", "q", "u2"); err != nil {
				t.Error(err)
			}
			if waited := time.Since(start); waited != 20*time.Second {
				t.Errorf("GC and an ADD of another pod waited until %s", waited)
			}
			w.wantLinks("c1/eth0", "c1/net1", "c2/eth0")
		})
		time.AfterFunc(2*time.Minute, func() { w.setStatus(key, v1alpha1.InterfaceStatus{Name: "net1", Active: true}) })
		if _, err := w.add("c1", "p", "u1"); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(start); waited != 2*time.Minute {
			t.Errorf("waited %s", waited)
		}
		settle()
		w.wantLinks("c1/eth0", "c1/net1", "c2/eth0")
		w.wantWrites(key, "Attached/c1")
	})
}

// A request whose plugin waits less is answered in time, as that of an earlier release: 90 s.
func TestAddLeavesTimeForItsAnswer(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		w.waiting()
		w.kernel.namespace(w.netns("c1"))
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		start := time.Now()
		_, err := w.daemon.Handle(ctx, request(cniproto.VerbAdd, "c1", w.netns("c1"), "p", "u1"))
		nodetest.WantCode(t, err, cniproto.CodeTryAgainLater, "net1", "1m20s")
		if waited := time.Since(start); waited != 80*time.Second {
			t.Errorf("waited %s", waited)
		}
		settle()
		w.wantLinks()
	})
}

// Several events end the wait for active interfaces; nothing is left afterwards.
func TestAddEndsWhileItWaitsForActive(t *testing.T) {
	cases := []struct {
		name  string
		end   func(w *testNode, key types.NamespacedName)
		code  int
		words []string
	}{
		{name: "DEL", code: cniproto.CodeUnknownContainer, words: []string{"deleted"}, end: func(w *testNode, _ types.NamespacedName) {
			if err := w.del("c1"); err != nil {
				w.t.Error(err)
			}
		}},
		{name: "the pod is gone", code: cniproto.CodeUnknownContainer, words: []string{"gone"}, end: func(w *testNode, key types.NamespacedName) {
			w.api.mu.Lock()
			clear(w.api.pods)
			w.api.mu.Unlock()
			w.deleteAttachment(key)
		}},
		{name: "the record is given back, the pod stays", code: cniproto.CodeTryAgainLater, words: []string{"p-u1", "deleted"}, end: func(w *testNode, key types.NamespacedName) {
			w.deleteAttachment(key)
		}},
		{name: "the record vanished", code: cniproto.CodeTryAgainLater, words: []string{"p-u1", "deleted"}, end: func(w *testNode, key types.NamespacedName) {
			w.api.remove(key)
		}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			onTestNode(t, func(w *testNode) {
				t := w.t
				key := w.waiting()
				time.AfterFunc(time.Second, func() { tc.end(w, key) })
				start := time.Now()
				_, err := w.add("c1", "p", "u1")
				nodetest.WantCode(t, err, tc.code, tc.words...)
				if waited := time.Since(start); waited != time.Second {
					t.Errorf("waited %s, want 1s", waited)
				}
				settle()
				w.wantLinks()
				w.wantRecords()
				w.wantLedgerEmpty()
				if len(w.api.reports) != 0 {
					t.Errorf("events: %v", w.api.reports)
				}
			})
		})
	}
}

// wantLedgerEmpty checks that the ledger holds no sandbox.
func (w *testNode) wantLedgerEmpty() {
	w.t.Helper()
	if records := w.network.ledger.All(); len(records) != 0 {
		w.t.Errorf("records %v", records)
	}
}

func TestRecordWithoutInterfacesWaits(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		key := w.pod("p", "u1")
		full := w.api.get(key).Spec.Interfaces
		w.api.change(key, func(pa *v1alpha1.PodAttachment) { pa.Spec.Interfaces = nil })
		_, err := w.add("c1", "p", "u1")
		nodetest.WantCode(t, err, cniproto.CodeTryAgainLater, "p-u1", "no interfaces")
		time.AfterFunc(time.Second, func() {
			w.api.change(key, func(pa *v1alpha1.PodAttachment) { pa.Spec.Interfaces = full })
		})
		w.mustAdd("c2", "p", "u1")
		w.wantLinks("c2/eth0")
	})
}

// The pod is deleted with its record while its ADD waits for something different. The API
// server is asked at once, not at the end of the wait.
func TestPodGoneDuringAdd(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		key := w.pod("p", "u1")
		w.api.change(key, func(pa *v1alpha1.PodAttachment) { pa.Spec.Interfaces = nil })
		time.AfterFunc(300*time.Millisecond, func() {
			w.api.mu.Lock()
			clear(w.api.pods)
			w.api.mu.Unlock()
			w.api.remove(key)
		})
		start := time.Now()
		_, err := w.add("c1", "p", "u1")
		nodetest.WantCode(t, err, cniproto.CodeUnknownContainer, "pod ns/p is gone")
		if waited := time.Since(start); waited != 300*time.Millisecond {
			t.Errorf("waited %s", waited)
		}
		w.wantLinks()
	})
}

// An event that cannot be written stops nothing: events only inform people.
func TestEventThatCannotBeWritten(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		w.waiting()
		w.api.setHook(func(_ context.Context, s, _ string) error {
			if s == "event" {
				return errors.New("forbidden")
			}
			return nil
		})
		_, err := w.add("c1", "p", "u1")
		nodetest.WantCode(t, err, cniproto.CodeTryAgainLater)
		settle()
		w.wantRecords()
	})
}
