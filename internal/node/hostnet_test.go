package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/cniproto/server"
	"fairlead.dev/fairlead/internal/netdev"
)

func nodeNetwork(name string, blocks, addresses []string) *v1alpha1.NodeNetwork {
	return &v1alpha1.NodeNetwork{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)},
		Spec:       v1alpha1.NodeNetworkSpec{Blocks: blocks},
		Status:     v1alpha1.NodeNetworkStatus{Addresses: addresses},
	}
}

// sameAddresses has addresses and prefixes compared as they are.
var sameAddresses = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

func TestPlanHost(t *testing.T) {
	prefix, addr := netip.MustParsePrefix, netip.MustParseAddr
	up4 := netdev.Uplink{Name: "eth0", MTU: 1500, Addresses: []netip.Prefix{prefix("192.168.77.11/24")}}
	up46 := up4
	up46.Addresses = append(up46.Addresses[:1:1], prefix("fd00:77::11/64"))
	v4, v6 := []netip.Addr{addr("169.254.1.1")}, []netip.Addr{addr("fe80::1")}
	both := slices.Concat(v4, v6)
	state := func(gateways []netip.Addr, local []netdev.LocalBlock, peers ...netdev.PeerBlock) netdev.HostState {
		return netdev.HostState{Bridge: "fairlead0", MTU: 1500, Uplink: "eth0", Gateways: gateways, Local: local, Peers: peers}
	}
	own := []netdev.LocalBlock{{Prefix: prefix("10.244.1.0/26"), Source: addr("192.168.77.11")}}
	cases := []struct {
		name     string
		up       netdev.Uplink
		own      *v1alpha1.NodeNetwork
		others   []v1alpha1.NodeNetwork
		want     netdev.HostState
		problems []string
	}{
		{name: "alone, without a block", up: up4, own: nodeNetwork("n1", nil, nil), want: state(nil, nil)},
		{name: "alone", up: up4, own: nodeNetwork("n1", []string{"10.244.1.0/26"}, nil), want: state(v4, own)},
		{
			name: "a family that only others have yet", up: up46, own: nodeNetwork("n1", []string{"10.244.1.0/26"}, nil),
			others: []v1alpha1.NodeNetwork{*nodeNetwork("n2", []string{"fd00:10:244:2::/122"}, []string{"fd00:77::12/64"})},
			want:   state(both, own, netdev.PeerBlock{Prefix: prefix("fd00:10:244:2::/122"), Via: addr("fd00:77::12")}),
		},
		{
			name: "both families", up: up46, own: nodeNetwork("n1", []string{"10.244.1.0/26", "fd00:10:244:1::/122"}, nil),
			others: []v1alpha1.NodeNetwork{
				*nodeNetwork("n2", []string{"10.244.2.0/26", "fd00:10:244:2::/122"}, []string{"192.168.77.12/24", "fd00:77::12/64"}),
			},
			want: state(both,
				append(own[:1:1], netdev.LocalBlock{Prefix: prefix("fd00:10:244:1::/122"), Source: addr("fd00:77::11")}),
				netdev.PeerBlock{Prefix: prefix("10.244.2.0/26"), Via: addr("192.168.77.12")},
				netdev.PeerBlock{Prefix: prefix("fd00:10:244:2::/122"), Via: addr("fd00:77::12")},
			),
		},
		{
			name: "an IPv6 block on a node without IPv6", up: up4, own: nodeNetwork("n1", []string{"fd00:10:244:1::/122"}, nil),
			want: state(v6, []netdev.LocalBlock{{Prefix: prefix("fd00:10:244:1::/122")}}),
		},
		{
			name: "each peer's trouble is its own", up: up4, own: nodeNetwork("n1", []string{"10.244.1.0/26"}, nil),
			others: []v1alpha1.NodeNetwork{
				*nodeNetwork("n6", []string{"10.244.6.0/26"}, []string{"192.168.77.16/24"}),
				*nodeNetwork("n2", []string{"10.244.2.0/26"}, []string{"192.168.78.12/24"}),
				*nodeNetwork("n3", []string{"10.244.3.0/26"}, nil),
				*nodeNetwork("n4", nil, nil),
				*nodeNetwork("n5", []string{"10.244.5.0/26"}, []string{"192.168.77.11/24"}),
				*nodeNetwork("n7", []string{"fd00:10:244:7::/122", "10.244.7.0/26"}, []string{"192.168.77.17/24"}),
			},
			want: state(both, own,
				netdev.PeerBlock{Prefix: prefix("10.244.6.0/26"), Via: addr("192.168.77.16")},
				netdev.PeerBlock{Prefix: prefix("10.244.7.0/26"), Via: addr("192.168.77.17")}),
			problems: []string{
				"node n2 is not on a shared link, and this node does not encapsulate (encapsulation is none)",
				"node n3 has not written its addresses yet",
				"node n5 says that it has the address 192.168.77.11, which is this node's",
				"node n7 is not on a shared link, and this node does not encapsulate (encapsulation is none)",
			},
		},
		{
			name: "blocks that are none", up: up4, own: nodeNetwork("n1", []string{"x", "10.244.1.0/26"}, nil),
			others:   []v1alpha1.NodeNetwork{*nodeNetwork("n2", []string{"y"}, []string{"192.168.77.12/24"})},
			want:     state(v4, own),
			problems: []string{`block "x" of this node: must be in CIDR form, and less than everything`, `node n2 has block "y": must be in CIDR form, and less than everything`},
		},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			got, problems := planHost(hostConfig{bridge: "fairlead0", encapsulation: EncapsulationNone}, tc.own, append(tc.others, *tc.own), tc.up)
			if diff := cmp.Diff(tc.want, got, sameAddresses, cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(tc.problems, problems); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// own returns the daemon's NodeNetwork and how often it was written.
func (w *world) own() (*v1alpha1.NodeNetwork, int) {
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

// set changes the fake and tells whoever watches the kernel.
func (h *fakeHost) set(f func(*fakeHost)) {
	h.mu.Lock()
	f(h)
	notify := h.notify
	h.mu.Unlock()
	if notify != nil {
		notify()
	}
}

func TestNodeNetworkStatusIsWrittenOnce(t *testing.T) {
	inWorld(t, func(w *world) {
		t := w.t
		time.Sleep(time.Minute) //nolint:forbidigo // the bubble's clock
		nn, writes := w.own()
		want := v1alpha1.NodeNetworkStatus{
			Uplink: "eth0", Addresses: []string{"192.168.77.11/24"}, MTU: 1500, BootID: "boot-1",
			Conditions: []metav1.Condition{{
				Type: v1alpha1.ConditionForwarded, Status: metav1.ConditionTrue, Reason: "Forwarded", Message: "no rule of the host drops what pods send or get",
			}, {
				Type: v1alpha1.ConditionRouted, Status: metav1.ConditionTrue, Reason: "Routed", Message: "the bridge and every route are in place",
			}},
		}
		if diff := cmp.Diff(want, nn.Status, cmpopts.IgnoreFields(metav1.Condition{}, "LastTransitionTime")); diff != "" {
			t.Error(diff)
		}
		// More blocks, of this node and of others, are no news.
		w.api.putNetwork(nodeNetwork("n2", []string{"10.244.2.0/26"}, []string{"192.168.77.12/24"}))
		nn = nn.DeepCopy()
		nn.Spec.Blocks = append(nn.Spec.Blocks, "10.244.1.64/26")
		w.api.putNetwork(nn)
		w.restart()
		time.Sleep(time.Minute) //nolint:forbidigo // the bubble's clock
		if _, after := w.own(); writes != 1 || after != 1 {
			t.Errorf("%d writes, %d in the end; want 1", writes, after)
		}
		w.host.mu.Lock()
		defer w.host.mu.Unlock()
		if n := len(w.host.applied); n == 0 || len(w.host.applied[n-1].Local) != 2 || len(w.host.applied[n-1].Peers) != 1 {
			t.Errorf("applied %+v", w.host.applied)
		}
	})
}

func TestNodeNetworkIsPutBack(t *testing.T) {
	inWorld(t, func(w *world) {
		t := w.t
		time.Sleep(time.Second) //nolint:forbidigo // the bubble's clock
		before := w.host.count()
		for range 100 { // a storm is a few looks
			w.host.set(func(*fakeHost) {})
		}
		time.Sleep(time.Second) //nolint:forbidigo // the bubble's clock
		if n := w.host.count() - before; n < 1 || n > 3 {
			t.Errorf("applied %d times", n)
		}
		// Most settings can be changed without a word from the kernel, as by
		// "sysctl --system": those are looked at every minute. The API server
		// hears nothing of it.
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

// A watch that fails is started again, after a wait that grows; one that went
// well for a while was not the failure of the one before.
func TestHostIsWatchedAgain(t *testing.T) {
	inWorld(t, func(w *world) {
		fail := func(after time.Duration) time.Duration {
			<-time.After(after)
			failed := time.Now()
			w.host.broken <- errors.New("no buffer space")
			<-time.After(2 * hostRetryLast)
			settle()
			w.host.mu.Lock()
			defer w.host.mu.Unlock()
			return w.host.watches[len(w.host.watches)-1].Sub(failed)
		}
		if wait := fail(0); wait != hostRetryFirst {
			w.t.Errorf("the first wait is %s", wait)
		}
		for range 3 {
			w.host.broken <- errors.New("no buffer space")
			<-time.After(10 * time.Second)
		}
		if wait := fail(0); wait != 8*hostRetryFirst {
			w.t.Errorf("after three failures the wait is %s", wait)
		}
		if wait := fail(time.Hour); wait != hostRetryFirst {
			w.t.Errorf("after a watch that went well the wait is %s", wait)
		}
	})
}

func TestNodeNetworkFailureIsToldAndTriedAgain(t *testing.T) {
	inWorld(t, func(w *world) {
		t := w.t
		w.host.set(func(h *fakeHost) { h.fail = errors.New("route 10.244.2.0/26: network is unreachable") })
		time.Sleep(time.Second) //nolint:forbidigo // the bubble's clock
		nn, _ := w.own()
		c := meta.FindStatusCondition(nn.Status.Conditions, v1alpha1.ConditionRouted)
		if c.Status != metav1.ConditionFalse || c.Reason != "ApplyFailed" || !strings.Contains(c.Message, "10.244.2.0/26") {
			t.Errorf("condition %+v", c)
		}
		w.pod("p", "u1")
		w.mustAdd("c1", "p", "u1") // one route that fails stops no pod
		w.host.set(func(h *fakeHost) { h.fail = nil; h.notify = nil })
		time.Sleep(hostRetryLast) //nolint:forbidigo // the bubble's clock
		nn, _ = w.own()
		if !meta.IsStatusConditionTrue(nn.Status.Conditions, v1alpha1.ConditionRouted) {
			t.Errorf("conditions %+v", nn.Status.Conditions)
		}
	})
}

// The uplink flaps: the other nodes are not told to take their routes away.
func TestNodeNetworkWithoutUplinkKeepsItsAddresses(t *testing.T) {
	inWorld(t, func(w *world) {
		t := w.t
		w.host.set(func(h *fakeHost) { h.err = fmt.Errorf("%w: looked for a default route", netdev.ErrNoUplink) })
		time.Sleep(time.Second) //nolint:forbidigo // the bubble's clock
		nn, _ := w.own()
		c := meta.FindStatusCondition(nn.Status.Conditions, v1alpha1.ConditionRouted)
		if c.Reason != "NoUplink" || len(nn.Status.Addresses) != 1 || nn.Status.MTU != 1500 {
			t.Errorf("status %+v", nn.Status)
		}
	})
}

func TestAddWaitsForTheBridge(t *testing.T) {
	inWorld(t, func(w *world) {
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
		wantCode(t, err, cniproto.CodeUnavailable, "NodeNetwork n1")
		_, err = w.add("c1", "p", "u1")
		wantCode(t, err, cniproto.CodeTryAgainLater, "node n1", "NodeNetwork n1", "controller")
		time.AfterFunc(time.Second, func() { w.api.putNetwork(nn) })
		w.mustAdd("c2", "p", "u1")
		_, err = w.handle(cniproto.Request{Verb: cniproto.VerbStatus})
		wantCode(t, err, 0)
	})
}

func TestReplaceFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "sub", "f")
	if err := replaceFile(path, []byte("one"), 0o755); err != nil {
		t.Fatal(err)
	}
	first, err := os.Stat(path)
	if err != nil || first.Mode().Perm() != 0o755 {
		t.Fatalf("%v, %v", first, err)
	}
	if err := replaceFile(path, []byte("one"), 0o755); err != nil {
		t.Fatal(err)
	}
	same, err := os.Stat(path)
	if err != nil || !os.SameFile(first, same) {
		t.Errorf("equal content was written again: %v", err)
	}
	if err := replaceFile(path, []byte("two"), 0o755); err != nil {
		t.Fatal(err)
	}
	other, err := os.Stat(path)
	if err != nil || os.SameFile(first, other) {
		t.Errorf("a running program would be written over: %v", err)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("left in the directory: %v, %v", entries, err)
	}
}

func TestConflist(t *testing.T) {
	raw, err := conflist("/run/fairlead/cni.sock")
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		CNIVersion  string
		CNIVersions []string
		Name        string
		Plugins     []struct {
			Type, Socket string
			Capabilities map[string]bool
		}
	}
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	if got.CNIVersion != "1.0.0" || len(got.CNIVersions) != 3 || got.Name != "fairlead" || len(got.Plugins) != 1 ||
		got.Plugins[0].Type != "fairlead" || got.Plugins[0].Socket != "/run/fairlead/cni.sock" || len(got.Plugins[0].Capabilities) != 7 {
		t.Errorf("conflist %s", raw)
	}
}

func TestLock(t *testing.T) {
	dir := t.TempDir()
	first, err := TryLock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := TryLock(dir); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), dir) {
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

func TestRemoveState(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	files := files{dir: filepath.Join(dir, recordsDir)}
	if _, _, err := files.read(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(files.prepare(&record{ContainerID: "c1"}), files.publish("c1")); err != nil {
		t.Fatal(err)
	}
	// What is kept of addresses that other plugins give out goes as well.
	if err := os.MkdirAll(filepath.Join(dir, addressesDir), 0o700); err != nil {
		t.Fatal(err)
	}
	lock, err := TryLock(dir)
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "cni.sock")
	if err := server.MakeSpool(filepath.Join(dir, cniproto.SpoolDir)); err != nil {
		t.Fatal(err)
	}
	if err := cniproto.SpoolDel(filepath.Join(dir, cniproto.SpoolDir), cniproto.Request{Verb: cniproto.VerbDel, ContainerID: "c2"}); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{socket, filepath.Join(dir, cniproto.HeartbeatFile)} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	removed, err := RemoveState(dir, socket)
	if err != nil || len(removed) != 7 {
		t.Errorf("removed %v, %v", removed, err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is there: %v", err)
	}
	if err := lock.Unlock(); err != nil {
		t.Error(err)
	}
	if removed, err := RemoveState(dir, socket); err != nil || len(removed) != 0 {
		t.Errorf("again: %v, %v", removed, err)
	}
}

func TestSpooledDelsAreReplayedAtStart(t *testing.T) {
	inWorld(t, func(w *world) {
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
		w.leave(key)
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
	inWorld(t, func(w *world) {
		t := w.t
		time.Sleep(heartbeatEvery) //nolint:forbidigo // the bubble's clock
		settle()
		raw, err := os.ReadFile(filepath.Join(w.dir, cniproto.HeartbeatFile))
		if err != nil || string(raw) != "boot-1" {
			t.Errorf("heartbeat %q, %v", raw, err)
		}
	})
}
