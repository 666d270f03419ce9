package node

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/node/background"
	"fairlead.dev/fairlead/test/nettest"
	"fairlead.dev/fairlead/test/nodetest"
)

// After a daemon is killed at any step of a change, the next daemon finishes the change. The
// status confirms it only then.
func TestHotPlugKilled(t *testing.T) {
	for _, step := range []string{"make", "made", "remove", "removed"} {
		for network, kind := range map[string]func(*runningNode) *stepper{
			"p0":  func(n *runningNode) *stepper { return n.macvlan },
			"br1": func(n *runningNode) *stepper { return n.bridge },
		} {
			t.Run(step+" on "+network, func(t *testing.T) {
				onRunningNode(t, func(n *runningNode) {
					raw := n.plugged()
					unplug := strings.HasPrefix(step, "remove")
					if unplug {
						n.asks(on("net1", network, "10.9.0.5"))
					}
					before := n.api.get(n.key).Status.Sandbox.Generation
					var killed atomic.Bool
					kind(n).on(func(_ context.Context, at string) error {
						if at == step && killed.CompareAndSwap(false, true) {
							n.api.setDown(errors.New("killed"))
							runtime.Goexit()
						}
						return nil
					})
					if unplug {
						n.drops("net1")
					} else {
						n.asks(on("net1", network, "10.9.0.5"))
					}
					if !killed.Load() {
						n.t.Fatal("the step did not come")
					}
					if got := n.api.get(n.key).Status.Sandbox.Generation; got != before {
						n.t.Errorf("generation %d is confirmed before the change is done", got)
					}
					n.api.setDown(nil)
					n.restart()
					if unplug {
						n.wantHas("restart")
						n.wantConfirmed("restart")
					} else {
						n.wantHas("restart", "net1")
						n.wantConfirmed("restart", "net1")
					}
					nodetest.WantCode(n.t, n.check(raw), 0)
					n.ends()
				})
			})
		}
	}
}

// A daemon that cannot reach the API server removes what its killed predecessor had begun,
// and plugs it again when it knows the PodAttachment.
func TestHotPlugKilledWithoutTheAPIServer(t *testing.T) {
	onRunningNode(t, func(n *runningNode) {
		n.plugged()
		n.macvlan.on(func(_ context.Context, at string) error {
			if at == "made" {
				runtime.Goexit()
			}
			return nil
		})
		n.asks(on("net1", "p0", "10.9.0.5"))
		n.macvlan.on(func(context.Context, string) error { return nil })
		pa := n.api.get(n.key)
		n.api.remove(n.key)
		n.restart()
		n.wantHas("restart without the API server")
		n.api.put(pa)
		settle()
		n.wantHas("restart", "net1")
		n.wantConfirmed("restart", "net1")
		n.ends()
	})
}

// The PodAttachment becomes known while the daemon removes what its killed predecessor had
// begun again after a failure.
func TestHotPlugKilledInARetry(t *testing.T) {
	onRunningNode(t, func(n *runningNode) {
		n.plugged()
		tries := 0
		n.macvlan.on(func(_ context.Context, at string) error {
			switch {
			case at == "make":
				if tries++; tries == 1 {
					return errors.New("device or resource busy")
				}
			case at == "made" && tries > 1:
				runtime.Goexit()
			}
			return nil
		})
		n.asks(on("net1", "p0", "10.9.0.5"))
		retries()
		pa := n.api.get(n.key)
		n.api.remove(n.key)
		n.macvlan.on(func(_ context.Context, at string) error {
			if at == "removed" {
				n.macvlan.on(func(context.Context, string) error { return nil })
				n.api.put(pa)
			}
			return nil
		})
		n.restart()
		n.wantHas("restart", "net1")
		n.wantReady(n.key, "c1")
		n.ends()
	})
}

// A DEL in the middle of a change cancels it and removes everything.
func TestDELDuringHotPlug(t *testing.T) {
	for _, step := range []string{"make", "made", "remove"} {
		t.Run(step, func(t *testing.T) {
			onRunningNode(t, func(n *runningNode) {
				n.plugged()
				if step == "remove" {
					n.asks(on("net1", "p0", "10.9.0.5"))
				}
				n.macvlan.on(func(ctx context.Context, at string) error {
					if at != step {
						return nil
					}
					n.macvlan.on(func(context.Context, string) error { return nil })
					<-ctx.Done() // until the DEL comes
					if at == "made" {
						return nil
					}
					return context.Cause(ctx)
				})
				if step == "remove" {
					n.drops("net1")
				} else {
					n.asks(on("net1", "p0", "10.9.0.5"))
				}
				start := time.Now()
				n.ends()
				if waited := time.Since(start); waited > time.Second {
					n.t.Errorf("DEL waited %s", waited)
				}
				retries()
				n.wantNothing("later")
			})
		})
	}
}

// An interface that cannot be plugged keeps no other from being plugged or unplugged. The
// pod is not ready, its condition and an event name the interface and the reason, and it is
// plugged when the reason is gone.
func TestHotPlugFails(t *testing.T) {
	onRunningNode(t, func(n *runningNode) {
		n.asks(on("net1", "br1", "10.9.1.5"))
		raw := n.plugged()
		n.spec(func(s *v1alpha1.PodAttachmentSpec) { s.Unplug = []string{"net1"} })
		n.asks(on("net2", "p7", "10.9.7.5"), on("net3", "p0", "10.9.0.5"))
		n.wantHas("a network without its parent", "net3")
		n.wantConfirmed("a network without its parent", "net3")
		n.wantReady(n.key, "c1", "net2")
		if m := meta.FindStatusCondition(n.api.get(n.key).Status.Conditions, v1alpha1.ConditionReady).Message; !strings.Contains(m, "p7") {
			n.t.Errorf("the condition says %q", m)
		}
		n.api.mu.Lock()
		reports := slices.Clone(n.api.reports)
		n.api.mu.Unlock()
		if len(reports) != 1 || reports[0].Reason != reasonNotPlugged || !strings.Contains(reports[0].Note, "plug interface net2") {
			n.t.Errorf("events %+v", reports)
		}
		nodetest.WantCode(n.t, n.check(raw), 0)
		writes := len(n.api.written(n.key))
		retries()
		if more := len(n.api.written(n.key)) - writes; more > 0 {
			n.t.Errorf("%d writes while it fails", more)
		}
		n.restart()
		n.wantReady(n.key, "c1", "net2")
		nettest.AddDevice(n.t, n.host, "p7")
		n.hostLinks = append(n.hostLinks, "p7", "xp7")
		slices.Sort(n.hostLinks)
		retries()
		n.wantHas("the parent is there", "net2", "net3")
		n.wantConfirmed("the parent is there", "net3", "net2")
		n.wantReady(n.key, "c1")
		n.ends()
	})
}

// An interface that cannot be removed is not confirmed, so its address is not released,
// until it is gone.
func TestHotUnplugFails(t *testing.T) {
	onRunningNode(t, func(n *runningNode) {
		n.asks(on("net1", "p0", "10.9.0.5"))
		n.plugged()
		generation := n.api.get(n.key).Generation
		n.macvlan.on(func(_ context.Context, at string) error {
			if at == "remove" {
				return errors.New("device or resource busy")
			}
			return nil
		})
		n.drops("net1")
		n.asks(on("net2", "br1", "10.9.1.5"))
		retries()
		n.wantHas("unplug fails", "net1", "net2")
		n.wantStatus("unplug fails", generation, "net1", "net2")
		n.restart()
		n.wantStatus("restart", generation, "net1", "net2")
		n.macvlan.on(func(context.Context, string) error { return nil })
		retries()
		n.wantHas("unplugged", "net2")
		n.wantConfirmed("unplugged", "net2")
		n.ends()
	})
}

// An interface of another program that has the name is left alone.
func TestHotPlugOfANameThatIsTaken(t *testing.T) {
	onRunningNode(t, func(n *runningNode) {
		n.plugged()
		nettest.AddBridge(n.t, n.pod, "net1", 1500)
		n.asks(on("net1", "p0", "10.9.0.5"))
		retries()
		n.wantHas("the name is taken", "net1")
		n.wantConfirmed("the name is taken")
		n.wantReady(n.key, "c1", "net1")
		if err := n.pod.With(func(c *link.Conn) error { return c.Do(link.Remove("net1")) }); err != nil {
			n.t.Fatal(err)
		}
		retries()
		n.wantHas("the name is free", "net1")
		n.wantReady(n.key, "c1")
		n.ends()
	})
}

// A pod is not ready before an interface that it gets is active.
func TestHotPlugWaitsForActive(t *testing.T) {
	onRunningNode(t, func(n *runningNode) {
		n.plugged()
		i := on("net1", "p0", "10.9.0.5")
		i.WaitForActive = true
		n.asks(i)
		n.wantHas("plug", "net1")
		n.wantConfirmed("plug", "net1")
		n.wantReady(n.key, "c1", "net1")
		n.api.change(n.key, func(pa *v1alpha1.PodAttachment) {
			pa.Status.Interfaces = []v1alpha1.InterfaceStatus{{Name: "net1", Active: true}}
		})
		settle()
		n.wantReady(n.key, "c1")
		n.ends()
	})
}

// The node confirms nothing while another plugin has the addresses of an interface that is
// to be unplugged.
func TestUnplugOfAnotherPlugin(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		key := w.pod("web", "uid-1")
		w.further(key, "net1")
		w.mustIPAM("ADD", "c1", "net1")
		w.mustAdd("c1", "web", "uid-1")
		before := w.api.get(key).Generation
		w.api.change(key, func(pa *v1alpha1.PodAttachment) {
			pa.Spec.Unplug = []string{"net1"}
			pa.Generation++
		})
		settle()
		if got := w.api.get(key).Status.Sandbox.Generation; got != before {
			w.t.Errorf("generation %d is confirmed", got)
		}
		w.mustIPAM("DEL", "c1", "net1")
		if got := w.api.get(key).Status.Sandbox.Generation; got != before+1 {
			w.t.Errorf("generation %d is confirmed, want %d", got, before+1)
		}
		if _, err := w.ipam("ADD", "c1", "net1", "web", "uid-1", macvlan); err == nil {
			w.t.Error("an interface that is to be unplugged gets addresses")
		}
	})
}

// The interface of executed plugins comes and goes as any other. The addresses that the
// plugins chose are no reason to plug it again.
func TestHotPlugOfPlugins(t *testing.T) {
	executingNode(t, []string{"eth0"}, func([]v1alpha1.Interface) {}, func(t *testing.T, n *node2) {
		raw := n.plugged()
		n.api.change(n.key, func(pa *v1alpha1.PodAttachment) {
			net1 := v1alpha1.Interface{Name: "net1", Network: "ns/blue", Driver: "native", Addresses: []string{"10.9.0.99/24"}}
			delegates(&net1, "first", "second")
			pa.Spec.Interfaces = append(pa.Spec.Interfaces, net1)
			pa.Generation++
		})
		settle()
		n.wantReady(n.key, "c1")
		n.wantCalls("plug", "first ADD", "second ADD")
		links := n.api.get(n.key).Status.Sandbox.Links
		if len(links) != 2 || links[1].Name != "net1" || !slices.Equal(links[1].Addresses, []string{blueAddress}) {
			t.Errorf("the status has %+v", links)
		}
		n.restart()
		n.wantCalls("restart")
		n.api.change(n.key, func(pa *v1alpha1.PodAttachment) {
			pa.Spec.Unplug = []string{"net1"}
			pa.Generation++
		})
		settle()
		n.wantCalls("unplug", "second DEL", "first DEL")
		nodetest.WantCode(t, n.check(raw), 0)
		if s := n.api.get(n.key).Status.Sandbox; s.Links != nil || s.Generation != 3 {
			t.Errorf("the status has generation %d, links %+v", s.Generation, s.Links)
		}
		nodetest.WantCode(t, n.del("c1"), 0)
		settle()
		n.wantNothing("DEL")
	})
}

// A running pod whose record was damaged does not follow a change of its networks: what the
// sandbox has is not known. The condition says so, and keeps the interfaces that the pod has.
func TestHotPlugWithADamagedRecord(t *testing.T) {
	onRunningNode(t, func(n *runningNode) {
		n.asks(on("net1", "p0", "10.9.0.5"))
		n.plugged()
		n.stop()
		n.damageRecord()
		n.start()
		settle()
		n.wantReady(n.key, "c1")
		generation := n.api.get(n.key).Generation
		n.asks(on("net2", "p1", "10.9.2.5"))
		n.wantHas("a damaged record", "net1")
		n.wantReady(n.key, "c1", "net2")
		n.wantStatus("a damaged record", generation, "net1")
		if m := meta.FindStatusCondition(n.api.get(n.key).Status.Conditions, v1alpha1.ConditionReady).Message; !strings.Contains(m, "was damaged: replace the pod") {
			n.t.Errorf("the condition says %q", m)
		}
		n.drops("net1")
		n.wantReady(n.key, "c1", "net1", "net2")
		n.wantStatus("a damaged record, unplug", generation, "net1")
		writes := len(n.api.written(n.key))
		n.pass(2 * background.SweepInterval)
		if more := len(n.api.written(n.key)) - writes; more > 0 {
			n.t.Errorf("%d writes while nothing changes", more)
		}
	})
}
