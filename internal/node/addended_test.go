package node

import (
	"context"
	"testing"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
)

// An ADD of addresses ends just before it would answer: its plugin gave up, or a DEL came. Its
// record goes, so that the addresses can be released.
func TestAddressesOfAnEndedAdd(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		key := w.pod("web", "uid-1")
		w.further(key, "net1")
		w.api.change(key, func(pa *v1alpha1.PodAttachment) {
			pa.Status.Sandbox = &v1alpha1.Sandbox{ID: "c0", BootID: "boot-0", State: v1alpha1.SandboxAttached}
		})
		settle()
		ctx, cancel := context.WithCancel(context.Background())
		w.api.setHook(func(_ context.Context, step, _ string) error {
			if step == "patched" { // the last step before the interfaces
				cancel()
			}
			return nil
		})
		w.kernel.namespace(w.netns("c1"))
		r := request(cniproto.VerbAdd, "c1", w.netns("c1"), "web", "uid-1")
		r.IPAM, r.IfName, r.Config = "fairlead-ipam", "net1", []byte(macvlan)
		if _, err := w.daemon.Handle(ctx, r); err == nil {
			t.Fatal("it was served")
		}
		w.api.setHook(nil)
		settle()
		w.wantLedgerEmpty()
		w.deleteAttachment(key)
		settle()
		if got := w.state(key); got != v1alpha1.SandboxDetached {
			t.Errorf("it is %q", got)
		}
	})
}

// A GC comes while an ADD writes, before it plugs, that the node has booted. The ADD makes way
// and is served after the GC.
func TestGCDuringTheWriteBeforeAnAdd(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		w.outlivesBoot()
		w.api.setHook(func(ctx context.Context, step, _ string) error {
			if step != "patch" {
				return nil
			}
			w.api.setHook(nil)
			go func() {
				if _, err := w.daemon.Handle(context.WithoutCancel(ctx), gcRequest(`,"cni.dev/valid-attachments":[]`)); err != nil {
					t.Errorf("GC: %v", err)
				}
			}()
			<-ctx.Done()
			return ctx.Err()
		})
		w.mustAdd("c2", "p", "u1")
		w.wantLinks("c2/eth0")
	})
}
