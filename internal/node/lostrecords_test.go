package node

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/node/background"
	"fairlead.dev/fairlead/internal/node/ledger"
)

// loseRecords stops the daemon and removes the directory of records.
func (w *testNode) loseRecords() {
	w.t.Helper()
	w.stop()
	if err := os.RemoveAll(filepath.Join(w.dir, ledger.RecordsDir)); err != nil {
		w.t.Fatal(err)
	}
}

// The daemon is killed while it takes over a node whose directory of records was lost. The next
// daemon still knows that records were lost, and keeps the links of the living pod.
func TestKilledWhileRecordsAreLost(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		w.pod("web", "uid-1")
		w.mustAdd("c1", "web", "uid-1")
		w.loseRecords()
		w.kernel.setHook(func(_ context.Context, s, _ string) error {
			if s == "links" {
				return errors.New("killed")
			}
			return nil
		})
		if w.tryStart() == nil {
			t.Fatal("it started")
		}
		w.kernel.setHook(nil)
		draft := filepath.Join(w.dir, ".new-attachments") // that of a daemon killed later
		if err := os.MkdirAll(filepath.Join(draft, "c2"+ledger.RecordSuffix), 0o700); err != nil {
			t.Fatal(err)
		}
		w.start()
		settle()
		w.wantLinks("c1/eth0")
		w.wantRecords("c1")
		if _, err := os.Stat(draft); err == nil {
			t.Error("the draft is left")
		}
	})
}

// The directory of records was lost while a pod ran that has no link on the host. It is not
// acknowledged as Detached before no namespace has its addresses, also after a restart.
func TestLostRecordsWithoutLinks(t *testing.T) {
	for name, written := range map[string]bool{"the status names the sandbox": true, "no status names it": false} {
		t.Run(name, func(t *testing.T) {
			onTestNode(t, func(w *testNode) { w.lostWithoutLinks(written) })
		})
	}
}

// loseUnlinked loses the record of a sandbox without a link on the host, while the daemon is away. The
// status of its PodAttachment names the sandbox if written.
func (w *testNode) loseUnlinked(written bool) types.NamespacedName {
	key := w.pod("web", "uid-1")
	w.further(key, "net1")
	if !written {
		w.api.setHook(func(context.Context, string, string) error { return errors.New("connection refused") })
	}
	if _, err := w.ipam("ADD", "c1", "net1", "web", "uid-1", macvlan); err != nil {
		w.t.Fatal(err)
	}
	settle()
	w.loseRecords()
	w.api.setHook(nil)
	return key
}

func (w *testNode) lostWithoutLinks(written bool) {
	t := w.t
	other := w.pod("other", "uid-2") // never plugged, with a link on the host
	key := w.loseUnlinked(written)
	alive := func(context.Context, []netip.Addr) (string, error) { return "/run/netns/c1", nil }
	was := w.state(key)
	for range 2 {
		w.start()
		w.kernel.holds(alive)
		settle()
		w.deleteAttachment(key)
		w.deleteAttachment(other)
		w.pass(2 * background.SweepInterval)
		if got := w.state(key); got != was {
			t.Errorf("it is %q while its namespace has the addresses", got)
		}
		if got := w.state(other); got != v1alpha1.SandboxDetached {
			t.Errorf("another pod is %q", got)
		}
		w.stop()
	}
	w.start()
	w.kernel.holds(func(context.Context, []netip.Addr) (string, error) { return "", nil })
	w.pass(2 * background.SweepInterval)
	if got := w.state(key); got != v1alpha1.SandboxDetached {
		t.Errorf("after the end of its namespace it is %q", got)
	}
	w.wantRecords()
}

// A pod that executed plugins plugged has lost its record, and its DEL came while no daemon knew
// the PodAttachments. It is released; without the DEL it is not.
func TestLostRecordOfADelegate(t *testing.T) {
	for name, del := range map[string]bool{"after its DEL": true, "without a DEL": false} {
		t.Run(name, func(t *testing.T) {
			onTestNode(t, func(w *testNode) {
				key := w.delegatePod("boot-1")
				gone := w.delegatePod("boot-0") // of an earlier boot
				w.loseRecords()
				if del {
					if err := cniproto.SpoolDel(filepath.Join(w.dir, cniproto.SpoolDir), cniproto.Request{Verb: cniproto.VerbDel, ContainerID: "c-boot-1", IfName: "eth0"}); err != nil {
						t.Fatal(err)
					}
				}
				w.start()
				w.kernel.holds(func(context.Context, []netip.Addr) (string, error) { return "", nil })
				settle()
				w.deleteAttachment(key)
				w.deleteAttachment(gone)
				w.pass(2 * background.SweepInterval)
				if got := w.state(key); (got == v1alpha1.SandboxDetached) != del {
					t.Errorf("it is %q", got)
				}
				if got := w.state(gone); got != v1alpha1.SandboxDetached {
					t.Errorf("that of an earlier boot is %q", got)
				}
			})
		})
	}
}

// delegatePod makes a pod whose only interface plugins made in a boot.
func (w *testNode) delegatePod(boot string) types.NamespacedName {
	key := w.pod("p-"+boot, "u-"+boot)
	w.api.change(key, func(pa *v1alpha1.PodAttachment) {
		pa.Spec.Interfaces = []v1alpha1.Interface{{Name: "eth0", Default: true, Network: "ns/blue", Binding: v1alpha1.Binding{Delegate: &v1alpha1.PluginList{Name: "blue", CNIVersion: "1.0.0"}}}}
		pa.Status.Sandbox = &v1alpha1.Sandbox{ID: "c-" + boot, BootID: boot, State: v1alpha1.SandboxAttached}
	})
	return key
}

// The directory of records was lost, and then the definition of PodAttachments: the controller
// writes the PodAttachment of a running pod again. The node says in it that the pod is attached, and
// not that it is detached before its DEL.
func TestLostRecordsAndPodAttachments(t *testing.T) {
	for name, linked := range map[string]bool{"a link on the host": true, "no link on the host": false} {
		t.Run(name, func(t *testing.T) { onTestNode(t, func(w *testNode) { w.lostBoth(linked) }) })
	}
}

func (w *testNode) lostBoth(linked bool) {
	t := w.t
	key := w.pod("web", "uid-1")
	if linked {
		w.mustAdd("c1", "web", "uid-1")
	} else {
		w.further(key, "net1")
		if _, err := w.ipam("ADD", "c1", "net1", "web", "uid-1", macvlan); err != nil {
			t.Fatal(err)
		}
		settle()
	}
	w.wantWrites(key, "Attached/c1")
	w.loseRecords()
	w.start()
	w.kernel.holds(func(context.Context, []netip.Addr) (string, error) { return "/run/netns/c1", nil })
	settle()
	w.writeAgain(key, 2*background.SweepInterval)
	settle()
	w.pass(2 * background.SweepInterval)
	got := w.api.get(key)
	if s := got.Status.Sandbox; s == nil || s.State != v1alpha1.SandboxAttached || s.ID != "c1" {
		t.Errorf("the sandbox is %+v; want c1, Attached", s)
	}
	if c := meta.FindStatusCondition(got.Status.Conditions, v1alpha1.ConditionReady); c == nil || c.Status != metav1.ConditionTrue {
		t.Errorf("Ready is %+v", c)
	}
	w.deleteAttachment(key)
	w.pass(2 * background.SweepInterval)
	if got := w.state(key); got != v1alpha1.SandboxAttached {
		t.Errorf("before the DEL it is %q", got)
	}
	w.mustDel("c1")
	w.kernel.holds(func(context.Context, []netip.Addr) (string, error) { return "", nil })
	w.pass(2 * background.SweepInterval)
	if got := w.state(key); got != v1alpha1.SandboxDetached {
		t.Errorf("after the DEL it is %q", got)
	}
}
