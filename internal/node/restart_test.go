package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/node/background"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/internal/node/report"
	"fairlead.dev/fairlead/test/nodetest"
)

func TestRestartAdoptsWithoutTheAPI(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		key := w.pod("p", "u1", "eth0", "net1")
		first, err := w.add("c1", "p", "u1")
		if err != nil {
			t.Fatal(err)
		}
		settle()
		w.api.setDown(errors.New("connection refused"))
		w.restart()
		w.wantLinks("c1/eth0", "c1/net1")
		w.wantRecords("c1")
		second, err := w.add("c1", "p", "u1")
		if err != nil || string(first) != string(second) {
			t.Errorf("ADD again: %s, %v; want %s", second, err, first)
		}
		_, err = w.handle(w.checkOf("1.1.0"))
		nodetest.WantCode(t, err, 0)
		w.mustDel("c1")
		w.deleteAttachment(key)
		settle()
		w.wantLinks()
		w.wantRecords()
		w.api.setDown(nil)
		time.Sleep(report.RetryLast) //nolint:forbidigo // the bubble's clock
		settle()
		w.wantWrites(key, "Attached/c1", "Detached/c1")
	})
}

// The daemon is killed at each step of ADD. The next daemon undoes an unanswered ADD and
// keeps an answered one, and the pod is plugged in the end.
func TestKilledDuringAdd(t *testing.T) {
	cases := []struct {
		step   string
		kept   bool // ADD had answered, or its record was complete
		writes []string
	}{
		{step: "attach eth0", writes: []string{"Attached/c2"}},
		{step: "attached eth0", writes: []string{"Attached/c2"}},
		{step: "attach net1", writes: []string{"Attached/c2"}},
		{step: "attached net1", writes: []string{"Attached/c2"}},
		{step: "patch ns/p-u1", kept: true, writes: []string{"Attached/c1"}},
		{step: "patched ns/p-u1", kept: true, writes: []string{"Attached/c1"}},
	}
	for _, tc := range cases {
		t.Run(tc.step, func(t *testing.T) {
			onTestNode(t, func(w *testNode) {
				key := w.pod("p", "u1", "eth0", "net1")
				settle()
				w.killAt(tc.step)
				go func() { _, _ = w.add("c1", "p", "u1") }()
				settle()
				w.restart()
				if tc.kept {
					w.wantLinks("c1/eth0", "c1/net1")
					w.wantRecords("c1")
				} else {
					w.wantLinks()
					w.wantRecords()
					w.mustAdd("c2", "p", "u1")
					w.wantLinks("c2/eth0", "c2/net1")
				}
				w.wantWrites(key, tc.writes...)
			})
		})
	}
}

// The links of a killed ADD may belong to any PodAttachment. Until they are gone, no
// PodAttachment is reported as never plugged.
func TestKilledDuringAddHoldsTheNeverPlugged(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		key := w.pod("p", "u1")
		settle()
		w.killAt("attached eth0")
		go func() { _, _ = w.add("c1", "p", "u1") }()
		settle()
		w.deleteAttachment(key)
		w.stop()
		w.api.setHook(nil)
		w.kernel.setHook(func(_ context.Context, step, _ string) error {
			if step == "detach" {
				return errors.New("device or resource busy")
			}
			return nil
		})
		w.start()
		settle()
		w.wantLinks("c1/eth0")
		w.wantWrites(key)
		w.kernel.setHook(nil)
		time.Sleep(report.RetryLast) //nolint:forbidigo // the bubble's clock
		settle()
		w.wantLinks()
		w.wantWrites(key, "Detached/")
	})
}

// The daemon is killed at each step of DEL. The next daemon completes the DEL and reports
// it once.
func TestKilledDuringDel(t *testing.T) {
	host := func(ifName string) string { return plug.RoutedName("c1", ifName) }
	for _, step := range []string{
		"detach " + host("net1"), "detached " + host("net1"), "detach " + host("eth0"), "detached " + host("eth0"),
		"patch ns/p-u1", "patched ns/p-u1",
	} {
		t.Run(step, func(t *testing.T) {
			onTestNode(t, func(w *testNode) {
				key := w.pod("p", "u1", "eth0", "net1")
				w.mustAdd("c1", "p", "u1")
				w.deleteAttachment(key)
				w.killAt(step)
				w.mustDel("c1")
				settle()
				w.restart()
				w.wantLinks()
				w.wantRecords()
				w.wantWrites(key, "Attached/c1", "Detached/c1")
			})
		})
	}
}

// killAt ends the goroutine that reaches a step, as a kill of the daemon would, without
// an undo.
func (w *testNode) killAt(step string) {
	kill := func(_ context.Context, s, what string) error {
		if strings.TrimSpace(s+" "+what) == step {
			runtime.Goexit()
		}
		return nil
	}
	w.kernel.setHook(kill)
	w.api.setHook(kill)
}

func TestStartAfterReboot(t *testing.T) {
	for _, kept := range []bool{false, true} {
		name := "the records went with the boot"
		if kept {
			name = "the records did not"
		}
		t.Run(name, func(t *testing.T) {
			onTestNode(t, func(w *testNode) {
				t := w.t
				key := w.pod("p", "u1")
				w.mustAdd("c1", "p", "u1")
				w.stop()
				w.kernel.reboot()
				w.bootID = "boot-2"
				if !kept {
					w.wipe()
				}
				w.deleteAttachment(key)
				w.start()
				settle()
				w.wantRecords()
				w.wantWrites(key, "Attached/c1", "Detached/c1")
				if s := w.api.get(key).Status.Sandbox; s.BootID != "boot-2" {
					t.Errorf("sandbox %+v", s)
				}
			})
		})
	}
}

func TestSweep(t *testing.T) {
	cases := []struct {
		name  string
		spoil func(w *testNode)
		gone  bool
	}{
		{name: "a live sandbox stays", spoil: func(*testNode) {}},
		{name: "its namespace is gone", gone: true, spoil: func(w *testNode) { w.kernel.drop(w.netns("c1")) }},
		{
			name: "its path leads to another namespace", gone: true,
			spoil: func(w *testNode) { w.kernel.namespace(w.netns("c1")) },
		},
		{
			// The mounts of namespaces do not reach the daemon's container: every
			// sandbox of the node would look dead.
			name: "the directory of namespaces is not there",
			spoil: func(w *testNode) {
				rec := w.network.ledger.Get("c1")
				if err := w.network.ledger.Put(rec.With(func(r *ledger.Record) { r.Netns = "/run/no-such-dir/c1" })); err != nil {
					w.t.Fatal(err)
				}
			},
		},
		{
			name: "a link of ours belongs to no sandbox",
			spoil: func(w *testNode) {
				w.kernel.change(func(links map[string]fakeLink) {
					links["flstray"] = fakeLink{containerID: "c7", ifName: "eth0"}
					links["flnoalias"] = fakeLink{}
				})
			},
		},
	}
	for _, tc := range cases {
		for _, when := range []string{"every minute", "at start"} {
			t.Run(tc.name+", "+when, func(t *testing.T) {
				onTestNode(t, func(w *testNode) {
					key := w.pod("p", "u1")
					w.mustAdd("c1", "p", "u1")
					tc.spoil(w)
					if when == "at start" {
						w.restart()
					} else {
						time.Sleep(background.SweepInterval) //nolint:forbidigo // the bubble's clock
						settle()
					}
					if tc.gone {
						w.wantLinks()
						w.wantRecords()
						w.deleteAttachment(key)
						settle()
						w.wantWrites(key, "Attached/c1", "Detached/c1")
						return
					}
					w.wantLinks("c1/eth0")
					w.wantRecords("c1")
					w.wantWrites(key, "Attached/c1")
				})
			})
		}
	}
}

// A sweep leaves the links of a running ADD alone.
func TestSweepDuringAdd(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		w.pod("p", "u1", "eth0", "net1")
		w.kernel.setHook(func(ctx context.Context, s, what string) error {
			if s == "attach" && what == "net1" {
				if err := w.network.background.Sweep(ctx); err != nil {
					t.Error(err)
				}
			}
			return nil
		})
		w.mustAdd("c1", "p", "u1")
		w.wantLinks("c1/eth0", "c1/net1")
	})
}

// The pod was force-deleted and its namespace went without a DEL. Its addresses do not
// wait for the next sweep.
func TestDeletionOfThePodAttachmentSweeps(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		key := w.pod("p", "u1")
		w.mustAdd("c1", "p", "u1")
		w.kernel.drop(w.netns("c1"))
		w.deleteAttachment(key)
		settle()
		w.wantRecords()
		w.wantWrites(key, "Attached/c1", "Detached/c1")
	})
}

func TestDamagedRecord(t *testing.T) {
	cases := []struct{ name, text string }{
		{name: "empty", text: ""},
		{name: "cut off", text: `{"version":1,"containerID":"c1","sta`},
		{name: "another version", text: `{"version":99,"containerID":"c1","state":"attached"}`},
		{name: "another sandbox", text: `{"version":2,"containerID":"c2","adds":[{"state":"attached"}]}`},
		{name: "an unknown state", text: `{"version":2,"containerID":"c1","adds":[{"state":"sleeping"}]}`},
		{name: "another sandbox, version 1", text: `{"version":1,"containerID":"c2","state":"attached"}`},
		{name: "an unknown state, version 1", text: `{"version":1,"containerID":"c1","state":"sleeping"}`},
		{name: "no ADD", text: `{"version":2,"containerID":"c1"}`},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			onTestNode(t, func(w *testNode) {
				t := w.t
				key := w.pod("p", "u1", "eth0", "net1")
				w.mustAdd("c1", "p", "u1")
				path := filepath.Join(w.dir, ledger.RecordsDir, "c1.json")
				if err := os.WriteFile(path, []byte(tc.text), 0o600); err != nil {
					t.Fatal(err)
				}
				w.restart()
				// The pod lives on.
				w.wantLinks("c1/eth0", "c1/net1")
				w.wantWrites(key, "Attached/c1")
				w.deleteAttachment(key)
				w.mustDel("c1")
				settle()
				w.wantLinks()
				w.wantWrites(key, "Attached/c1", "Detached/c1")
				if _, err := os.Stat(path + ledger.DamagedSuffix); err != nil {
					t.Errorf("the damaged record was not kept for a look: %v", err)
				}
			})
		})
	}
}

// A damaged record may belong to a PodAttachment whose status was not written yet. Such a
// PodAttachment is not reported as never plugged.
func TestDamagedRecordHoldsTheNeverPlugged(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		key := w.pod("p", "u1")
		w.api.setHook(func(context.Context, string, string) error { return errors.New("connection refused") })
		w.mustAdd("c1", "p", "u1")
		if err := os.WriteFile(filepath.Join(w.dir, ledger.RecordsDir, "c1.json"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		w.restart()
		w.deleteAttachment(key)
		settle()
		w.wantWrites(key)
		w.kernel.drop(w.netns("c1"))
		time.Sleep(2 * background.SweepInterval) //nolint:forbidigo // the bubble's clock
		settle()
		w.wantWrites(key, "Detached/")
	})
}

// The sandbox of a damaged record goes with its namespace, without a DEL.
func TestDamagedRecordIsSwept(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		w.pod("p", "u1")
		w.mustAdd("c1", "p", "u1")
		w.stop()
		if err := os.WriteFile(filepath.Join(w.dir, ledger.RecordsDir, "c1.json"), nil, 0o600); err != nil {
			w.t.Fatal(err)
		}
		w.start()
		<-time.After(2 * background.SweepInterval)
		settle()
		if rec := w.network.ledger.Get("c1"); rec == nil || !rec.Damaged {
			w.t.Errorf("the sandbox lives, and its record is %+v", rec)
		}
		w.wantLinks("c1/eth0")
		w.kernel.drop(w.netns("c1"))
		<-time.After(2 * background.SweepInterval)
		settle()
		w.wantLedgerEmpty()
		w.wantRecordFiles("c1.json.bad")
	})
}

func TestHalfWrittenRecordIsRemoved(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		if err := os.WriteFile(filepath.Join(w.dir, ledger.RecordsDir, ".new-123"), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		w.restart()
		w.wantRecords()
	})
}

// The PodAttachment was deleted and removed while the daemon was away.
func TestRestartWhenThePodAttachmentIsGone(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		key := w.pod("p", "u1")
		w.mustAdd("c1", "p", "u1")
		w.stop()
		w.api.mute()
		w.api.remove(key)
		w.start()
		settle()
		w.wantLinks("c1/eth0")
		w.mustDel("c1")
		settle()
		w.wantLinks()
		w.wantRecords()
	})
}

// outlivesBoot makes a pod that was plugged as c1 in the earlier boot.
func (w *testNode) outlivesBoot() types.NamespacedName {
	w.t.Helper()
	key := w.pod("p", "u1")
	w.mustAdd("c1", "p", "u1")
	w.reboot("boot-2")
	settle()
	return key
}

// reboot removes every sandbox, and starts a daemon in a boot with this ID.
func (w *testNode) reboot(bootID string) {
	w.t.Helper()
	w.stop()
	w.kernel.reboot()
	w.bootID = bootID
	w.wipe()
	w.start()
}

// series returns the values of a metric.
func (w *testNode) series(name string) []*dto.Metric {
	w.t.Helper()
	families, err := w.metrics.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()
		}
	}
	return nil
}

// timed returns how often a step was measured.
func (w *testNode) timed(step string) uint64 {
	w.t.Helper()
	for _, m := range w.series("fairlead_node_step_duration_seconds") {
		if m.GetLabel()[0].GetValue() == step {
			return m.GetHistogram().GetSampleCount()
		}
	}
	return 0
}

// A node is cut off after it has plugged a pod again. Its old boot ID must not stand for
// the end of the new sandbox.
func TestPluggedAgainAfterReboot(t *testing.T) {
	t.Run("written first", func(t *testing.T) {
		onTestNode(t, func(w *testNode) {
			key := w.outlivesBoot()
			w.kernel.setHook(func(_ context.Context, step, _ string) error {
				if pa := w.api.get(key); step == "attach" && (pa.Status.Sandbox.BootID != "boot-2" ||
					meta.IsStatusConditionTrue(pa.Status.Conditions, v1alpha1.ConditionAttached)) {
					t.Errorf("while it is plugged the status is %+v", pa.Status)
				}
				return nil
			})
			w.mustAdd("c2", "p", "u1")
			w.wantWrites(key, "Attached/c1", "Attached/c2", "Attached/c2")
			if pa := w.api.get(key); !meta.IsStatusConditionTrue(pa.Status.Conditions, v1alpha1.ConditionAttached) {
				t.Errorf("status %+v", pa.Status)
			}
			if n := w.timed("mark_rebooted"); n != 1 {
				t.Errorf("the step is timed %d times", n)
			}
		})
	})
	t.Run("cannot be said", func(t *testing.T) {
		onTestNode(t, func(w *testNode) {
			key := w.outlivesBoot()
			w.api.setHook(func(_ context.Context, step, _ string) error {
				if step == "patch" {
					return errors.New("no route to host")
				}
				return nil
			})
			_, err := w.add("c2", "p", "u1")
			nodetest.WantCode(t, err, cniproto.CodeTryAgainLater, "ns/p", "before node n1 booted", "no route to host")
			w.wantLinks()
			w.wantRecords()
			w.api.setHook(nil)
			w.mustAdd("c3", "p", "u1")
			w.wantWrites(key, "Attached/c1", "Attached/c3", "Attached/c3")
		})
	})
	t.Run("another program writes", func(t *testing.T) {
		onTestNode(t, func(w *testNode) {
			key := w.outlivesBoot()
			wrote := false
			w.api.setHook(func(_ context.Context, step, _ string) error {
				if step == "patch" && !wrote {
					wrote = true
					w.api.change(key, func(pa *v1alpha1.PodAttachment) { pa.Labels = map[string]string{"a": "b"} })
				}
				return nil
			})
			w.mustAdd("c2", "p", "u1")
			w.wantLinks("c2/eth0")
			w.wantWrites(key, "Attached/c1", "Attached/c2", "Attached/c2")
		})
	})
	t.Run("it is being deleted meanwhile", func(t *testing.T) {
		onTestNode(t, func(w *testNode) {
			key := w.outlivesBoot()
			w.api.setHook(func(_ context.Context, step, _ string) error {
				if step == "patch" && w.api.get(key).DeletionTimestamp == nil {
					w.deleteAttachment(key)
				}
				return nil
			})
			_, err := w.add("c2", "p", "u1")
			nodetest.WantCode(t, err, cniproto.CodeTryAgainLater, "being deleted")
			settle()
			w.wantLinks()
			w.wantWrites(key, "Attached/c1", "Detached/c1")
		})
	})
}
