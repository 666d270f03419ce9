package node

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/test/nodetest"
)

// whereabouts#176, #182, ipam.md 1.8: a pod's next sandbox has the same addresses, and a
// late DEL of the earlier sandbox does not take them.
func TestAddressesOfTheNextSandbox(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		key := w.pod("web", "uid-1")
		w.further(key, "net1")
		if _, err := w.ipam("ADD", "c1", "net1", "web", "uid-1", macvlan); err != nil {
			t.Fatal(err)
		}
		_, err := w.ipam("ADD", "c2", "net1", "web", "uid-1", macvlan)
		nodetest.WantCode(t, err, cniproto.CodeTryAgainLater, "c1")
		w.kernel.drop(w.netns("c1"))
		if _, err := w.ipam("ADD", "c2", "net1", "web", "uid-1", macvlan); err != nil {
			t.Fatal(err)
		}
		if _, err := w.ipam("DEL", "c1", "net1", "", "", macvlan); err != nil {
			t.Fatal(err)
		}
		w.deleteAttachment(key)
		settle()
		if got := w.state(key); got != v1alpha1.SandboxAttached {
			t.Errorf("the late DEL made it %s", got)
		}
	})
}

// whereabouts#483, #553: a DEL that came while no daemon ran is replayed, and does not
// touch the pod's own interface.
func TestSpooledDelOfAddresses(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		key := w.pod("web", "uid-1")
		w.further(key, "net1")
		w.mustAdd("c1", "web", "uid-1")
		if _, err := w.ipam("ADD", "c1", "net1", "web", "uid-1", macvlan); err != nil {
			t.Fatal(err)
		}
		w.stop()
		r := request("DEL", "c1", "", "", "")
		r.IPAM, r.IfName = "whereabouts", "net1"
		if err := cniproto.SpoolDel(filepath.Join(w.dir, cniproto.SpoolDir), r); err != nil {
			t.Fatal(err)
		}
		w.start()
		settle()
		if files := w.addressFiles(); len(files) > 0 {
			t.Errorf("records left: %v", files)
		}
		w.wantLinks("c1/eth0")
	})
}

// A DEL ends an ADD of the same interface that waits for a PodAttachment, and does not
// wait for it. Nor does it wait for a second ADD that came meanwhile, as from the orphan
// of a killed plugin. Later the interface may be plugged again.
func TestDelEndsTheAddOfAddresses(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		w.kernel.namespace(w.netns("c1"))
		added := make(chan error, 2)
		for range 2 {
			go func() {
				_, err := w.ipam("ADD", "c1", "net1", "web", "uid-1", macvlan)
				added <- err
			}()
			synctest.Wait()
		}
		start := time.Now()
		if _, err := w.ipam("DEL", "c1", "net1", "", "", macvlan); err != nil {
			t.Error(err)
		}
		if waited := time.Since(start); waited > 0 {
			t.Errorf("the DEL waited %s", waited)
		}
		for range 2 {
			nodetest.WantCode(t, <-added, cniproto.CodeUnknownContainer, "deleted")
		}
		w.further(w.pod("web", "uid-1"), "net1")
		if _, err := w.ipam("ADD", "c1", "net1", "web", "uid-1", macvlan); err != nil {
			t.Errorf("ADD after the DEL: %v", err)
		}
		// The sandbox's own DEL ends all its interfaces.
		w.mustAdd("c1", "web", "uid-1")
		w.mustDel("c1")
		_, err := w.ipam("ADD", "c1", "net2", "web", "uid-1", macvlan)
		nodetest.WantCode(t, err, cniproto.CodeUnknownContainer, "deleted")
	})
}

// whereabouts#176: the next sandbox waits for the addresses of the earlier one, and its
// DEL ends that wait.
func TestDelEndsTheWaitForAddresses(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		w.further(w.pod("web", "uid-1"), "net1")
		if _, err := w.ipam("ADD", "c1", "net1", "web", "uid-1", macvlan); err != nil {
			w.t.Fatal(err)
		}
		added := make(chan error, 1)
		go func() {
			_, err := w.ipam("ADD", "c2", "net1", "web", "uid-1", macvlan)
			added <- err
		}()
		synctest.Wait()
		if _, err := w.ipam("DEL", "c2", "net1", "", "", macvlan); err != nil {
			w.t.Error(err)
		}
		nodetest.WantCode(w.t, <-added, cniproto.CodeUnknownContainer, "c1")
	})
}

// CNI specification 1.1.0, "GC": it excludes ADD and DEL at the same time.
func TestGCOfAddressesIsAlone(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		key := w.pod("web", "uid-1")
		w.further(key, "net1")
		entered, leave := make(chan struct{}), make(chan struct{})
		w.kernel.setHook(func(_ context.Context, step, what string) error {
			if step == "enter" && what == w.netns("c1") {
				close(entered)
				<-leave
			}
			return nil
		})
		added, collected := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := w.ipam("ADD", "c1", "net1", "web", "uid-1", macvlan)
			added <- err
		}()
		<-entered
		go func() {
			_, err := w.ipam("GC", "", "", "", "", strings.TrimSuffix(macvlan, "}")+`,"cni.dev/valid-attachments":[]}`)
			collected <- err
		}()
		synctest.Wait()
		select {
		case err := <-collected:
			t.Fatalf("GC did not wait for an ADD: %v", err)
		default:
		}
		w.kernel.setHook(nil)
		close(leave)
		if err := errors.Join(<-added, <-collected); err != nil {
			t.Fatal(err)
		}
		// The ADD was answered after the runtime made its list.
		if files := w.addressFiles(); len(files) != 1 {
			t.Errorf("records %v", files)
		}
	})
}
