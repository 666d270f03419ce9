package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/internal/node/nodetest"
	"fairlead.dev/fairlead/internal/node/queue"
	"fairlead.dev/fairlead/internal/run"
)

// addStep is a step of the ADD of sandbox c1, of a pod with two interfaces and a
// host port.
type addStep struct {
	name string
	// at is the hook that the ADD comes by there.
	at string
	// hold has the ADD wait there, where it waits for others, until release.
	hold func(w *world, key types.NamespacedName) (release func())
	// fail lets the step fail; nil leaves it to the hook, or to the wait that ends.
	fail func(w *world) (mend func())
	// code is what ADD answers when the step fails.
	code int
}

var addSteps = []addStep{
	{name: "enter the namespace", at: "enter", code: cniproto.CodeInternal},
	{name: "wait for the node's network", code: cniproto.CodeTryAgainLater, hold: (*world).holdNetwork},
	{name: "wait for the PodAttachment", code: cniproto.CodeTryAgainLater, hold: (*world).holdAttachment},
	{name: "claim it", code: cniproto.CodeTryAgainLater, hold: (*world).holdClaim},
	{name: "before the first pair", at: "attach eth0", code: cniproto.CodeInternal},
	{name: "after the first pair", at: "attached eth0", code: cniproto.CodeInternal},
	{name: "before the second pair", at: "attach net1", code: cniproto.CodeInternal},
	{name: "after the second pair", at: "attached net1", code: cniproto.CodeInternal},
	{
		name: "write the packet filter", at: "filter", code: cniproto.CodeTryAgainLater,
		fail: func(w *world) (mend func()) {
			w.filter.setFail(errors.New("nft: operation not permitted"))
			return func() { w.filter.setFail(nil) }
		},
	},
	{name: "forget the flows before", at: "forget", code: cniproto.CodeInternal},
	{name: "wait for the driver", code: cniproto.CodeTryAgainLater, hold: (*world).holdActive},
	{
		name: "prepare the record", at: "enter", code: cniproto.CodeInternal,
		fail: func(w *world) (mend func()) {
			// Files cannot be made in a directory that is not there.
			dir := filepath.Join(w.dir, ledger.RecordsDir)
			if err := os.Rename(dir, dir+".away"); err != nil {
				w.t.Error(err)
			}
			return func() {
				if err := os.Rename(dir+".away", dir); err != nil {
					w.t.Error(err)
				}
			}
		},
	},
	{
		name: "write the record", at: "forget", code: cniproto.CodeInternal,
		fail: func(w *world) (mend func()) {
			// A file cannot take the place of a directory.
			if err := os.Mkdir(filepath.Join(w.dir, ledger.RecordsDir, "c1"+ledger.RecordSuffix), 0o700); err != nil {
				w.t.Error(err)
			}
			return func() {}
		},
	},
}

func (w *world) holdNetwork(types.NamespacedName) (release func()) {
	set := func(err error) {
		w.host.mu.Lock()
		defer w.host.mu.Unlock()
		w.host.err = err
	}
	w.stop()
	set(errors.New("no default route"))
	w.start()
	return func() {
		set(nil)
		<-time.After(run.RetryLast)
	}
}

func (w *world) holdAttachment(key types.NamespacedName) (release func()) {
	pa := w.api.get(key)
	w.api.remove(key)
	return func() { w.api.put(pa) }
}

func (w *world) holdClaim(types.NamespacedName) (release func()) {
	w.mustAdd("c0", "p", "u1")
	return func() {
		if err := w.del("c0"); err != nil {
			w.t.Error(err)
		}
	}
}

func (w *world) holdActive(key types.NamespacedName) (release func()) {
	w.api.change(key, func(pa *v1alpha1.PodAttachment) { pa.Spec.Interfaces[1].WaitForActive = true })
	return func() { w.says(key, v1alpha1.InterfaceStatus{Name: "net1", Active: true}) }
}

// stand keeps the ADD at a step.
type stand struct {
	at   string
	here atomic.Bool
	on   chan struct{} // closed to let it go on
	// dead is set when the daemon was killed: whatever it does ends there.
	dead atomic.Bool
	err  error
}

func (s *stand) hook(ctx context.Context, step, what string) error {
	if s.dead.Load() {
		runtime.Goexit()
	}
	if step+" "+what != s.at && step != s.at || s.here.Swap(true) {
		return nil
	}
	select {
	case <-s.on:
	case <-ctx.Done():
	}
	if s.dead.Load() {
		runtime.Goexit()
	}
	return s.err
}

// faulted is an ADD of c1 that stands at a step.
type faulted struct {
	*world
	step    addStep
	key     types.NamespacedName
	stand   *stand
	release func() // what the step waited for is there
	giveUp  context.CancelFunc
	added   chan error
}

func (w *world) faulted(step addStep) *faulted {
	f := &faulted{
		world: w, step: step, key: w.pod("p", "u1", "eth0", "net1"), stand: &stand{at: step.at, on: make(chan struct{})},
		release: func() {}, added: make(chan error, 1),
	}
	settle()
	if step.hold != nil {
		f.release = step.hold(w, f.key)
		settle()
	}
	w.setHooks(f.stand.hook)
	ctx, cancel := context.WithCancel(context.Background())
	f.giveUp = cancel
	daemon := w.daemon
	r := f.request("c1")
	go func() {
		_, err := daemon.Handle(ctx, r)
		f.added <- err
	}()
	settle()
	select {
	case err := <-f.added:
		w.t.Fatalf("ADD did not stand at the step: %v", err)
	default:
	}
	if step.at != "" && !f.stand.here.Load() {
		w.t.Fatalf("ADD did not come by %q", step.at)
	}
	return f
}

func (w *world) setHooks(h hook) {
	w.kernel.setHook(h)
	w.api.setHook(h)
	w.filter.setHook(h)
}

// request is the ADD of a sandbox with a host port.
func (f *faulted) request(containerID string) cniproto.Request {
	netns := f.netns(containerID)
	f.kernel.namespace(netns)
	r := request(cniproto.VerbAdd, containerID, netns, "p", "u1")
	r.Config = nodetest.Asking(`{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"udp"}]}`)
	return r
}

// faults are what goes wrong while the ADD stands, up to the answer of its DEL.
var faults = []struct {
	name string
	do   func(f *faulted)
}{
	{"DEL comes", func(f *faulted) {
		deleted := make(chan error, 1)
		go func() { deleted <- f.del("c1") }()
		synctest.Wait()
		close(f.stand.on)
		f.release()
		nodetest.WantCode(f.t, <-f.added, cniproto.CodeUnknownContainer, "deleted")
		nodetest.WantCode(f.t, <-deleted, 0)
	}},
	{"the runtime gives up, then DEL", func(f *faulted) {
		f.giveUp()
		synctest.Wait()
		close(f.stand.on)
		f.release()
		if err := <-f.added; err == nil {
			f.t.Error("ADD succeeded for nobody")
		}
		nodetest.WantCode(f.t, f.del("c1"), 0)
	}},
	{"it fails, then DEL", func(f *faulted) {
		mend := func() {}
		switch {
		case f.step.fail != nil:
			mend = f.step.fail(f.world)
		case f.step.hold == nil:
			f.stand.err = errors.New("no buffer space")
		}
		close(f.stand.on)
		nodetest.WantCode(f.t, <-f.added, f.step.code)
		mend()
		f.release()
		nodetest.WantCode(f.t, f.del("c1"), 0)
		<-time.After(queue.RetryLast) // an undo that failed goes on
	}},
	{"the daemon is killed, DEL comes to the next", func(f *faulted) {
		f.kill()
		f.start()
		settle()
		f.release()
		nodetest.WantCode(f.t, f.del("c1"), 0)
	}},
	{"the daemon is killed, DEL is spooled", func(f *faulted) {
		f.kill()
		f.spool("c1")
		f.start()
		settle()
		f.release()
	}},
}

// kill ends the daemon without an undo.
func (f *faulted) kill() {
	f.stand.dead.Store(true)
	close(f.stand.on)
	if f.step.name == "write the record" {
		half := filepath.Join(f.dir, ledger.RecordsDir, ledger.TempPrefix+"c1")
		if err := os.WriteFile(half, []byte(`{"version":1,`), 0o600); err != nil {
			f.t.Error(err)
		}
	}
	f.stop()
	<-time.After(2 * undoTimeout) // whoever still waits in it comes to a hook
	synctest.Wait()
	f.setHooks(nil)
}

func (w *world) spool(containerID string) {
	r := cniproto.Request{Verb: cniproto.VerbDel, ContainerID: containerID, IfName: "eth0"}
	if err := cniproto.SpoolDel(filepath.Join(w.dir, cniproto.SpoolDir), r); err != nil {
		w.t.Fatal(err)
	}
}

// wantNothing checks that nothing of any sandbox is left.
func (w *world) wantNothing() {
	w.t.Helper()
	filtered()
	w.wantLinks()
	w.wantRecords()
	w.wantLedgerEmpty()
	for _, set := range []string{"ports", "self", "stations", "sources", "unchecked"} {
		w.filter.want(w.t, set)
	}
}

// endings are what has to be true after the DEL, whatever went wrong before it.
var endings = []struct {
	name string
	do   func(f *faulted)
}{
	{"the pod lives on", func(f *faulted) {
		f.wantNothing()
		_, err := f.handle(f.request("c1"))
		nodetest.WantCode(f.t, err, cniproto.CodeUnknownContainer, "deleted") // a late one
		f.wantNothing()
		_, err = f.handle(f.request("c2"))
		nodetest.WantCode(f.t, err, 0)
		filtered()
		f.wantLinks("c2/eth0", "c2/net1")
		f.wantRecords("c2")
		f.filter.want(f.t, "stations", `"`+plug.HostName("c2", "eth0")+`" . `+link1, `"`+plug.HostName("c2", "net1")+`" . `+link1)
		writes := f.api.written(f.key)
		if n := len(writes); n == 0 || writes[n-1] != "Attached/c2" || strings.Contains(strings.Join(writes, " "), "Detached") {
			f.t.Errorf("writes %v: it lives, in c2", writes)
		}
	}},
	{"the pod goes", func(f *faulted) {
		f.leave(f.key)
		f.wantNothing()
		writes := f.api.written(f.key)
		said := func(s string) bool { return strings.HasPrefix(s, "Detached/") }
		if n := len(writes); n == 0 || slices.IndexFunc(writes, said) != n-1 {
			f.t.Errorf("writes %v: want one Detached, the last", writes)
		}
	}},
}

// A DEL at every step of an ADD: it comes while the ADD is there, after the ADD
// failed there, or after the daemon was killed there. Each time nothing is left,
// that is acknowledged, the sandbox is never plugged again and the pod can be.
// kuryr 1.4; containerd sends the DEL of an ADD that it gave up at once.
func TestDelAtEveryStepOfAnAdd(t *testing.T) {
	for _, step := range addSteps {
		for _, fault := range faults {
			for _, ending := range endings {
				t.Run(step.name+"/"+fault.name+"/"+ending.name, func(t *testing.T) {
					inWorld(t, func(w *world) {
						f := w.faulted(step)
						defer f.giveUp()
						fault.do(f)
						ending.do(f)
					})
				})
			}
		}
	}
}
