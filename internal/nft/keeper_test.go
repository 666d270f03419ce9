package nft

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
)

// kernel is a fake of the kernel: it has elements, and rejects changes that nft would
// reject.
type kernel struct {
	mu       sync.Mutex
	there    bool
	have     elements
	revision uint32
	runs     int
	wholes   int // runs that replaced both tables
	takes    time.Duration
	fail     error
}

func (k *kernel) apply(ctx context.Context, c Change) error {
	k.mu.Lock()
	takes := k.takes
	k.mu.Unlock()
	select {
	case <-time.After(takes):
	case <-ctx.Done():
		return ctx.Err()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.runs++
	if k.fail != nil {
		return k.fail
	}
	if c.Whole != nil {
		k.there, k.have = true, elements{}
		k.wholes++
	}
	if !k.there {
		return errors.New("No such file or directory")
	}
	for _, e := range c.Delete {
		if _, ok := k.have[e.place()]; !ok {
			return fmt.Errorf("delete of %v: not there", e)
		}
		delete(k.have, e.place())
	}
	for _, e := range c.Add {
		if v, ok := k.have[e.place()]; ok && v != e.Value {
			return fmt.Errorf("add of %v: is there as %q", e, v)
		}
		k.have[e.place()] = e.Value
	}
	k.revision = c.Revision
	return nil
}

// wants checks the maps of ports, which are enough.
func (k *kernel) wants(t *testing.T, ports ...string) {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	got := []string{}
	for p, v := range k.have {
		if strings.HasPrefix(p.set, "ports") {
			got = append(got, p.key+" : "+v)
		}
	}
	slices.Sort(got)
	if diff := cmp.Diff(append([]string{}, ports...), got); diff != "" {
		t.Errorf("ports (-want +got):\n%s", diff)
	}
}

func inBubble(t *testing.T, test func(*testing.T, *Keeper, *kernel)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		real := &kernel{takes: 5 * time.Millisecond}
		k := New(real.apply)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := k.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		test(t, k, real)
		cancel()
		running.Wait()
	})
}

func pod(address string, ports ...uint16) Pod {
	p := Pod{Addresses: []netip.Addr{netip.MustParseAddr(address)}}
	for _, n := range ports {
		p.Ports = append(p.Ports, Port{Protocol: "tcp", HostPort: n, ContainerPort: n})
	}
	return p
}

var testNode = Node{Masquerade: true}

func waitFor(t *testing.T, k *Keeper) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := k.Wait(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestNothingBeforeTheNodeIsKnown(t *testing.T) {
	inBubble(t, func(t *testing.T, k *Keeper, real *kernel) {
		k.SetPod("a", pod("10.0.0.1", 80))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := k.Wait(ctx); !errors.Is(err, errNoNode) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait: %v", err)
		}
		if real.runs != 0 || k.Ready() == nil {
			t.Errorf("%d transactions, ready: %v", real.runs, k.Ready())
		}
		k.SetNode(testNode)
		waitFor(t, k)
		real.wants(t, "tcp . 80 : 10.0.0.1 . 80")
		if err := k.Ready(); err != nil {
			t.Error(err)
		}
	})
}

func TestOneTransactionForMany(t *testing.T) {
	inBubble(t, func(t *testing.T, k *Keeper, real *kernel) {
		k.SetNode(testNode)
		waitFor(t, k)
		before := real.runs
		var pods sync.WaitGroup
		for n := range 200 {
			pods.Go(func() {
				k.SetPod(fmt.Sprint(n), pod(fmt.Sprintf("10.0.0.%d", n), uint16(1000+n)))
				waitFor(t, k)
			})
		}
		pods.Wait()
		if got := real.runs - before; got > 3 {
			t.Errorf("%d transactions for 200 pods at once, want at most 3", got)
		}
		if len(real.have) != 200 {
			t.Errorf("%d elements, want 200", len(real.have))
		}
	})
}

func TestWaitIsNotPaced(t *testing.T) {
	inBubble(t, func(t *testing.T, k *Keeper, real *kernel) {
		k.SetNode(testNode)
		waitFor(t, k)
		start := time.Now()
		k.SetPod("a", pod("10.0.0.1", 80))
		waitFor(t, k)
		if took := time.Since(start); took > real.takes {
			t.Errorf("took %s, want one transaction of %s", took, real.takes)
		}
	})
}

// One pod is written soon, and in a storm no pod waits for the last.
func TestChangesGather(t *testing.T) {
	inBubble(t, func(t *testing.T, k *Keeper, real *kernel) {
		k.SetNode(testNode)
		waitFor(t, k)
		before := real.runs
		k.SetPod("a", pod("10.0.0.1", 80))
		<-time.After(batchPause + real.takes)
		synctest.Wait()
		real.wants(t, "tcp . 80 : 10.0.0.1 . 80")
		k.RemovePod("a")
		<-time.After(time.Second)
		synctest.Wait()
		if got := real.runs - before; got != 2 {
			t.Errorf("%d transactions for one pod, want 2", got)
		}

		before = real.runs
		late := batchLimit + batchPause + 2*real.takes // its own and the previous transaction
		for n := range 500 {
			k.SetPod(fmt.Sprint(n), pod(fmt.Sprintf("10.0.%d.%d", n/250, n%250), uint16(n+1)))
			<-time.After(2 * time.Millisecond)
			synctest.Wait()
			if early := n - int(late/(2*time.Millisecond)); early >= 0 {
				p := place{familyInet, "ports4", fmt.Sprintf("tcp . %d", early+1)}
				real.mu.Lock()
				_, there := real.have[p]
				real.mu.Unlock()
				if !there {
					t.Fatalf("%s after pod %d came, its elements are not written", late, early)
				}
			}
		}
		if got := real.runs - before; got > 11 {
			t.Errorf("%d transactions in a second of 500 pods, want at most 11", got)
		}
	})
}

func TestElementsFollowThePods(t *testing.T) {
	inBubble(t, func(t *testing.T, k *Keeper, real *kernel) {
		k.SetNode(testNode)
		k.SetPod("a", pod("10.0.0.1", 80, 81))
		waitFor(t, k)
		k.SetPod("a", pod("10.0.0.1", 81, 82))
		waitFor(t, k)
		real.wants(t, "tcp . 81 : 10.0.0.1 . 81", "tcp . 82 : 10.0.0.1 . 82")
		// The successor gets the port before the predecessor is removed.
		k.SetPod("b", pod("10.0.0.2", 82))
		k.RemovePod("a")
		waitFor(t, k)
		real.wants(t, "tcp . 82 : 10.0.0.2 . 82")
		k.RemovePod("a") // again
		k.RemovePod("never")
		k.RemovePod("b")
		waitFor(t, k)
		real.wants(t)
		if len(real.have) != 0 {
			t.Errorf("left: %v", real.have)
		}
	})
}

func TestNodeChanges(t *testing.T) {
	inBubble(t, func(t *testing.T, k *Keeper, real *kernel) {
		n := testNode
		n.Local, n.Cluster = prefixes("10.0.0.0/26"), prefixes("10.0.0.0/26", "10.0.1.0/26")
		k.SetNode(n)
		k.SetPod("a", pod("10.0.0.1", 80))
		waitFor(t, k)
		before := real.runs
		k.SetNode(n)
		synctest.Wait()
		if real.runs != before {
			t.Error("the same node again was written again")
		}
		n.Cluster = prefixes("10.0.0.0/26", "10.0.2.0/26")
		k.SetNode(n)
		waitFor(t, k)
		if _, ok := real.have[place{"inet", "cluster4", "10.0.2.0/26"}]; !ok || len(real.have) != 4 {
			t.Errorf("elements %v", real.have)
		}
		n.Underlay, n.Peers = addrs("192.0.2.1"), addrs("192.0.2.2", "2001:db8::2")
		k.SetNode(n)
		waitFor(t, k)
		n.Peers = addrs("192.0.2.3", "2001:db8::2")
		wholes, runs := real.wholes, real.runs
		k.SetNode(n)
		waitFor(t, k)
		for _, want := range []place{{"inet", "tunnel4", "192.0.2.1"}, {"inet", "peers4", "192.0.2.3"}, {"inet", "peers6", "2001:db8::2"}} {
			if _, ok := real.have[want]; !ok || len(real.have) != 7 {
				t.Errorf("elements %v, want %v too", real.have, want)
			}
		}
		if real.wholes != wholes || real.runs != runs+1 {
			t.Errorf("another node was %d transactions, %d of them of all", real.runs-runs, real.wholes-wholes)
		}
		n.Masquerade = false
		k.SetNode(n)
		waitFor(t, k)
		n.Tunnel, wholes = Tunnel{Port: 4790, VNI: 1}, real.wholes
		k.SetNode(n)
		waitFor(t, k)
		if real.wholes != wholes+1 {
			t.Errorf("another port of the tunnel is in %d new tables, want one", real.wholes-wholes)
		}
		real.wants(t, "tcp . 80 : 10.0.0.1 . 80")
	})
}

// TestPutBack: the Keeper rewrites tables that another program flushed or deleted, and
// ignores its own changes.
func TestPutBack(t *testing.T) {
	inBubble(t, func(t *testing.T, k *Keeper, real *kernel) {
		k.SetNode(testNode)
		k.SetPod("a", pod("10.0.0.1", 80))
		waitFor(t, k)
		k.Noticed(real.revision)
		synctest.Wait()
		runs := real.runs
		k.Noticed(real.revision)
		<-time.After(time.Second)
		synctest.Wait()
		if real.runs != runs {
			t.Error("its own change was taken for another's")
		}
		real.mu.Lock()
		real.there, real.have = false, nil
		real.mu.Unlock()
		k.Noticed(0)
		waitFor(t, k)
		real.wants(t, "tcp . 80 : 10.0.0.1 . 80")
		k.Noticed(real.revision + 100)
		<-time.After(time.Second)
		synctest.Wait()
		if real.runs != runs+2 {
			t.Errorf("%d transactions after two changes of others", real.runs-runs)
		}
		// The next change detects the loss before the watch reports it.
		real.mu.Lock()
		real.there, real.have = false, nil
		real.mu.Unlock()
		k.SetPod("b", pod("10.0.0.2", 81))
		waitFor(t, k)
		real.wants(t, "tcp . 80 : 10.0.0.1 . 80", "tcp . 81 : 10.0.0.2 . 81")
	})
}

func TestFailureIsSaidAndTriedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, k *Keeper, real *kernel) {
		real.fail = errors.New("nft: operation not permitted")
		k.SetNode(testNode)
		k.SetPod("a", pod("10.0.0.1", 80))
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := k.Wait(ctx); !errors.Is(err, real.fail) {
			t.Errorf("Wait: %v, want its reason", err)
		}
		if err := k.Ready(); !errors.Is(err, real.fail) {
			t.Errorf("Ready: %v", err)
		}
		synctest.Wait()
		if real.runs < 3 || real.runs > 20 {
			t.Errorf("%d tries in 5 s", real.runs)
		}
		real.mu.Lock()
		real.fail = nil
		real.mu.Unlock()
		waitFor(t, k)
		real.wants(t, "tcp . 80 : 10.0.0.1 . 80")
	})
}

func TestMissing(t *testing.T) {
	const element = "element { tcp . 80 : 10.0.0.1 . 80 } of map inet fairlead ports4 is missing"
	refused := errors.New("nft: operation not permitted")
	fail := func(real *kernel, err error) {
		real.mu.Lock()
		defer real.mu.Unlock()
		real.fail = err
	}
	slow := func(real *kernel, takes time.Duration) {
		real.mu.Lock()
		defer real.mu.Unlock()
		real.takes = takes
	}
	cases := []struct {
		name  string
		spoil func(k *Keeper, real *kernel)
		after time.Duration
		want  string
	}{
		{name: "all is there", spoil: func(*Keeper, *kernel) {}, after: time.Hour},
		{
			name: "a change that was just made", spoil: func(k *Keeper, real *kernel) {
				slow(real, time.Hour)
				k.SetPod("a", pod("10.0.0.1", 81))
			},
			after: missingAfter - time.Millisecond,
		},
		{
			name: "a change that does not come to its end", want: strings.ReplaceAll(element, "80", "81"), spoil: func(k *Keeper, real *kernel) {
				slow(real, time.Hour)
				k.SetPod("a", pod("10.0.0.1", 81))
			},
			after: missingAfter,
		},
		{
			name: "a port that still leads to another", want: element, spoil: func(k *Keeper, _ *kernel) {
				k.RemovePod("a")
				k.SetPod("b", pod("10.0.0.2", 80))
				k.SetPod("a", pod("10.0.0.1", 80))
			},
			after: missingAfter,
		},
		{
			name: "refused", want: refused.Error(), spoil: func(k *Keeper, real *kernel) {
				fail(real, refused)
				k.SetPod("b", pod("10.0.0.2", 81))
			},
			after: time.Minute,
		},
		{
			name: "others changed the tables", want: "another program", spoil: func(k *Keeper, real *kernel) {
				slow(real, time.Hour)
				k.Noticed(0)
			},
		},
		{
			name: "others changed them, and they cannot be restored", want: refused.Error(), spoil: func(k *Keeper, real *kernel) {
				fail(real, refused)
				k.Noticed(0)
			},
			after: time.Minute,
		},
		{
			// The notice arrives before the Keeper's transaction returns.
			name: "others changed them again while they were restored", want: "another program", spoil: func(k *Keeper, real *kernel) {
				k.Noticed(0)
				<-time.After(real.takes / 2)
				k.Noticed(0)
				slow(real, time.Hour)
			},
			after: time.Second,
		},
		{
			name: "restored", spoil: func(k *Keeper, real *kernel) {
				fail(real, refused)
				k.Noticed(0)
				<-time.After(time.Second)
				fail(real, nil)
			},
			after: retryLast,
		},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, k *Keeper, real *kernel) {
				k.SetPod("a", pod("10.0.0.1", 80))
				<-time.After(time.Hour)
				if got := k.Missing("a"); len(got) > 0 {
					t.Errorf("before the node is known: %q", got)
				}
				k.SetNode(testNode)
				waitFor(t, k)
				tc.spoil(k, real)
				<-time.After(tc.after)
				synctest.Wait()
				got := strings.Join(k.Missing("a"), "; ")
				if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
					t.Errorf("got %q, want %q", got, tc.want)
				}
				// A sandbox without elements is checked by rules of the tables alone.
				ofNode := tc.want == refused.Error() || tc.want == "another program"
				if got := k.Missing("other"); (len(got) > 0) != ofNode {
					t.Errorf("of a sandbox without elements: %q", got)
				}
			})
		})
	}
}
