package pool

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/pooltest"
)

// Somebody deletes a PortPool while its leader works. The pods whose records name its ports keep
// them, also if the event of the deletion comes late, and the next write finds it out.
func TestDeletedPortPool(t *testing.T) {
	for name, seen := range map[string]bool{"seen": true, "unseen": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				p := w.start(marks)
				first := w.take(p, key, 1)
				synctest.Wait()
				w.set(func() { w.recorded[first.ID] = holder(1) })
				if !seen {
					w.api.Unfeed()
				}
				if err := w.api.Edit(key.name(0), nil); err != nil {
					t.Fatal(err)
				}
				for n := 2; n < 20; n++ {
					if h := w.take(p, key, n); h.ID == first.ID {
						t.Errorf("pod %d got the port of pod 1", n)
					}
				}
				if h := w.take(p, key, 1); h.ID != first.ID {
					t.Errorf("the pod has %s now, it had %s", h.ID, first.ID)
				}
				wait(time.Minute)
				w.sound()
			})
		})
	}
}

// A port in the cloud that no PortPool has is adopted into its place. If it has none there, it
// is deleted after a while, unless a pod has it; soon if another port has its place.
func TestStrays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.start(marks)
		w.take(p, key, 1)
		w.want(0, "ready ready ready ready used")
		p.stop()
		for id, at := range map[string]Place{"own": {key.name(0), 40}, "taken": {key.name(0), 0}, "other": {"node-9-0000000000-0", 3}, "named": {"node-9-0000000000-0", 4}} {
			made := Made{Port: Port{ID: id, MAC: "fa:16:3e:01:00:00", Addresses: []string{"10.8.9.9/16"}}, Place: at, Network: "net-1", Host: "node-1"}
			w.set(func() { w.ports[id] = made })
		}
		w.set(func() { w.recorded["named"] = holder(9) })
		w.start(marks)
		w.want(cooldown+time.Second, "ready ready ready ready ready used")
		if n := len(w.made()); n != 9 {
			t.Errorf("%d ports, want 9: strays go too early", n)
		}
		wait(surplusAfter)
		synctest.Wait()
		if _, has := w.made()["taken"]; has {
			t.Errorf("port taken exists %v after the start", cooldown+surplusAfter)
		}
		wait(strayAfter - cooldown - surplusAfter - 2*time.Second)
		synctest.Wait()
		if n := len(w.made()); n != 8 {
			t.Errorf("%d ports, want 8: strays go too early", n)
		}
		wait(5 * time.Minute)
		synctest.Wait()
		for id, want := range map[string]bool{"taken": false, "other": false, "named": true} {
			if _, has := w.made()[id]; has != want {
				t.Errorf("port %s exists: %v, want %v", id, has, want)
			}
		}
	})
}

// Another process recorded another port for the same place: the surplus one is deleted.
func TestSurplusPort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		rival := slot{State: ready, PortPoolPort: Port{ID: "rival", MAC: "fa:16:3e:01:00:00", Addresses: []string{"10.8.9.9/16"}}}
		w.api.Inject(func(_ string, o *v1alpha1.PortPool) pooltest.Fault {
			w.api.Inject(nil)
			o = o.DeepCopy()
			o.Spec.Ports = []slot{rival}
			if _, err := w.api.Create(t.Context(), o); err != nil {
				t.Error(err)
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			w.ports["rival"] = Made{Port: rival.PortPoolPort, Place: Place{o.Name, 0}, Network: "net-1", Host: "node-1"}
			return pooltest.None
		})
		p := w.start(marks)
		w.take(p, key, 1)
		wait(time.Minute)
		w.sound()
	})
}

// The record of a pod decides who has a port, whatever a restore of etcd made of the PortPool
// while no controller ran. An event says so.
func TestRecordsDecide(t *testing.T) {
	usedFirst := func(o *v1alpha1.PortPool) *slot { return &o.Spec.Ports[in(o.Spec.Ports, used)] }
	for name, edit := range map[string]func(o *v1alpha1.PortPool){
		"made ready": func(o *v1alpha1.PortPool) {
			s := usedFirst(o)
			s.State, s.Pod = ready, nil
		},
		"another pod's": func(o *v1alpha1.PortPool) { usedFirst(o).Pod.Name = "thief" },
		"removed": func(o *v1alpha1.PortPool) {
			o.Spec.Ports = slices.DeleteFunc(o.Spec.Ports, func(s slot) bool { return s.State == used })
		},
		"everything gone": func(o *v1alpha1.PortPool) { o.Spec.Ports = nil },
		"deleted":         nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				p := w.start(marks)
				first := w.take(p, key, 1)
				synctest.Wait()
				p.stop()
				w.set(func() { w.recorded[first.ID] = holder(1) })
				if err := w.api.Edit(key.name(0), edit); err != nil {
					t.Fatal(err)
				}
				p = w.start(marks)
				synctest.Wait()
				for n := 2; n < 12; n++ {
					if h := w.take(p, key, n); h.ID == first.ID {
						t.Errorf("pod %d got the port of pod 1", n)
					}
				}
				if h, ok, err := p.Of(holder(1)); !ok || err != nil || h.ID != first.ID {
					t.Errorf("pod 1 has %+v, its record %s", h, first.ID)
				}
				if kept := name == "made ready" || name == "another pod's"; kept != slices.Contains(w.given(), first.ID) {
					t.Errorf("reported: %v", w.given())
				}
				wait(time.Hour)
				w.sound()
			})
		})
	}
}

// The record of a pod is still there when its port was taken back: the port stays free.
func TestRecordOutlivesRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.start(marks)
		first := w.take(p, key, 1)
		w.want(0, "ready ready ready ready used")
		w.set(func() { w.recorded[first.ID] = holder(1) })
		w.free(p, 1)
		for range 3 {
			wait(cooldown + time.Second) // the pool has written that the port is ready
			if err := w.api.Edit(key.name(0), func(o *v1alpha1.PortPool) {
				o.Spec.Ports = slices.DeleteFunc(o.Spec.Ports, func(s slot) bool { return s.ID == first.ID })
			}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait() // the watch has shown the change
			for range 2 {   // it is a stray, which is adopted
				p.Listed(slices.Collect(maps.Keys(w.made())))
			}
		}
		w.want(0, "cooling "+repeat("ready", 4))
		w.want(cooldown, repeat("ready", 5))
	})
}

// Two leaders at once, with lost requests and replies on both ways: no port has two pods, no
// pod has two ports, and in the end every port of the cloud is in a slot.
func TestTwoLeaders(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				r := rand.New(rand.NewPCG(seed, 1))
				var dice sync.Mutex
				roll := func(n int) int { dice.Lock(); defer dice.Unlock(); return r.IntN(n) }
				w.api.Inject(func(string, *v1alpha1.PortPool) pooltest.Fault {
					wait(time.Duration(roll(20)) * time.Millisecond)
					return pooltest.Fault(max(0, roll(20)-17))
				})
				w.fails(func(string) (error, bool) {
					wait(time.Duration(roll(500)) * time.Millisecond)
					if roll(8) > 0 {
						return nil, false
					}
					return errAway, roll(2) == 0
				})
				leaders := []*process{w.start(marks), w.start(marks)}
				var pods sync.WaitGroup
				var mu sync.Mutex
				has := map[string]int{}
				for n := range 60 {
					pods.Go(func() {
						p := leaders[roll(2)]
						for range 1 + roll(3) {
							wait(time.Duration(roll(20000)) * time.Millisecond)
							h := w.take(p, key, n)
							mu.Lock()
							if other, taken := has[h.ID]; taken {
								t.Errorf("%s is that of pod %d and of pod %d", h.ID, other, n)
							}
							has[h.ID] = n
							mu.Unlock()
							wait(time.Duration(roll(20000)) * time.Millisecond)
							mu.Lock()
							delete(has, h.ID)
							mu.Unlock()
							w.free(p, n)
						}
					})
				}
				pods.Wait()
				w.api.Inject(nil)
				w.set(func() { w.fault = nil })
				for _, p := range leaders {
					p.stop()
				}
				w.start(marks)
				wait(time.Hour / 2)
				w.sound()
			})
		})
	}
}

// The process ends at each call, once before and once after it took effect. The next one
// goes on: no port is unknown, none has two pods.
func TestCrashAtEachCall(t *testing.T) {
	const most, least = 30, 15
	for _, lost := range []bool{false, true} {
		for at := range most {
			t.Run(fmt.Sprint(lost, at), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					p := w.start(marks)
					crashed := make(chan struct{})
					var mu sync.Mutex
					calls := 0
					hit := func() bool {
						mu.Lock()
						defer mu.Unlock()
						calls++
						if calls == at+1 {
							close(crashed)
						}
						return calls > at
					}
					w.fails(func(string) (error, bool) {
						if !hit() {
							return nil, false
						}
						mu.Lock()
						defer mu.Unlock()
						return errAway, lost && calls == at+1
					})
					w.api.Inject(func(string, *v1alpha1.PortPool) pooltest.Fault {
						if !hit() {
							return pooltest.None
						}
						mu.Lock()
						defer mu.Unlock()
						if lost && calls == at+1 {
							return pooltest.LoseReply
						}
						return pooltest.LoseRequest
					})
					life, end := context.WithCancel(t.Context())
					go func() { <-crashed; end() }()
					var lived sync.WaitGroup
					lived.Go(func() { w.live(life, p) })
					lived.Wait()
					end()
					select {
					case <-crashed:
					default:
						close(crashed)
						if at < least {
							t.Errorf("only %d calls", calls)
						}
					}
					p.stop()
					w.set(func() { w.fault = nil })
					w.api.Inject(nil)
					p = w.start(marks)
					w.live(t.Context(), p)
					wait(time.Hour / 2)
					w.sound()
				})
			})
		}
	}
}

// live is what pods do until ctx ends: ten start, and every other ends.
func (w *world) live(ctx context.Context, p *process) {
	step := func(do func() error) {
		for ctx.Err() == nil && do() != nil {
			wait(time.Second)
		}
	}
	for n := range 10 {
		step(func() error { _, err := p.Take(ctx, key, holder(n)); return err })
		if n%2 == 1 {
			step(func() error { _, _, err := p.Free(ctx, holder(n-1)); return err })
		}
	}
}

// A controller ends while its request of ports is under way, and Neutron makes them after the
// next leader has compared the pools with the cloud. Two lists of garbage collection show them,
// and they are adopted; one is not enough, because a refill may be about to record them.
func TestPortsOfADeadLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.start(marks)
		w.take(p, key, 1)
		w.want(0, repeat("ready", 4)+" used")
		lists := func() (n int) {
			for _, call := range w.called() {
				if call == "list" {
					n++
				}
			}
			return n
		}
		before := lists()
		if _, err := w.Make(t.Context(), key, w.network, []Place{{key.name(0), 40}, {key.name(0), 41}}); err != nil {
			t.Fatal(err)
		}
		ids := slices.Collect(maps.Keys(w.made()))
		p.Listed(ids)
		w.want(time.Second, repeat("ready", 4)+" used")
		if n := lists(); n != before {
			t.Errorf("%d more comparisons after one list", n-before)
		}
		p.Listed(ids)
		w.want(time.Second, "cooling cooling "+repeat("ready", 4)+" used")
		p.Listed(ids)
		p.Listed(ids)
		synctest.Wait()
		if n := lists(); n != before+1 {
			t.Errorf("%d more comparisons, want 1", n-before)
		}
		w.sound()
	})
}

// Pools are switched off while there is no connection to the cloud. The PortPool stays until the
// cloud is read, and adopts the stray port, which is deleted as the others are. The comparison
// begins with the connection.
func TestStrayOfAPoolThatIsOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.start(marks)
		w.take(p, key, 1)
		w.want(0, repeat("ready", 4)+" used")
		w.free(p, 1)
		p.stop()
		if _, err := w.Make(t.Context(), key, w.network, []Place{{key.name(0), 40}}); err != nil {
			t.Fatal(err)
		}
		w.fails(func(call string) (error, bool) {
			if call == "list" {
				return errAway, false
			}
			return nil, false
		})
		p = w.start(Marks{})
		w.want(cooldown+5*time.Second, "")
		if len(w.api.List()) != 1 || len(w.made()) != 1 {
			t.Errorf("PortPools %v, ports %v; want both until the cloud is read", w.api.List(), w.made())
		}
		w.fails(nil)
		p.Connected()
		w.want(cooldown+time.Second, "")
		if len(w.api.List()) != 0 || len(w.made()) != 0 {
			t.Errorf("left: %v, %v", w.api.List(), w.made())
		}
	})
}

// Another took a ready port from the trunk of its node, or gave it another VLAN. It is ready again
// with the VLAN that it has now. The port of a pod stays.
func TestOtherVLAN(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.start(marks)
		held := w.take(p, key, 1)
		w.want(0, repeat("ready", 4)+" used")
		next, _ := p.Peek(key)
		w.set(func() {
			for id, vlan := range map[string]int32{next.ID: 7, held.ID: 9} {
				m := w.ports[id]
				m.VLAN = vlan
				w.ports[id] = m
			}
		})
		p.stop()
		p = w.start(marks)
		w.want(cooldown+time.Second, repeat("ready", 4)+" used")
		if got, _, _ := p.Of(holder(1)); got.VLAN != 0 {
			t.Errorf("the pod has %+v", got)
		}
		vlans := map[int32]int{}
		for n := 2; n < 6; n++ {
			vlans[w.take(p, key, n).VLAN]++
		}
		if vlans[7] != 1 || vlans[0] != 3 {
			t.Errorf("VLANs of ready ports: %v", vlans)
		}
	})
}

// The reply to a hand-out is lost, and its caller gives up. Another leader releases the port
// before this process has read the outcome: it takes no other port for the pod.
func TestHandOutWithoutCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.start(marks)
		w.take(p, key, 1)
		w.want(0, repeat("ready", 4)+" used")
		next := w.start(marks)
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		w.api.Inject(func(_ string, o *v1alpha1.PortPool) pooltest.Fault {
			if o.Spec.Used < 2 || ctx.Err() != nil {
				return pooltest.None
			}
			cancel()
			return pooltest.LoseReply
		})
		if _, err := p.Take(ctx, key, holder(2)); err == nil {
			t.Fatal("the hand-out succeeded")
		}
		synctest.Wait() // the next leader knows the hand-out, and this process waits to read it
		w.free(next, 2)
		wait(time.Second)
		synctest.Wait()
		if got := w.states(); strings.Count(got, "used") != 1 || strings.Count(got, "cooling") != 1 {
			t.Errorf("the slots are %q; want one used and one cooling", got)
		}
		w.sound()
	})
}
