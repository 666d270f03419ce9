package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/test/nodetest"
)

func TestDelAnswersFirstAndAcknowledgesWhenTheLinksAreGone(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		key := w.pod("p", "u1", "eth0", "net1")
		w.mustAdd("c1", "p", "u1")
		wait := make(chan struct{})
		w.kernel.setHook(func(_ context.Context, s, _ string) error {
			if s == "detach" {
				<-wait // the kernel takes its time
			}
			return nil
		})
		w.mustDel("c1")
		// A second DEL changes nothing. It waits for the removal if that has begun.
		second := make(chan error, 1)
		go func() { second <- w.del("c1") }()
		settle()
		w.wantLinks("c1/eth0", "c1/net1")
		w.wantRecords("c1")
		w.wantWrites(key, "Attached/c1")
		close(wait)
		synctest.Wait() // no time passes
		if err := <-second; err != nil {
			t.Errorf("second DEL: %v", err)
		}
		w.wantLinks()
		w.wantRecords()
		w.wantWrites(key, "Attached/c1")
		gone := time.Now()
		time.Sleep(time.Second) //nolint:forbidigo // the bubble's clock
		w.deleteAttachment(key)
		settle()
		w.wantWrites(key, "Attached/c1", "Detached/c1")
		pa := w.api.get(key)
		if s := pa.Status.Sandbox; s.AttachedAt == nil || !s.DetachedAt.Time.Equal(gone.Truncate(time.Microsecond)) {
			t.Errorf("sandbox %+v, gone at %v", s, gone)
		}
		for _, c := range []string{v1alpha1.ConditionAttached, v1alpha1.ConditionReady} {
			if !meta.IsStatusConditionFalse(pa.Status.Conditions, c) {
				t.Errorf("condition %s is not false: %+v", c, pa.Status.Conditions)
			}
		}
		// Further events cause no write.
		w.api.change(key, func(pa *v1alpha1.PodAttachment) { pa.Labels = map[string]string{"a": "b"} })
		settle()
		w.wantWrites(key, "Attached/c1", "Detached/c1")
	})
}

func TestDelOfWhatIsUnknown(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		key := w.pod("p", "u1")
		w.mustAdd("c1", "p", "u1")
		// The runtime removes a sandbox of the same pod whose ADD failed after the next
		// sandbox came up. The DEL must not touch the next sandbox.
		w.mustDel("c0")
		r := request(cniproto.VerbDel, "c9", w.netns("c1"), "p", "u1")
		if _, err := w.handle(r); err != nil {
			t.Fatal(err)
		}
		settle()
		w.wantLinks("c1/eth0")
		w.wantRecords("c1")
		w.wantWrites(key, "Attached/c1")
	})
}

func TestDelNeedsNothing(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		key := w.pod("p", "u1")
		w.mustAdd("c1", "p", "u1")
		w.kernel.drop(w.netns("c1"))
		w.api.setDown(errors.New("connection refused"))
		w.api.remove(key)
		r := cniproto.Request{Verb: cniproto.VerbDel, ContainerID: "c1"}
		if _, err := w.handle(r); err != nil {
			t.Fatal(err)
		}
		settle()
		w.wantLinks()
		w.wantRecords()
	})
}

func TestDelRemovesWhatALostRecordLeft(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		w.kernel.change(func(links map[string]fakeLink) {
			links[plug.RoutedName("c1", "eth0")] = fakeLink{containerID: "c1", ifName: "eth0"}
		})
		w.mustDel("c1")
		w.wantLinks()
	})
}

func TestDelWithoutRoomForItsRecord(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		key := w.pod("p", "u1")
		w.mustAdd("c1", "p", "u1")
		// Files cannot be created in a missing directory.
		dir := filepath.Join(w.dir, ledger.RecordsDir)
		if err := os.Rename(dir, dir+".away"); err != nil {
			t.Fatal(err)
		}
		w.mustDel("c1")
		w.deleteAttachment(key)
		settle()
		w.wantLinks()
		w.wantWrites(key, "Attached/c1", "Detached/c1")
	})
}

func TestDelBeforeAdd(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		key := w.pod("p", "u1")
		w.mustDel("c1")
		_, err := w.add("c1", "p", "u1")
		nodetest.WantCode(t, err, cniproto.CodeUnknownContainer, "deleted")
		w.mustAdd("c2", "p", "u1") // the runtime's next try
		w.wantLinks("c2/eth0")
		w.wantWrites(key, "Attached/c2")
	})
}

// An attachment is a container with the interface of its ADD. A DEL of any other name
// changes nothing, for a further interface of the pod, for an unknown one, and for that
// of a second ADD, which was refused.
func TestDelOfAnotherInterface(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		key := w.pod("p", "u1", "eth0", "net1")
		w.mustAdd("c1", "p", "u1")
		second := request(cniproto.VerbAdd, "c1", w.netns("c1"), "p", "u1")
		second.IfName = "net1"
		_, err := w.handle(second)
		nodetest.WantCode(t, err, cniproto.CodeInvalidEnvironment, "net1", "eth0")
		for _, name := range []string{"net1", "net7", "other0"} {
			r := request(cniproto.VerbDel, "c1", w.netns("c1"), "p", "u1")
			r.IfName = name
			if _, err := w.handle(r); err != nil {
				t.Errorf("DEL of %s: %v", name, err)
			}
			settle()
			w.wantLinks("c1/eth0", "c1/net1")
			w.wantRecords("c1")
		}
		if _, err := w.handle(w.checkOf("1.1.0")); err != nil {
			t.Errorf("CHECK: %v", err)
		}
		// Another plugin can still get addresses.
		w.further(key, "net9")
		if _, err := w.ipam("ADD", "c1", "net9", "p", "u1", macvlan); err != nil {
			t.Errorf("addresses after a DEL of another interface: %v", err)
		}
		if _, err := w.ipam("DEL", "c1", "net8", "p", "u1", macvlan); err != nil {
			t.Error(err)
		}
		if files := w.addressFiles(); len(files) != 1 {
			t.Errorf("a DEL of net8 left %v of net9", files)
		}
		w.mustDel("c1")
		settle()
		w.wantLinks()
	})
}

// The DEL of another interface does not end a running ADD.
func TestDelOfAnotherInterfaceDuringAnAdd(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		added := make(chan error, 1)
		go func() {
			_, err := w.add("c1", "p", "u1")
			added <- err
		}()
		settle()
		deleted := make(chan error, 1)
		go func() {
			r := request(cniproto.VerbDel, "c1", "", "p", "u1")
			r.IfName = "net1"
			_, err := w.handle(r)
			deleted <- err
		}()
		settle()
		w.pod("p", "u1")
		if err := errors.Join(<-added, <-deleted); err != nil {
			w.t.Error(err)
		}
		w.wantLinks("c1/eth0")
	})
}

// The interface of a sandbox with a damaged record that was made first is that of its ADD.
func TestDelOfAnotherInterfaceAfterDamage(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		w.pod("p", "u1", "eth0", "net1")
		w.mustAdd("c1", "p", "u1")
		w.damageRecord()
		w.restart()
		r := request(cniproto.VerbDel, "c1", w.netns("c1"), "p", "u1")
		r.IfName = "net1"
		if _, err := w.handle(r); err != nil {
			t.Error(err)
		}
		settle()
		w.wantLinks("c1/eth0", "c1/net1")
		if err := w.del("c1"); err != nil {
			t.Error(err)
		}
		settle()
		w.wantLinks()
	})
}
