package node

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/node/answer"
	"fairlead.dev/fairlead/internal/node/apiserver"
	"fairlead.dev/fairlead/internal/node/health"
	"fairlead.dev/fairlead/internal/node/hostnet"
	"fairlead.dev/fairlead/test/nodetest"
)

func (w *testNode) wantStatus(code int, words ...string) {
	w.t.Helper()
	_, err := w.handle(cniproto.Request{Verb: cniproto.VerbStatus})
	nodetest.WantCode(w.t, err, code, words...)
}

// pass lets the bubble's clock go on.
func (w *testNode) pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // the bubble's clock
	settle()
}

// setLost takes the uplink away, or puts it back.
func (w *testNode) setLost(lost bool) {
	w.host.mu.Lock()
	defer w.host.mu.Unlock()
	w.host.lost = lost
}

func (w *testNode) setUplink(name string) {
	w.host.mu.Lock()
	defer w.host.mu.Unlock()
	w.host.uplink.Name = name
}

func TestStatusBeforeAnythingIsKnown(t *testing.T) {
	v := &Network{registry: apiserver.NewRegistry(nil), host: hostnet.New(hostnet.Config{Kernel: &fakeHost{kernel: newFakeKernel()}}), node: "n1"}
	v.health = health.New(v.canServe, filepath.Join(t.TempDir(), cniproto.HeartbeatFile), "boot-1")
	status := func(words ...string) {
		t.Helper()
		nodetest.WantCode(t, answer.CNI(v.Status()), cniproto.CodeUnavailable, words...)
	}
	status("starting")
	v.health.Begin()
	status("n1", "API server")
	v.registry.SetSynced()
	v.health.Note(v.canServe(), false)
	status("n1", "default network")
}

// containerd makes a node unready after one bad STATUS, so a single bad result changes
// nothing yet; a good one counts at once.
func TestStatusHasHysteresis(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		w.wantStatus(0)
		w.setLost(true)
		w.pass(health.LookEvery)
		w.wantStatus(0)
		w.setLost(false)
		w.pass(health.LookEvery)
		w.setLost(true)
		w.pass(health.LookEvery)
		w.wantStatus(0) // bad, good, bad: not twice in a row
		w.pass(health.LookEvery)
		w.wantStatus(cniproto.CodeUnavailable, "n1", "uplink eth0")
		w.setLost(false)
		w.pass(health.LookEvery)
		w.wantStatus(0)
	})
}

func TestStatusOfPodsThatAreCutOff(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		w.pod("p", "u1")
		w.mustAdd("c1", "p", "u1")
		w.setLost(true)
		w.pass(health.BadLooks * health.LookEvery)
		w.wantStatus(cniproto.CodeLimited, "n1", "uplink eth0")
		w.setLost(false)
		w.setUplink("eth9") // eth0, as it was found last, is gone
		w.pass(health.BadLooks * health.LookEvery)
		w.wantStatus(cniproto.CodeLimited, "n1", "uplink eth0")
		if err := w.daemon.Ready(); err == nil {
			w.t.Error("Ready says yes")
		}
		w.mustDel("c1")
		w.pass(health.LookEvery)
		w.wantStatus(cniproto.CodeUnavailable)
	})
}

// An upgrade of the daemon does not make the node unready: the last answer of the
// previous daemon is used for a short time and in this boot only.
func TestStatusAfterARestart(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(w *testNode)
		code   int
	}{
		{name: "it could serve", change: func(*testNode) {}},
		{name: "a while ago", code: cniproto.CodeUnavailable, change: func(w *testNode) { w.pass(health.HeartbeatGrace + time.Second) }},
		{name: "in another boot", code: cniproto.CodeUnavailable, change: func(w *testNode) { w.bootID = "boot-2" }},
		{
			name: "unknown", code: cniproto.CodeUnavailable,
			change: func(w *testNode) { _ = os.Remove(filepath.Join(w.dir, cniproto.HeartbeatFile)) },
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			onTestNode(t, func(w *testNode) {
				w.stop()
				beat := filepath.Join(w.dir, cniproto.HeartbeatFile)
				if err := os.Chtimes(beat, time.Now(), time.Now()); err != nil { // by the bubble's clock
					w.t.Fatal(err)
				}
				tc.change(w)
				w.setLost(true)
				w.setUplink("")
				w.host.set(func(h *fakeHost) { h.fail = link.ErrInvalid })
				w.start()
				settle()
				w.wantStatus(tc.code)
				w.pass(health.HeartbeatGrace)
				w.wantStatus(cniproto.CodeUnavailable)
				// The uplink is first: a round that runs meanwhile succeeds only with all of it.
				w.setLost(false)
				w.setUplink("eth0")
				w.host.set(func(h *fakeHost) { h.fail = nil })
				w.network.host.Kick()
				w.pass(hostnet.Pace)
				w.wantStatus(0)
			})
		})
	}
}
