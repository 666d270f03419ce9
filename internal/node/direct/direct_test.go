package direct

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"fairlead.dev/fairlead/internal/netdev/echo"
)

// network answers echo requests as a network with the pods' source would.
type network struct {
	mu       sync.Mutex
	rounds   []time.Time
	requests int
	// lose returns true for a request that is dropped.
	lose func(echo.Request) bool
	err  error
}

func (n *network) Probe(_ context.Context, all []echo.Request, _ time.Duration) ([]echo.Answer, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rounds = append(n.rounds, time.Now())
	n.requests = max(n.requests, len(all))
	out := make([]echo.Answer, len(all))
	for i, e := range all {
		if n.lose == nil || !n.lose(e) {
			out[i] = echo.Answered
		}
	}
	return out, n.err
}

// set changes the network.
func (n *network) set(change func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change()
}

var (
	own = netip.MustParseAddr("192.0.2.1")
	pod = netip.MustParseAddr("10.244.1.0")
)

// links returns this node's links to peers n2, n3, ...
func links(peers int) Links {
	l := Links{Own: []netip.Addr{own}, Pods: []netip.Addr{pod}}
	at := own
	for i := range peers {
		at = at.Next()
		l.Peers = append(l.Peers, Peer{Name: fmt.Sprint("n", i+2), Addresses: []netip.Addr{at}})
	}
	return l
}

func ofPods(e echo.Request) bool { return e.From == pod }

// detecting runs a test with a running detector in a bubble with its own clock.
func detecting(t *testing.T, n *network, test func(*testing.T, *Detector)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		d := New("n1", n, true, func() {})
		done := make(chan error)
		go func() { done <- d.Run(ctx) }()
		test(t, d)
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func after(d time.Duration) { time.Sleep(d); synctest.Wait() } //nolint:forbidigo // the bubble's clock

func TestConclude(t *testing.T) {
	for _, tc := range []struct {
		name   string
		found  map[string]fate
		before []string
		want   []string
	}{
		{"all pass", map[string]fate{"a": passed, "b": passed}, nil, nil},
		{"the only one is dropped", map[string]fate{"a": dropped}, nil, []string{"a"}},
		{"one of several is dropped: it may be at fault", map[string]fate{"a": dropped, "b": passed, "c": unknown}, nil, []string{"a"}},
		{"one is dropped, and the others do not answer", map[string]fate{"a": dropped, "b": unknown}, nil, []string{"a"}},
		{"two are dropped", map[string]fate{"a": dropped, "b": dropped, "c": unknown}, nil, []string{"*"}},
		{"two are dropped, one passes", map[string]fate{"a": dropped, "b": dropped, "c": passed}, nil, []string{"a", "b"}},
		{"no answer is no news", map[string]fate{"a": unknown, "b": unknown}, nil, nil},
		{"no answer changes nothing", map[string]fate{"a": unknown, "b": passed}, []string{"a"}, []string{"a"}},
		{"no answer changes nothing for all", map[string]fate{"a": unknown}, []string{"*"}, []string{"*"}},
		{"all stay dropped while one is seen", map[string]fate{"a": dropped, "b": unknown}, []string{"*"}, []string{"*"}},
		{"passes again", map[string]fate{"a": passed, "b": unknown}, []string{"*"}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, conclude(tc.found, nil, tc.before), cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Nodes in other subnets that are all dropped are dropped by the router, whatever passes on
// the link.
func TestConcludeBeyondTheLink(t *testing.T) {
	for _, tc := range []struct {
		name   string
		found  map[string]fate
		before []string
		want   []string
	}{
		{"all of them are dropped", map[string]fate{"a": passed, "far1": dropped, "far2": dropped}, nil, []string{"*routed"}},
		{"one of them passes", map[string]fate{"a": passed, "far1": dropped, "far2": passed}, nil, []string{"far1"}},
		{"the only one is dropped", map[string]fate{"a": passed, "far1": dropped}, nil, []string{"far1"}},
		{"all stay dropped while one is seen", map[string]fate{"a": passed, "far1": dropped, "far2": unknown}, []string{"*routed"}, []string{"*routed"}},
		{"the link passes again, the router does not", map[string]fate{"a": passed, "far1": dropped}, []string{"*"}, []string{"*routed"}},
		{"with a node of the link", map[string]fate{"a": passed, "b": dropped, "far1": dropped, "far2": dropped}, nil, []string{"*routed", "b"}},
		{"everything is dropped", map[string]fate{"a": dropped, "far1": dropped}, nil, []string{"*"}},
		{"passes again", map[string]fate{"a": passed, "far1": passed, "far2": unknown}, []string{"*routed"}, nil},
		{"no node is in another subnet any more", map[string]fate{"a": passed}, []string{"*routed"}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, conclude(tc.found, map[string]bool{"far1": true, "far2": true}, tc.before), cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Nodes in other subnets are probed beside those of the link, and the condition names them.
func TestOtherSubnetsAreProbed(t *testing.T) {
	n := &network{}
	far := func(e echo.Request) bool {
		return e.From == pod && !netip.MustParsePrefix("192.0.2.0/24").Contains(e.To)
	}
	detecting(t, n, func(t *testing.T, d *Detector) {
		l := links(100)
		for i := range 100 {
			at := netip.AddrFrom4([4]byte{198, 51, 100, byte(i + 1)})
			l.Peers = append(l.Peers, Peer{Name: fmt.Sprint("far", i), Routed: true, Addresses: []netip.Addr{at}})
		}
		n.set(func() { n.lose = far })
		d.SetLinks(l)
		after(time.Minute)
		if n.requests != 2*2*sampleSize {
			t.Errorf("%d requests in a round", n.requests)
		}
		c, _ := d.Condition()
		if diff := cmp.Diff([]string{"*routed"}, d.Dropped()); diff != "" || c == nil || !strings.Contains(c.Message, "all nodes in other subnets, as seen with far") {
			t.Errorf("condition %+v, dropped %s", c, diff)
		}
	})
}

func TestFates(t *testing.T) {
	yes, no, other := echo.Answered, echo.Unanswered, echo.Translated
	one, two := target{peer: "a"}, target{peer: "b"}
	for _, tc := range []struct {
		name    string
		targets []target
		answers []echo.Answer
		want    map[string]fate
	}{
		{"both answered", []target{one}, []echo.Answer{yes, yes}, map[string]fate{"a": passed}},
		{"a pod's dropped", []target{one}, []echo.Answer{yes, no}, map[string]fate{"a": dropped}},
		{"echo requests are refused", []target{one}, []echo.Answer{no, no}, map[string]fate{"a": unknown}},
		{"a pod's alone answered", []target{one}, []echo.Answer{no, yes}, map[string]fate{"a": passed}},
		{"translated by the host", []target{one}, []echo.Answer{yes, other}, map[string]fate{"a": unknown}},
		{"one family dropped", []target{one, one}, []echo.Answer{yes, yes, yes, no}, map[string]fate{"a": dropped}},
		{"one family refused", []target{one, one}, []echo.Answer{yes, yes, no, no}, map[string]fate{"a": passed}},
		{"each peer by itself", []target{one, two}, []echo.Answer{yes, yes, yes, no}, map[string]fate{"a": passed, "b": dropped}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, fates(tc.targets, tc.answers)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A node in a cluster of 5,000 probes three others a few times an hour, and a change of
// nodes that it does not probe starts no round. Together the nodes probe each other.
func TestProbesAreFew(t *testing.T) {
	n := &network{}
	detecting(t, n, func(t *testing.T, d *Detector) {
		l := links(4999)
		d.SetLinks(l)
		after(time.Hour + time.Minute)
		if len(n.rounds) > 8 || n.requests != 2*sampleSize {
			t.Errorf("%d rounds of %d requests in an hour", len(n.rounds), n.requests)
		}
		before := len(n.rounds)
		chosen := sample("n1", l.Peers, nil)
		l.Peers = slices.DeleteFunc(l.Peers, func(p Peer) bool {
			return !slices.ContainsFunc(chosen, func(c Peer) bool { return c.Name == p.Name }) && strings.HasSuffix(p.Name, "7")
		})
		d.SetLinks(l)
		after(RoundDelay + time.Second)
		if len(n.rounds) != before {
			t.Errorf("%d rounds after other nodes went", len(n.rounds)-before)
		}
	})
	probed := map[string]bool{}
	for i := range 100 {
		for _, p := range sample(fmt.Sprint("m", i), links(20).Peers, nil) {
			probed[p.Name] = true
		}
	}
	if len(probed) != 20 {
		t.Errorf("100 nodes probe %d of 20", len(probed))
	}
}

// One lost round is no finding, and a network that drops and passes in turns is tried ever
// more seldom.
func TestLossesAreConfirmed(t *testing.T) {
	n := &network{}
	detecting(t, n, func(t *testing.T, d *Detector) {
		n.set(func() { n.lose = func(e echo.Request) bool { return ofPods(e) && len(n.rounds) == 1 } })
		d.SetLinks(links(1))
		after(RoundDelay + Confirm + time.Second)
		if got := d.Dropped(); len(got) != 0 || len(n.rounds) != 2 {
			t.Errorf("dropped to %v after %d rounds", got, len(n.rounds))
		}
	})
	n = &network{}
	detecting(t, n, func(t *testing.T, d *Detector) {
		// As if the replies came by the tunnel only.
		n.set(func() { n.lose = func(e echo.Request) bool { return ofPods(e) && len(d.Dropped()) == 0 } })
		d.SetLinks(links(1))
		after(24 * time.Hour)
		if len(n.rounds) > 200 {
			t.Errorf("%d rounds in a day", len(n.rounds))
		}
	})
}

// A peer that stops answering changes nothing, nor does an error.
func TestNoAnswerIsNoFinding(t *testing.T) {
	n := &network{lose: ofPods}
	detecting(t, n, func(t *testing.T, d *Detector) {
		d.SetLinks(links(3))
		after(RoundDelay + Confirm + time.Second)
		want := []string{"*"}
		if diff := cmp.Diff(want, d.Dropped()); diff != "" {
			t.Error(diff)
		}
		if c, _ := d.Condition(); c == nil || !strings.Contains(c.Message, "all nodes, as seen with n2, n3, n4,") {
			t.Errorf("condition %+v", c)
		}
		n.set(func() { n.lose = func(echo.Request) bool { return true } })
		after(time.Hour)
		n.set(func() { n.err = errors.New("no sockets") })
		after(time.Hour)
		if diff := cmp.Diff(want, d.Dropped()); diff != "" {
			t.Error(diff)
		}
		d.SetLinks(Links{})
		if c, known := d.Condition(); c != nil || !known || len(d.Dropped()) != 0 {
			t.Error("a node without others on its link reports about them")
		}
	})
}

// A daemon without the right to send echo requests says so.
func TestNotProbed(t *testing.T) {
	detecting(t, &network{err: errors.New("operation not permitted")}, func(t *testing.T, d *Detector) {
		d.SetLinks(links(3))
		after(time.Minute)
		if c, _ := d.Condition(); c == nil || c.Reason != reasonNotProbed || !strings.Contains(c.Message, "NET_RAW") {
			t.Errorf("condition %+v", c)
		}
	})
}

// A node named in Dropped is probed also if the sample has no room for it.
func TestDroppedNodesAreProbed(t *testing.T) {
	l := links(50)
	first := sample("n1", l.Peers, nil)
	last := l.Peers[slices.IndexFunc(l.Peers, func(p Peer) bool {
		return !slices.ContainsFunc(first, func(c Peer) bool { return c.Name == p.Name })
	})]
	got := sample("n1", l.Peers, []string{last.Name, "gone"})
	if len(got) != sampleSize+1 || !slices.ContainsFunc(got, func(p Peer) bool { return p.Name == last.Name }) {
		t.Errorf("sample %v, want also %s", got, last.Name)
	}
}
