package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/node/answer"
	"fairlead.dev/fairlead/internal/node/background"
	"fairlead.dev/fairlead/test/nodetest"
)

// damaged gives a pod an address in sandbox c1, damages its record and restarts the
// daemon. It returns the pod's PodAttachment, whose status names the sandbox if written
// is true.
func (w *testNode) damaged(written bool) types.NamespacedName {
	w.t.Helper()
	key := w.pod("web", "uid-1")
	w.further(key, "net1")
	if !written {
		w.api.setHook(func(context.Context, string, string) error { return errors.New("connection refused") })
	}
	if _, err := w.ipam("ADD", "c1", "net1", "web", "uid-1", macvlan); err != nil {
		w.t.Fatal(err)
	}
	settle()
	w.stop()
	w.api.setHook(nil)
	w.damageRecord()
	w.start()
	return key
}

// While a record cannot be read, the node reports no PodAttachment as never plugged, also
// not after the DEL, until no namespace has the addresses.
func TestDamagedAddressRecord(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		key := w.damaged(true)
		settle()
		w.restart() // it is still remembered
		w.deleteAttachment(key)
		settle()
		if got := w.state(key); got != v1alpha1.SandboxAttached {
			t.Errorf("it is %q although that is unknown", got)
		}
		if _, err := w.ipam("DEL", "c1", "net1", "", "", macvlan); err != nil {
			t.Fatal(err)
		}
		settle()
		if got := w.state(key); got != v1alpha1.SandboxAttached {
			t.Errorf("after the DEL it is %q, and its namespace may live", got)
		}
		w.kernel.holds(func(context.Context, []netip.Addr) (string, error) { return "", nil })
		w.pass(2 * background.SweepInterval)
		if got := w.state(key); got != v1alpha1.SandboxDetached {
			t.Errorf("after the end of its namespace it is %q", got)
		}
		if files := w.addressFiles(); len(files) > 0 {
			t.Errorf("records left: %v", files)
		}
	})
}

// The DEL of a damaged record never comes (multus#323). The record holds its possible
// addresses until the sweep finds that no namespace has one; a hidden namespace is no
// proof. If no status names the sandbox, it may be of any pod that has none.
func TestDamagedAddressRecordWithoutADel(t *testing.T) {
	for _, written := range []bool{true, false} {
		t.Run(fmt.Sprintf("the status names the sandbox: %v", written), func(t *testing.T) {
			onTestNode(t, func(w *testNode) { w.damagedWithoutADel(written) })
		})
	}
}

func (w *testNode) damagedWithoutADel(written bool) {
	t := w.t
	other := w.pod("other", "uid-2") // never plugged
	w.further(other, "net1")
	key := w.damaged(written)
	type answer struct {
		path string
		err  error
	}
	var holding atomic.Pointer[answer]
	var asked atomic.Pointer[[]netip.Addr]
	w.kernel.holds(func(_ context.Context, addrs []netip.Addr) (string, error) {
		asked.Store(&addrs)
		a := holding.Load()
		return a.path, a.err
	})
	w.deleteAttachment(key)
	w.deleteAttachment(other)
	wantKey, wantOther := v1alpha1.SandboxState(""), v1alpha1.SandboxState("")
	// Both pods have the same two addresses in this test. The sweep looks for the
	// addresses of each pod that the record may belong to.
	want := []netip.Addr{netip.MustParseAddr("10.9.0.5"), netip.MustParseAddr("10.9.0.5"), netip.MustParseAddr("fd09::5"), netip.MustParseAddr("fd09::5")}
	if written {
		wantKey, wantOther = v1alpha1.SandboxAttached, v1alpha1.SandboxDetached
		want = []netip.Addr{want[0], want[2]}
	}
	for _, a := range []answer{{path: "/run/netns/c1"}, {err: errors.New("mount is hidden")}} {
		holding.Store(&a)
		<-time.After(2 * background.SweepInterval)
		settle()
		if w.state(other) != wantOther || w.state(key) != wantKey || len(w.addressFiles()) != 1 {
			t.Errorf("%+v: they are %q and %q, with %v", a, w.state(key), w.state(other), w.addressFiles())
		}
	}
	holding.Store(&answer{})
	<-time.After(2 * background.SweepInterval)
	settle()
	if got := w.state(other); got != v1alpha1.SandboxDetached || w.state(key) != v1alpha1.SandboxDetached {
		t.Errorf("without any namespace it is %q and %q", w.state(key), got)
	}
	if files := w.addressFiles(); len(files) > 0 {
		t.Errorf("records left: %v", files)
	}
	got := slices.SortedFunc(slices.Values(*asked.Load()), netip.Addr.Compare)
	if diff := cmp.Diff(want, got, nodetest.SameAddresses); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// A sandbox with a damaged record gets no further interface: it may have it already.
func TestDamagedRecordTakesNoFurtherInterface(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		w.damaged(true)
		w.further(types.NamespacedName{Namespace: "ns", Name: "web-uid-1"}, "net2")
		_, err := w.ipam("ADD", "c1", "net2", "web", "uid-1", macvlan)
		nodetest.WantCode(t, err, answer.CodeDiffers, "was damaged", "replace the pod")
		if diff := cmp.Diff([]string{"c1 is damaged"}, w.addressFiles()); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	})
}

// A successor of a sandbox with a damaged record waits until it is gone: it has the same
// addresses.
func TestSuccessorOfADamagedSandbox(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		key := w.pod("p", "u1")
		w.mustAdd("c1", "p", "u1")
		w.damageRecord()
		w.restart()
		_, err := w.add("c2", "p", "u1")
		nodetest.WantCode(t, err, cniproto.CodeTryAgainLater, "sandbox c1")
		w.kernel.drop(w.netns("c1"))
		w.mustAdd("c2", "p", "u1")
		w.wantLinks("c2/eth0")
		w.wantWrites(key, "Attached/c1", "Attached/c2")
	})
}
