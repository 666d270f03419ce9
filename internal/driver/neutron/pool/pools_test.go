package pool

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/pooltest"
)

// The first pod waits for the refill, and is woken. The next ones get ports at once.
func TestFirstPodWaitsForTheRefill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.start(marks)
		synctest.Wait()
		_, err := p.Take(t.Context(), key, holder(1))
		if !errors.Is(err, ErrEmpty) || !strings.Contains(err.Error(), `network "pods" on node node-1: ports are being made`) {
			t.Fatalf("error %v", err)
		}
		synctest.Wait()
		if w.wakes < 2 { // compared, and filled
			t.Errorf("%d wakes", w.wakes)
		}
		calls := len(w.called())
		if _, err := p.Take(t.Context(), key, holder(1)); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Take(t.Context(), key, holder(2)); err != nil {
			t.Fatal(err)
		}
		if made := slices.DeleteFunc(w.called()[:calls], func(c string) bool { return !strings.HasPrefix(c, "make") }); len(made) != 1 {
			t.Errorf("calls for the first refill: %v", made)
		}
		w.want(0, repeat("ready", 4)+" used used")
		w.sound()
	})
}

// A port rests between two pods, and the pod that comes next gets another.
func TestPortRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.start(marks)
		first := w.take(p, key, 1)
		w.want(0, "ready ready ready ready used")
		w.free(p, 1)
		w.free(p, 1)
		w.want(0, "cooling ready ready ready ready")
		for n := 2; n < 6; n++ {
			if h := w.take(p, key, n); h.ID == first.ID {
				t.Errorf("pod %d got %s, which rests", n, h.ID)
			}
		}
		wait(cooldown)
		synctest.Wait()
		if got := w.states(); strings.Contains(got, "cooling") || strings.Count(got, "ready") < 4 {
			t.Errorf("after the cool-down the slots are %q", got)
		}
		w.sound()
	})
}

// An idle pool shrinks to its low mark, and after an hour it has no ready port. The
// ports of pods stay.
func TestIdlePoolShrinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.start(marks)
		for n := range 20 {
			w.take(p, key, n)
		}
		for n := 1; n < 20; n++ {
			w.free(p, n)
		}
		w.want(time.Minute, repeat("ready", 8)+" used")
		w.want(idleAfter, "ready ready ready ready used")
		w.want(forgetAfter, "used")
		w.free(p, 0)
		w.want(2*time.Minute, "")
		if all := w.api.List(); len(all) != 0 || len(w.made()) != 0 {
			t.Errorf("left: %v, %v", all, w.made())
		}
		w.take(p, key, 1) // and begins again
		w.sound()
	})
}

// People fill and drain a pool by its desired count. A drained pool gives pods ports of their
// own.
func TestFillAndDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.start(marks)
		w.take(p, key, 1)
		desire := func(n int32) {
			if err := w.api.Edit(key.name(0), func(o *v1alpha1.PortPool) { o.Spec.Desired = &n }); err != nil {
				t.Fatal(err)
			}
		}
		desire(12)
		w.want(time.Second, repeat("ready", 12)+" used")
		desire(0)
		w.want(time.Second, "used")
		if _, err := p.Take(t.Context(), key, holder(2)); !errors.Is(err, ErrOwn) || !strings.Contains(err.Error(), "drained") {
			t.Errorf("error %v", err)
		}
		if _, err := p.Take(t.Context(), key, holder(1)); !errors.Is(err, ErrOwn) {
			t.Errorf("error %v", err) // the driver asks Of first
		}
		if h, ok, err := p.Of(holder(1)); !ok || err != nil || h.ID == "" {
			t.Error("the pod lost its port")
		}
		w.sound()
	})
}

// The pools of a node that is gone are freed after the grace. If the node is back in
// time, they stay.
func TestNodeGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.start(marks)
		w.take(p, key, 1)
		w.set(func() { w.gone["node-1"] = true })
		w.want(3*time.Minute, "ready ready ready ready used")
		w.set(func() { w.gone["node-1"] = false })
		w.want(4*time.Minute, "ready ready ready ready used")
		w.set(func() { w.gone["node-1"] = true })
		w.want(8*time.Minute, "used")
		if _, err := p.Take(t.Context(), key, holder(2)); !errors.Is(err, ErrOwn) {
			t.Errorf("error %v", err)
		}
		w.free(p, 1)
		w.want(2*time.Minute, "")
		if all := w.api.List(); len(all) != 0 || len(w.made()) != 0 {
			t.Errorf("left: %v, %v", all, w.made())
		}
	})
}

// Pools that are switched off: ready ports go, and the ports of pods after them.
func TestSwitchedOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.start(marks)
		w.take(p, key, 1)
		synctest.Wait()
		p.stop()
		p = w.start(Marks{})
		w.want(time.Second, "used")
		if _, err := p.Take(t.Context(), key, holder(2)); !errors.Is(err, ErrOwn) {
			t.Errorf("error %v", err)
		}
		w.free(p, 1)
		w.want(2*time.Minute, "")
		if all := w.api.List(); len(all) != 0 || len(w.made()) != 0 {
			t.Errorf("left: %v, %v", all, w.made())
		}
	})
}

// The PortPool of a pool that is switched off is deleted after its last port, also if a change
// of it is under way at that moment.
func TestEmptyPoolGoesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.start(marks)
		w.take(p, key, 1)
		synctest.Wait()
		p.stop()
		p = w.start(Marks{})
		w.free(p, 1)
		w.api.Inject(func(verb string, o *v1alpha1.PortPool) pooltest.Fault {
			if verb == "update" && len(o.Spec.Ports) == 0 {
				go func() {
					if err := p.store.do(t.Context(), key, key.name(0), func(*v1alpha1.PortPoolSpec) bool { wait(time.Second); return false }); err != nil {
						t.Error(err)
					}
				}()
				wait(time.Millisecond) // the change is queued
			}
			return pooltest.None
		})
		w.want(cooldown+5*time.Second, "")
		if all := w.api.List(); len(all) != 0 || len(w.made()) != 0 {
			t.Errorf("left: %v, %v", all, w.made())
		}
	})
}

// The pools of a network are freed before it is removed.
func TestCloseNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.start(marks)
		w.take(p, key, 1)
		w.want(0, "ready ready ready ready used")
		if left := p.Close("net-2"); left != 0 {
			t.Errorf("%d ports of another network", left)
		}
		if left := p.Close("net-1"); left != 5 {
			t.Errorf("%d ports left, want 5", left)
		}
		w.want(time.Second, "used")
		w.free(p, 1)
		w.want(time.Minute, "")
		if left := p.Close("net-1"); left != 0 || len(w.made()) != 0 {
			t.Errorf("%d ports left", left)
		}
	})
}

// Too little quota or too few addresses for a batch: fewer ports are made. With none left the
// error has the reason.
func TestScarce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.set(func() { w.capacity = 11 })
		p := w.start(Marks{Low: 16, High: 16, Batch: 16})
		for n := range 11 {
			w.take(p, key, n)
		}
		_, err := p.Take(t.Context(), key, holder(99))
		if !errors.Is(err, ErrEmpty) {
			t.Fatal(err)
		}
		wait(time.Second)
		if _, err = p.Take(t.Context(), key, holder(99)); !errors.Is(err, ErrEmpty) || !errors.Is(err, errFull) {
			t.Errorf("error %v", err)
		}
		if !errors.Is(w.lastTold(), errFull) {
			t.Errorf("told %v", w.lastTold())
		}
		w.free(p, 3)
		w.take(p, key, 99)
		w.set(func() { w.capacity = 100 })
		w.want(time.Minute, repeat("ready", 16)+" "+repeat("used", 11))
		if w.lastTold() != nil {
			t.Errorf("told %v", w.lastTold())
		}
		w.sound()
	})
}

// While the cloud is away, ready ports serve, also after a restart. Refills back off, and
// drain the queue when it is back.
func TestCloudAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.take(w.start(marks), key, 1)
		synctest.Wait()
		w.set(func() { w.fault = func(string) (error, bool) { return errAway, false } })
		before := len(w.called())
		p := w.start(marks)
		for n := 2; n < 6; n++ {
			if _, err := p.Take(t.Context(), key, holder(n)); err != nil {
				t.Errorf("pod %d: %v", n, err)
			}
		}
		if _, err := p.Take(t.Context(), key, holder(6)); !errors.Is(err, ErrEmpty) {
			t.Errorf("error %v", err)
		}
		for range 300 { // pods that come and ask cause no calls
			wait(time.Second)
			if _, err := p.Take(t.Context(), key, holder(6)); !errors.Is(err, ErrEmpty) {
				t.Errorf("error %v", err)
			}
		}
		if n := len(w.called()) - before; n > 60 {
			t.Errorf("%d calls while the cloud is away for five minutes", n)
		}
		w.set(func() { w.fault = nil })
		w.take(p, key, 6)
		wait(time.Minute)
		synctest.Wait()
		if got := w.states(); strings.Count(got, "ready") < 4 || strings.Count(got, "used") != 6 {
			t.Errorf("when the cloud is back the slots are %q", got)
		}
		w.sound()
	})
}

// Other security groups: no port is handed out before it has them.
func TestGroupsChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.start(marks)
		w.take(p, key, 1)
		synctest.Wait()
		w.mu.Lock()
		w.network.GroupIDs = []string{"g2"}
		w.mu.Unlock()
		failed := false
		w.fails(func(call string) (error, bool) {
			if strings.HasPrefix(call, "change") && !failed {
				failed = true
				return errAway, true
			}
			return nil, false
		})
		wait(checkAfter + time.Second)
		synctest.Wait()
		w.want(0, "ready ready ready stale used")
		w.want(lastPause, "ready ready ready ready used")
		for n := 2; n < 6; n++ {
			if h := w.take(p, key, n); !slices.Equal(w.grouped(h.ID), []string{"g2"}) {
				t.Errorf("pod %d has a port with %v", n, w.grouped(h.ID))
			}
		}
	})
}

// The network of a pool is replaced by another of its name, or the machine of its node by
// another: ready ports go. While a pod has a port of before, the others get ports of their own:
// they do not wait for it. Then the pool has ports of the new one.
func TestNetworkReplaced(t *testing.T) {
	for name, replace := range map[string]func(n *v1alpha1.PortPoolNetwork){
		"network": func(n *v1alpha1.PortPoolNetwork) { n.ID = "net-2" },
		"machine": func(n *v1alpha1.PortPoolNetwork) { n.ParentPort = "machine-2" },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				p := w.start(marks)
				w.take(p, key, 1)
				synctest.Wait()
				w.set(func() { replace(&w.network) })
				w.want(checkAfter+time.Second, "used")
				if _, err := p.Take(t.Context(), key, holder(2)); !errors.Is(err, ErrOwn) || !errors.Is(err, errReplaced) {
					t.Errorf("error %v", err)
				}
				w.free(p, 1)
				w.want(lastPause+time.Second, repeat("ready", 4))
				h := w.take(p, key, 2)
				if now := w.network; h.Network.ID != now.ID || h.Network.ParentPort != now.ParentPort || w.made()[h.ID].Network != now.ID {
					t.Errorf("port %+v of %v", h, w.made()[h.ID])
				}
				w.sound()
			})
		})
	}
}

// The condition of a PortPool has a failure until its pool has enough ports, also if none have
// to be made for it.
func TestConditionFollowsThePorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.start(marks)
		w.take(p, key, 1)
		wait(time.Minute)
		p.stop()
		name := key.name(0)
		err := w.api.Edit(name, func(o *v1alpha1.PortPool) {
			o.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: reasonFailed}}
		})
		if err != nil {
			t.Fatal(err)
		}
		calls := len(w.called())
		w.set(func() { w.told = errFull })
		w.start(marks)
		wait(time.Minute)
		if got := w.lastTold(); got != nil {
			t.Errorf("told %v; the slots are %q", got, w.states())
		}
		if made := slices.DeleteFunc(w.called()[calls:], func(c string) bool { return !strings.HasPrefix(c, "make") }); len(made) > 0 {
			t.Errorf("calls %v", made)
		}
	})
}

// A node has so many pools at most. A pod beyond gets a port of its own.
func TestPoolsOfANode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.start(marks)
		for n := range maxKeys {
			w.take(p, Key{Node: "node-1", Network: fmt.Sprint("net-", n)}, n)
		}
		if _, err := p.Take(t.Context(), Key{Node: "node-1", Network: "further"}, holder(99)); !errors.Is(err, ErrOwn) || !strings.Contains(err.Error(), "16 pools") {
			t.Errorf("error %v", err)
		}
		w.take(p, Key{Node: "node-2", Network: "further"}, 99)
	})
}

// A key has several PortPools if one is full, up to its last.
func TestSeveralObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.start(marks)
		for n := range 2*maxSlots + 10 {
			w.take(p, key, n)
		}
		if all := w.api.List(); len(all) != 3 {
			t.Errorf("%d PortPools", len(all))
		}
		w.sound()
	})
}

// Pods that ask at once share writes.
func TestTakesShareWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.start(Marks{Low: 50, High: 60, Batch: 64})
		w.take(p, key, 0)
		synctest.Wait()
		before := w.api.Writes()
		w.api.Inject(func(string, *v1alpha1.PortPool) pooltest.Fault {
			wait(5 * time.Millisecond)
			return pooltest.None
		})
		var pods sync.WaitGroup
		for n := 1; n <= 40; n++ {
			pods.Go(func() { w.take(p, key, n) })
		}
		pods.Wait()
		wait(time.Minute)
		if n := w.api.Writes() - before; n > 6 {
			t.Errorf("%d writes for 40 pods", n)
		}
		w.sound()
	})
}
