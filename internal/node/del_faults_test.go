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
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/internal/node/report"
	"fairlead.dev/fairlead/internal/node/wait"
	"fairlead.dev/fairlead/internal/run"
	"fairlead.dev/fairlead/test/nodetest"
)

// addStep is a step of the ADD of sandbox c1, of a pod with two interfaces and a
// host port.
type addStep struct {
	name string
	// at is the hook that the ADD calls in this step.
	at string
	// hold blocks the ADD in this step, where it waits for others, until release.
	hold func(w *testNode, key types.NamespacedName) (release func())
	// fail makes the step fail; nil leaves it to the hook, or to the end of the wait.
	fail func(w *testNode) (repair func())
	// code is the CNI code of the ADD if the step fails.
	code int
}

var addSteps = []addStep{
	{name: "enter the namespace", at: "enter", code: cniproto.CodeInternal},
	{name: "wait for the node's network", code: cniproto.CodeTryAgainLater, hold: (*testNode).holdNetwork},
	{name: "wait for the PodAttachment", code: cniproto.CodeTryAgainLater, hold: (*testNode).holdAttachment},
	{name: "claim it", code: cniproto.CodeTryAgainLater, hold: (*testNode).holdClaim},
	{name: "before the first pair", at: "attach eth0", code: cniproto.CodeInternal},
	{name: "after the first pair", at: "attached eth0", code: cniproto.CodeInternal},
	{name: "before the second pair", at: "attach net1", code: cniproto.CodeInternal},
	{name: "after the second pair", at: "attached net1", code: cniproto.CodeInternal},
	{
		name: "write the packet filter", at: "filter", code: cniproto.CodeTryAgainLater,
		fail: func(w *testNode) (repair func()) {
			w.filter.setFail(errors.New("nft: operation not permitted"))
			return func() { w.filter.setFail(nil) }
		},
	},
	{name: "forget the flows before", at: "forget", code: cniproto.CodeInternal},
	{name: "wait for the driver", code: cniproto.CodeTryAgainLater, hold: (*testNode).holdActive},
	{
		name: "prepare the record", at: "enter", code: cniproto.CodeInternal,
		fail: func(w *testNode) (repair func()) {
			// Files cannot be created in a missing directory.
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
		fail: func(w *testNode) (repair func()) {
			// A file cannot replace a directory.
			if err := os.Mkdir(filepath.Join(w.dir, ledger.RecordsDir, "c1"+ledger.RecordSuffix), 0o700); err != nil {
				w.t.Error(err)
			}
			return func() {}
		},
	},
}

func (w *testNode) holdNetwork(types.NamespacedName) (release func()) {
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

func (w *testNode) holdAttachment(key types.NamespacedName) (release func()) {
	pa := w.api.get(key)
	w.api.remove(key)
	return func() { w.api.put(pa) }
}

func (w *testNode) holdClaim(types.NamespacedName) (release func()) {
	w.mustAdd("c0", "p", "u1")
	return func() {
		if err := w.del("c0"); err != nil {
			w.t.Error(err)
		}
	}
}

func (w *testNode) holdActive(key types.NamespacedName) (release func()) {
	w.api.change(key, func(pa *v1alpha1.PodAttachment) { pa.Spec.Interfaces[1].WaitForActive = true })
	return func() { w.setStatus(key, v1alpha1.InterfaceStatus{Name: "net1", Active: true}) }
}

// blocker blocks the ADD at a step.
type blocker struct {
	at   string
	here atomic.Bool
	on   chan struct{} // closed to unblock it
	// dead is set when the daemon is killed: each of its goroutines ends at the next
	// hook.
	dead atomic.Bool
	err  error
}

func (s *blocker) hook(ctx context.Context, step, what string) error {
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

// blockedAdd is an ADD of c1 that is blocked at a step.
type blockedAdd struct {
	*testNode
	step    addStep
	key     types.NamespacedName
	blocker *blocker
	release func() // ends the wait of the step
	giveUp  context.CancelFunc
	added   chan error
}

func (w *testNode) blockedAdd(step addStep) *blockedAdd {
	f := &blockedAdd{
		testNode: w, step: step, key: w.pod("p", "u1", "eth0", "net1"), blocker: &blocker{at: step.at, on: make(chan struct{})},
		release: func() {}, added: make(chan error, 1),
	}
	settle()
	if step.hold != nil {
		f.release = step.hold(w, f.key)
		settle()
	}
	w.setHooks(f.blocker.hook)
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
		w.t.Fatalf("ADD did not reach the step: %v", err)
	default:
	}
	if step.at != "" && !f.blocker.here.Load() {
		w.t.Fatalf("ADD did not come by %q", step.at)
	}
	return f
}

func (w *testNode) setHooks(h hook) {
	w.kernel.setHook(h)
	w.api.setHook(h)
	w.filter.setHook(h)
}

// request returns the ADD of a sandbox with a host port.
func (f *blockedAdd) request(containerID string) cniproto.Request {
	netns := f.netns(containerID)
	f.kernel.namespace(netns)
	r := request(cniproto.VerbAdd, containerID, netns, "p", "u1")
	r.Config = nodetest.Asking(`{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"udp"}]}`)
	return r
}

// faults are the failures while the ADD is blocked, up to the answer of its DEL.
var faults = []struct {
	name string
	do   func(f *blockedAdd)
}{
	{"DEL comes", func(f *blockedAdd) {
		deleted := make(chan error, 1)
		go func() { deleted <- f.del("c1") }()
		synctest.Wait()
		close(f.blocker.on)
		f.release()
		nodetest.WantCode(f.t, <-f.added, cniproto.CodeUnknownContainer, "deleted")
		nodetest.WantCode(f.t, <-deleted, 0)
	}},
	{"the runtime gives up, then DEL", func(f *blockedAdd) {
		f.giveUp()
		synctest.Wait()
		close(f.blocker.on)
		f.release()
		if err := <-f.added; err == nil {
			f.t.Error("ADD succeeded after its runtime gave up")
		}
		nodetest.WantCode(f.t, f.del("c1"), 0)
	}},
	{"it fails, then DEL", func(f *blockedAdd) {
		repair := func() {}
		switch {
		case f.step.fail != nil:
			repair = f.step.fail(f.testNode)
		case f.step.hold == nil:
			f.blocker.err = errors.New("no buffer space")
		}
		close(f.blocker.on)
		nodetest.WantCode(f.t, <-f.added, f.step.code)
		repair()
		f.release()
		nodetest.WantCode(f.t, f.del("c1"), 0)
		<-time.After(report.RetryLast) // a failed undo is retried
	}},
	{"the daemon is killed, DEL comes to the next", func(f *blockedAdd) {
		f.kill()
		f.start()
		settle()
		f.release()
		nodetest.WantCode(f.t, f.del("c1"), 0)
	}},
	{"the daemon is killed, DEL is spooled", func(f *blockedAdd) {
		f.kill()
		f.spool("c1")
		f.start()
		settle()
		f.release()
	}},
}

// kill ends the daemon without an undo.
func (f *blockedAdd) kill() {
	f.blocker.dead.Store(true)
	close(f.blocker.on)
	if f.step.name == "write the record" {
		half := filepath.Join(f.dir, ledger.RecordsDir, ledger.TempPrefix+"c1")
		if err := os.WriteFile(half, []byte(`{"version":1,`), 0o600); err != nil {
			f.t.Error(err)
		}
	}
	f.stop()
	<-time.After(wait.ActiveTimeout + 2*wait.UndoTimeout) // its waiting goroutines reach a hook
	synctest.Wait()
	f.setHooks(nil)
}

func (w *testNode) spool(containerID string) {
	r := cniproto.Request{Verb: cniproto.VerbDel, ContainerID: containerID, IfName: "eth0"}
	if err := cniproto.SpoolDel(filepath.Join(w.dir, cniproto.SpoolDir), r); err != nil {
		w.t.Fatal(err)
	}
}

// wantNothing checks that nothing of any sandbox is left.
func (w *testNode) wantNothing() {
	w.t.Helper()
	filtered()
	w.wantLinks()
	w.wantRecords()
	w.wantLedgerEmpty()
	for _, set := range []string{"ports", "self", "stations", "sources", "unchecked"} {
		w.filter.want(w.t, set)
	}
}

// endings are conditions that hold after the DEL, whatever failed before it.
var endings = []struct {
	name string
	do   func(f *blockedAdd)
}{
	{"the pod lives on", func(f *blockedAdd) {
		f.wantNothing()
		_, err := f.handle(f.request("c1"))
		nodetest.WantCode(f.t, err, cniproto.CodeUnknownContainer, "deleted") // a late one
		f.wantNothing()
		_, err = f.handle(f.request("c2"))
		nodetest.WantCode(f.t, err, 0)
		filtered()
		f.wantLinks("c2/eth0", "c2/net1")
		f.wantRecords("c2")
		f.filter.want(f.t, "ports", "udp . 8080 : 10.244.1.5 . 80")
		writes := f.api.written(f.key)
		if n := len(writes); n == 0 || writes[n-1] != "Attached/c2" || strings.Contains(strings.Join(writes, " "), "Detached") {
			f.t.Errorf("writes %v: it lives, in c2", writes)
		}
	}},
	{"the pod goes", func(f *blockedAdd) {
		f.deleteAttachment(f.key)
		f.wantNothing()
		writes := f.api.written(f.key)
		said := func(s string) bool { return strings.HasPrefix(s, "Detached/") }
		if n := len(writes); n == 0 || slices.IndexFunc(writes, said) != n-1 {
			f.t.Errorf("writes %v: want one Detached, the last", writes)
		}
	}},
}

// A DEL comes at every step of an ADD: while the ADD runs, after it failed there, or
// after the daemon was killed there. Each time nothing is left, the DEL is acknowledged,
// the sandbox is never plugged again, and the pod can be. kuryr 1.4; containerd sends the
// DEL of an ADD at once after it gave the ADD up.
func TestDelAtEveryStepOfAnAdd(t *testing.T) {
	for _, step := range addSteps {
		for _, fault := range faults {
			for _, ending := range endings {
				t.Run(step.name+"/"+fault.name+"/"+ending.name, func(t *testing.T) {
					onTestNode(t, func(w *testNode) {
						f := w.blockedAdd(step)
						defer f.giveUp()
						fault.do(f)
						ending.do(f)
					})
				})
			}
		}
	}
}
