package node

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/cniproto/server"
	"fairlead.dev/fairlead/internal/netdev/host"
	"fairlead.dev/fairlead/internal/node/direct"
	"fairlead.dev/fairlead/internal/node/health"
	"fairlead.dev/fairlead/internal/node/hostnet"
	"fairlead.dev/fairlead/internal/node/install"
	"fairlead.dev/fairlead/internal/run"
	"fairlead.dev/fairlead/test/nodetest"
)

// own returns the daemon's NodeNetwork and how often it was written.
func (w *testNode) own() (*v1alpha1.NodeNetwork, int) {
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	return w.api.networks["n1"], w.api.netWrites
}

func (h *fakeHost) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.applied)
}

func (h *fakeHost) looked() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.looks
}

// set changes the fake and notifies the watch of the kernel.
func (h *fakeHost) set(f func(*fakeHost)) {
	h.mu.Lock()
	f(h)
	notify := h.notify
	h.mu.Unlock()
	if notify != nil {
		notify(false)
	}
}

func TestNodeNetworkStatusIsWrittenOnce(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		time.Sleep(time.Minute) //nolint:forbidigo // the bubble's clock
		nn, writes := w.own()
		want := v1alpha1.NodeNetworkStatus{
			Uplink: "eth0", Addresses: []string{"192.168.77.11/24"}, MTU: 1500, BootID: "boot-1",
			Conditions: []metav1.Condition{{
				Type: v1alpha1.ConditionForwardPolicy, Status: metav1.ConditionTrue, Reason: "Accept", Message: "no forward chain of nftables has policy drop",
			}, {
				Type: v1alpha1.ConditionRouted, Status: metav1.ConditionTrue, Reason: "Routed", Message: "every route is in place",
			}},
		}
		if diff := cmp.Diff(want, nn.Status, cmpopts.IgnoreFields(metav1.Condition{}, "LastTransitionTime")); diff != "" {
			t.Error(diff)
		}
		// The first other node on the link adds the condition Direct. More blocks, of this
		// node and of others, are no news.
		w.api.putNetwork(nodetest.NodeNetwork("n2", []string{"10.244.2.0/26"}, []string{"192.168.77.12/24"}))
		nn = nn.DeepCopy()
		nn.Spec.Blocks = append(nn.Spec.Blocks, "10.244.1.64/26")
		w.api.putNetwork(nn)
		w.restart()
		time.Sleep(time.Minute) //nolint:forbidigo // the bubble's clock
		if nn, after := w.own(); writes != 1 || after != 2 || !meta.IsStatusConditionTrue(nn.Status.Conditions, v1alpha1.ConditionDirect) {
			t.Errorf("%d writes, %d in the end; want 1, and 1 for the condition Direct", writes, after)
		}
		w.host.mu.Lock()
		defer w.host.mu.Unlock()
		if n := len(w.host.applied); n == 0 || len(w.host.applied[n-1].Local) != 2 || len(w.host.applied[n-1].Peers) != 1 {
			t.Errorf("applied %+v", w.host.applied)
		}
	})
}

func TestNodeNetworkIsPutBack(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		time.Sleep(time.Second) //nolint:forbidigo // the bubble's clock
		before := w.host.count()
		for range 100 { // a storm of changes is applied a few times
			w.host.set(func(*fakeHost) {})
		}
		time.Sleep(time.Second) //nolint:forbidigo // the bubble's clock
		if n := w.host.count() - before; n < 1 || n > 3 {
			t.Errorf("applied %d times", n)
		}
		// The kernel does not report changes of most settings, as by "sysctl --system":
		// the daemon compares them every minute. It writes nothing to the API server for
		// that.
		before = w.host.count()
		_, writes := w.own()
		time.Sleep(time.Hour) //nolint:forbidigo // the bubble's clock
		if n := w.host.count() - before; n < 59 || n > 61 {
			t.Errorf("applied %d times in an hour in which nothing happened", n)
		}
		if _, after := w.own(); after != writes {
			t.Errorf("%d writes of the status in an hour in which nothing happened", after-writes)
		}
	})
}

// A watch that fails is started again after a growing wait. The wait starts anew after a
// watch that worked for a while.
func TestHostIsWatchedAgain(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		fail := func(after time.Duration) time.Duration {
			<-time.After(after)
			failed := time.Now()
			w.host.broken <- errors.New("no buffer space")
			<-time.After(2 * run.RetryLast)
			settle()
			w.host.mu.Lock()
			defer w.host.mu.Unlock()
			return w.host.watches[len(w.host.watches)-1].Sub(failed)
		}
		if wait := fail(0); wait != run.RetryFirst {
			w.t.Errorf("the first wait is %s", wait)
		}
		for range 3 {
			w.host.broken <- errors.New("no buffer space")
			<-time.After(10 * time.Second)
		}
		if wait := fail(0); wait != 8*run.RetryFirst {
			w.t.Errorf("after three failures the wait is %s", wait)
		}
		if wait := fail(time.Hour); wait != run.RetryFirst {
			w.t.Errorf("after a watch that went well the wait is %s", wait)
		}
	})
}

func TestNodeNetworkFailureIsToldAndTriedAgain(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		w.host.set(func(h *fakeHost) { h.fail = errors.New("route 10.244.2.0/26: network is unreachable") })
		time.Sleep(time.Second) //nolint:forbidigo // the bubble's clock
		nn, _ := w.own()
		c := meta.FindStatusCondition(nn.Status.Conditions, v1alpha1.ConditionRouted)
		if c.Status != metav1.ConditionFalse || c.Reason != "ApplyFailed" || !strings.Contains(c.Message, "10.244.2.0/26") {
			t.Errorf("condition %+v", c)
		}
		w.pod("p", "u1")
		w.mustAdd("c1", "p", "u1") // a failed route stops no pod
		w.host.set(func(h *fakeHost) { h.fail = nil; h.notify = nil })
		time.Sleep(run.RetryLast) //nolint:forbidigo // the bubble's clock
		nn, _ = w.own()
		if !meta.IsStatusConditionTrue(nn.Status.Conditions, v1alpha1.ConditionRouted) {
			t.Errorf("conditions %+v", nn.Status.Conditions)
		}
	})
}

// The uplink flaps. The NodeNetwork keeps its addresses, so the other nodes keep their
// routes.
func TestNodeNetworkWithoutUplinkKeepsItsAddresses(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		w.host.set(func(h *fakeHost) { h.err = fmt.Errorf("%w: looked for a default route", host.ErrNoUplink) })
		time.Sleep(time.Second) //nolint:forbidigo // the bubble's clock
		nn, _ := w.own()
		c := meta.FindStatusCondition(nn.Status.Conditions, v1alpha1.ConditionRouted)
		if c.Reason != "NoUplink" || len(nn.Status.Addresses) != 1 || nn.Status.MTU != 1500 {
			t.Errorf("status %+v", nn.Status)
		}
	})
}

func TestAddWaitsForTheNetwork(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		w.stop()
		w.api.mu.Lock()
		nn := w.api.networks["n1"]
		delete(w.api.networks, "n1")
		w.api.mu.Unlock()
		w.start()
		settle()
		w.pod("p", "u1")
		_, err := w.handle(cniproto.Request{Verb: cniproto.VerbStatus})
		nodetest.WantCode(t, err, cniproto.CodeUnavailable, "NodeNetwork n1")
		_, err = w.add("c1", "p", "u1")
		nodetest.WantCode(t, err, cniproto.CodeTryAgainLater, "node n1", "NodeNetwork n1", "controller")
		time.AfterFunc(time.Second, func() { w.api.putNetwork(nn) })
		w.mustAdd("c2", "p", "u1")
		_, err = w.handle(cniproto.Request{Verb: cniproto.VerbStatus})
		nodetest.WantCode(t, err, 0)
	})
}

func TestLock(t *testing.T) {
	dir := t.TempDir()
	first, err := install.TryLock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := install.TryLock(dir); !errors.Is(err, install.ErrLocked) || !strings.Contains(err.Error(), dir) {
		t.Errorf("the second: %v", err)
	}
	got := make(chan error, 1)
	go func() {
		l, err := lockState(t.Context(), dir)
		if err == nil {
			err = l.Unlock()
		}
		got <- err
	}()
	if err := first.Unlock(); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Errorf("who waited: %v", err)
	}
}

func TestSpooledDelsAreReplayedAtStart(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		key := w.pod("p", "u1")
		w.mustAdd("c1", "p", "u1")
		w.stop()
		dir := filepath.Join(w.dir, cniproto.SpoolDir)
		for _, id := range []string{"c1", "c8"} {
			if err := cniproto.SpoolDel(dir, cniproto.Request{Verb: cniproto.VerbDel, ContainerID: id, IfName: "eth0"}); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "c9@eth0.json"), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		w.deleteAttachment(key)
		w.start()
		settle()
		w.wantLinks()
		w.wantRecords()
		w.wantWrites(key, "Attached/c1", "Detached/c1")
		if left, err := server.ReadSpool(dir); err != nil || len(left) != 0 {
			t.Errorf("left in the spool: %v, %v", left, err)
		}
	})
}

func TestHeartbeat(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		time.Sleep(health.HeartbeatEvery) //nolint:forbidigo // the bubble's clock
		settle()
		raw, err := os.ReadFile(filepath.Join(w.dir, cniproto.HeartbeatFile))
		if err != nil || string(raw) != "boot-1" {
			t.Errorf("heartbeat %q, %v", raw, err)
		}
	})
}

// The network drops packets of pods, and the node's own pass: with encapsulation "auto" the
// node sends through the tunnel within seconds, says so, does so at once after a restart,
// and sends directly again when they pass. The default silently lost them (own review,
// port security).
func TestDroppedTrafficIsTunnelled(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		w.stop()
		w.encapsulation = hostnet.EncapsulationAuto
		w.host.dropped = []netip.Addr{netip.MustParseAddr("10.244.1.0")}
		n2 := nodetest.NodeNetwork("n2", []string{"10.244.2.0/26"}, []string{"192.168.77.12/24"})
		n2.Status.Tunnel = &v1alpha1.Tunnel{MAC: host.TunnelMAC("n2").String()}
		w.api.putNetwork(n2)
		w.start()
		way := func() string {
			w.host.mu.Lock()
			defer w.host.mu.Unlock()
			last := w.host.applied[len(w.host.applied)-1]
			return fmt.Sprintf("%d direct, %d tunnelled, loose %v", len(last.Peers), len(last.Remote), last.Loose)
		}
		want := func(when, path string, status metav1.ConditionStatus, dropped ...string) {
			t.Helper()
			nn, _ := w.own()
			c := meta.FindStatusCondition(nn.Status.Conditions, v1alpha1.ConditionDirect)
			if got := way(); got != path || c == nil || c.Status != status {
				t.Errorf("%s: %s, %+v; want %s, %s", when, got, c, path, status)
			}
			if diff := cmp.Diff(dropped, nn.Status.Dropped, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s: %s", when, diff)
			}
			gauge := "0"
			if len(dropped) > 0 {
				gauge = "1"
			}
			text := "# HELP fairlead_node_direct_dropped 1 while the network drops packets of pods to other nodes that are not encapsulated, so that they go through the tunnel; otherwise 0.\n" +
				"# TYPE fairlead_node_direct_dropped gauge\nfairlead_node_direct_dropped " + gauge + "\n"
			if err := testutil.GatherAndCompare(w.metrics, strings.NewReader(text), "fairlead_node_direct_dropped"); err != nil {
				t.Errorf("%s: %v", when, err)
			}
		}
		time.Sleep(direct.RoundDelay + direct.Confirm + time.Second) //nolint:forbidigo // the bubble's clock
		want("dropped", "0 direct, 1 tunnelled, loose true", metav1.ConditionFalse, "n2")
		before := w.host.count()
		w.restart()
		time.Sleep(time.Second) //nolint:forbidigo // the bubble's clock
		if w.host.applied[before].Peers != nil {
			t.Error("after a restart the node sends directly until it has probed again")
		}
		want("restarted", "0 direct, 1 tunnelled, loose true", metav1.ConditionFalse, "n2")
		w.host.set(func(h *fakeHost) { h.dropped = nil })
		time.Sleep(direct.RetryLast + direct.Confirm + time.Second) //nolint:forbidigo // the bubble's clock
		want("allowed", "1 direct, 0 tunnelled, loose false", metav1.ConditionTrue)
	})
}
