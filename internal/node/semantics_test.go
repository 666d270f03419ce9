package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/node/health"
	"fairlead.dev/fairlead/test/nodetest"
)

// kuryr 1.5, bug 1854928: the record of a deleted pod is still in memory when an ADD
// comes for a new pod of the same name. The daemon asks the API server once, never uses
// the stale record, and waits for the new one.
func TestStaleRecordIsWaitedOut(t *testing.T) {
	for _, uid := range []string{"u2", ""} {
		t.Run("UID in CNI_ARGS: "+uid, func(t *testing.T) {
			onTestNode(t, func(w *testNode) {
				t := w.t
				stale := w.pod("web-0", "u1")
				unmute := w.api.mute()
				w.api.remove(stale) // the watch does not report it
				unmute()
				w.api.mu.Lock()
				w.api.pods[types.NamespacedName{Namespace: "ns", Name: "web-0"}] = &metav1.PartialObjectMetadata{
					ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-0", UID: "u2"},
				}
				w.api.mu.Unlock()
				_, err := w.add("c0", "web-0", uid)
				nodetest.WantCode(t, err, cniproto.CodeTryAgainLater, "u2", "earlier pod", "web-0-u1", "u1")
				before := w.api.reads
				time.AfterFunc(3*time.Second, func() { w.pod("web-0", "u2") })
				w.mustAdd("c1", "web-0", uid)
				w.wantLinks("c1/eth0")
				w.wantWrites(types.NamespacedName{Namespace: "ns", Name: "web-0-u2"}, "Attached/c1")
				want := 1
				if uid == "" {
					want = 2 // for the UID, and whether the pod still exists
				}
				if got := w.api.reads - before; got != want {
					t.Errorf("%d reads of the API, want %d", got, want)
				}
			})
		})
	}
}

func TestAddWithoutUID(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		_, err := w.add("c1", "p", "")
		nodetest.WantCode(t, err, cniproto.CodeUnknownContainer, "pod ns/p is gone")
		w.pod("p", "hash")
		w.api.setDown(errors.New("connection refused"))
		_, err = w.add("c2", "p", "")
		nodetest.WantCode(t, err, cniproto.CodeTryAgainLater, "K8S_POD_UID", "connection refused")
		w.api.setDown(nil)
		w.api.mu.Lock()
		pod := w.api.pods[types.NamespacedName{Namespace: "ns", Name: "p"}]
		pod.UID, pod.Annotations = "mirror", map[string]string{corev1.MirrorPodAnnotationKey: "hash"}
		w.api.mu.Unlock()
		w.mustAdd("c3", "p", "") // a static pod
		w.wantLinks("c3/eth0")
	})
}

// kuryr 1.4: the DEL of an earlier sandbox of the pod must not unplug the live sandbox,
// and still removes the rest of its own.
func TestDelOfAnOlderSandboxCleansUpItsOwn(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		key := w.pod("p", "u1")
		w.mustAdd("c1", "p", "u1")
		w.kernel.change(func(links map[string]fakeLink) {
			links[plug.RoutedName("c0", "eth0")] = fakeLink{containerID: "c0", ifName: "eth0"}
		})
		r := request(cniproto.VerbDel, "c0", w.netns("c1"), "p", "u1")
		if _, err := w.handle(r); err != nil {
			t.Fatal(err)
		}
		settle()
		w.wantLinks("c1/eth0")
		w.wantRecords("c1")
		w.wantWrites(key, "Attached/c1")
	})
}

// kuryr 1.4: the entry of a pod is removed once, after the pod was unplugged and its
// record was deleted, in either order.
func TestRecordDeletedAndUnpluggedInEitherOrder(t *testing.T) {
	del := func(w *testNode, _ types.NamespacedName) {
		if err := w.del("c1"); err != nil {
			w.t.Error(err)
		}
	}
	leave := func(w *testNode, key types.NamespacedName) { w.deleteAttachment(key) }
	remove := func(w *testNode, key types.NamespacedName) { w.api.remove(key) }
	cases := []struct {
		name  string
		steps []func(*testNode, types.NamespacedName)
		want  []string
	}{
		{"deleted, unplugged, gone", []func(*testNode, types.NamespacedName){leave, del, remove}, []string{"Attached/c1", "Detached/c1"}},
		{"unplugged, deleted, gone", []func(*testNode, types.NamespacedName){del, leave, remove}, []string{"Attached/c1", "Detached/c1"}},
		{"gone by force, unplugged", []func(*testNode, types.NamespacedName){remove, del}, []string{"Attached/c1"}},
		{"unplugged, gone by force", []func(*testNode, types.NamespacedName){del, remove}, []string{"Attached/c1"}},
		{"deleted, gone by force, unplugged", []func(*testNode, types.NamespacedName){leave, remove, del, del}, []string{"Attached/c1"}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			onTestNode(t, func(w *testNode) {
				key := w.pod("p", "u1")
				w.mustAdd("c1", "p", "u1")
				for _, step := range tc.steps {
					step(w, key)
					settle()
				}
				w.wantLinks()
				w.wantRecords()
				w.wantWrites(key, tc.want...)
				w.wantLedgerEmpty()
				if ended, _ := w.network.ledger.LastEnd("pa-u1"); ended != "" || len(w.network.registry.Keys()) != 0 {
					w.t.Errorf("remembered: the end of sandbox %s, %v", ended, w.network.registry.Keys())
				}
			})
		})
	}
}

// The default interface has the name that the runtime asks for, whatever the record calls
// it.
func TestDefaultInterfaceTakesTheRuntimesName(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		w.pod("p", "u1", "eth0", "net1")
		w.kernel.namespace(w.netns("c1"))
		r := request(cniproto.VerbAdd, "c1", w.netns("c1"), "p", "u1")
		r.IfName = "ens3"
		answer, err := w.handle(r)
		if err != nil || !strings.Contains(string(answer), `"name":"ens3"`) || strings.Contains(string(answer), `"name":"eth0"`) {
			t.Fatalf("%s, %v", answer, err)
		}
		w.wantLinks("c1/ens3", "c1/net1")
		r.Verb = cniproto.VerbDel
		if _, err := w.handle(r); err != nil {
			t.Fatal(err)
		}
		settle()
		w.wantLinks()
	})
}

// claimPod makes a pod whose addresses are kept under a claim.
func (w *testNode) claimPod(name, uid, claim string) {
	key := w.pod(name, uid)
	w.api.change(key, func(pa *v1alpha1.PodAttachment) { pa.Spec.Interfaces[0].Claim = claim })
}

// A successor with kept addresses has a record of its own, while the links of its
// predecessor may still exist. It waits until they are gone; a pod without a claim does
// not wait.
func TestHeirWaitsForItsPredecessor(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		w.claimPod("web-0", "u1", "ns/web-0")
		w.claimPod("web-0", "u2", "ns/web-0")
		w.pod("web-0", "u3")
		w.mustAdd("c1", "web-0", "u1")
		w.mustAdd("c3", "web-0", "u3")
		_, err := w.add("c2", "web-0", "u2")
		nodetest.WantCode(t, err, cniproto.CodeTryAgainLater, "ns/web-0", "c1", "10s")
		w.wantLinks("c1/eth0", "c3/eth0")
		time.AfterFunc(2*time.Second, func() { _ = w.del("c1") })
		start := time.Now()
		w.mustAdd("c4", "web-0", "u2")
		if waited := time.Since(start); waited > 3*time.Second {
			t.Errorf("waited %s, its predecessor went after 2s", waited)
		}
		w.wantLinks("c3/eth0", "c4/eth0")
		for _, id := range []string{"c3", "c4"} {
			w.mustDel(id)
		}
		settle()
		w.wantLedgerEmpty()
	})
}

// Several waiting pods get their turn in their order of arrival, one at a time. A DEL of
// a waiting pod ends its wait.
func TestHeirsTakeTurns(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		for n := range 4 {
			w.claimPod("vm", fmt.Sprint("u", n), "ns/vm")
		}
		w.mustAdd("c0", "vm", "u0")
		errs := map[string]chan error{}
		for n := 1; n < 4; n++ {
			id := fmt.Sprint("c", n)
			errs[id] = make(chan error, 1)
			go func() {
				_, err := w.add(id, "vm", fmt.Sprint("u", n))
				errs[id] <- err
			}()
			synctest.Wait()
		}
		w.mustDel("c2")
		nodetest.WantCode(t, <-errs["c2"], cniproto.CodeUnknownContainer, "deleted")
		for _, step := range []struct{ del, next string }{{"c0", "c1"}, {"c1", "c3"}} {
			if err := w.del(step.del); err != nil {
				t.Fatal(err)
			}
			settle()
			w.wantLinks(step.next + "/eth0")
			if err := <-errs[step.next]; err != nil {
				t.Errorf("%s: %v", step.next, err)
			}
		}
	})
}

// An error of plugging reaches the check, and a plugged pod clears it.
func TestBindingsOfTheDaemon(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		check := w.network.Checks()[plug.KindRouted]
		w.kernel.setHook(func(_ context.Context, step, _ string) error {
			if step == "attach" {
				return fmt.Errorf("open a socket: %w", unix.EMFILE)
			}
			return nil
		})
		for n := range health.BrokenPods {
			uid := fmt.Sprint("u", n)
			w.pod("p"+uid, uid)
			_, err := w.add("c"+uid, "p"+uid, uid)
			nodetest.WantCode(t, err, cniproto.CodeInternal, unix.EMFILE.Error())
		}
		time.Sleep(health.BrokenFor) //nolint:forbidigo // the bubble's clock
		if err := check(); err == nil || !strings.Contains(err.Error(), unix.EMFILE.Error()) {
			t.Errorf("got %v", err)
		}
		w.kernel.setHook(nil)
		w.pod("p", "u9")
		w.mustAdd("c9", "p", "u9")
		if err := check(); err != nil {
			t.Error(err)
		}
	})
}
