package node

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/internal/node/report"
	"fairlead.dev/fairlead/test/delegatetest"
	"fairlead.dev/fairlead/test/nettest"
	"fairlead.dev/fairlead/test/nodetest"
)

// An ADD whose plugin fails leaves nothing: the plugins that ran get a DEL, and no others.
func TestDelegatedAddFails(t *testing.T) {
	executingNode(t, []string{"eth0", "net1", "net2"}, func(i []v1alpha1.Interface) {
		i[0].Chain = pluginsOf("third")
		delegates(&i[1], "first", "second")
		delegates(&i[2], "first")
	}, func(t *testing.T, n *node2) {
		n.Set(t, "second", "ADD", delegatetest.Does{Exit: 1, Answer: `{"code":100,"msg":"no device is left"}`})
		_, err := n.handle(n.request(cniproto.VerbAdd))
		nodetest.WantCode(t, err, cniproto.CodeInternal, "plug interface net1 of pod ns/p", "ADD of plugin second: no device is left")
		settle()
		n.wantCalls("ADD", "third ADD", "first ADD", "second ADD", "second DEL", "first DEL", "third DEL")
		n.wantNothing("ADD")
		if err := n.network.Checks()[plug.KindDelegate](); err != nil {
			t.Errorf("a restart would help: %v", err)
		}
	})
}

// The interface of another program is not touched, although a plugin's DEL would remove
// it by its name.
func TestDelegatedNameIsTaken(t *testing.T) {
	executingNode(t, []string{"eth0", "net1"}, furtherDelegated, func(t *testing.T, n *node2) {
		nettest.AddBridge(t, n.pod, "net1", 1500)
		_, err := n.handle(n.request(cniproto.VerbAdd))
		if err == nil || !strings.Contains(err.Error(), "net1") {
			t.Errorf("ADD: %v", err)
		}
		settle()
		n.wantCalls("ADD")
		n.wantRecords()
		if links := nettest.LinkNames(t, n.pod); !slices.Contains(links, "net1") || slices.Contains(links, "eth0") {
			t.Errorf("the pod has %v", links)
		}
	})
}

// A daemon that is killed before, during or after the ADD of plugins leaves its record:
// the next one executes their DEL.
func TestDelegatedKilled(t *testing.T) {
	kills := map[string]func(k *killing) *atomic.Bool{
		"before": func(k *killing) *atomic.Bool { return &k.before },
		"after":  func(k *killing) *atomic.Bool { return &k.after },
	}
	for name, tt := range map[string]struct {
		names      []string
		interfaces func([]v1alpha1.Interface)
		add, del   []string
	}{
		"delegate": {[]string{"eth0", "net1"}, furtherDelegated, []string{"first ADD", "second ADD"}, []string{"second DEL", "first DEL"}},
		// The link on the host would lead to the interface, and not to its plugins.
		"chain": {[]string{"eth0"}, chained, []string{"second ADD", "third ADD"}, []string{"third DEL", "second DEL"}},
	} {
		for when, kill := range kills {
			t.Run(name+" "+when, func(t *testing.T) {
				executingNode(t, tt.names, tt.interfaces, func(t *testing.T, n *node2) {
					kill(n.killing).Store(true)
					go func() { _, _ = n.handle(n.request(cniproto.VerbAdd)) }()
					settle()
					kill(n.killing).Store(false)
					n.restart()
					want := tt.del
					if when == "after" {
						want = slices.Concat(tt.add, tt.del)
					}
					n.wantCalls("a restart", want...)
					n.wantNothing("a restart")
					n.plugged()
					n.wantCalls("ADD again", tt.add...)
					nodetest.WantCode(t, n.del("c1"), 0)
					settle()
					n.wantNothing("DEL")
				})
			})
		}
	}
	t.Run("in the next interface", func(t *testing.T) {
		executingNode(t, []string{"eth0", "net1", "net2"}, func(i []v1alpha1.Interface) {
			delegates(&i[1], "first")
			delegates(&i[2], "second")
		}, func(t *testing.T, n *node2) {
			fifo := n.fifo("started")
			n.Set(t, "second", "ADD", delegatetest.Does{Hang: true, Started: fifo})
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				_, _ = n.daemon.Handle(ctx, n.request(cniproto.VerbAdd))
			}()
			_, _ = os.ReadFile(fifo)
			raw, err := os.ReadFile(filepath.Join(n.dir, ledger.RecordsDir, "c1"+ledger.RecordSuffix))
			if err != nil {
				t.Fatal(err)
			}
			var rec ledger.Record
			if err := json.Unmarshal(raw, &rec); err != nil {
				t.Fatal(err)
			}
			var results []bool
			for _, i := range rec.Interfaces() {
				results = append(results, i.Made.Plugins != nil && len(i.Made.Plugins.Result) > 0)
			}
			if want := []bool{false, true, false}; !slices.Equal(results, want) {
				t.Errorf("results on disk %v, want %v", results, want)
			}
			cancel()
			settle()
			n.wantNothing("cancelled")
		})
	})
}

// A DEL ends an ADD whose plugin hangs: the plugin is killed and its DEL executed.
func TestDelegatedHangs(t *testing.T) {
	executingNode(t, []string{"eth0", "net1"}, furtherDelegated, func(t *testing.T, n *node2) {
		fifo := n.fifo("started")
		n.Set(t, "second", "ADD", delegatetest.Does{Hang: true, Started: fifo})
		result := make(chan error, 1)
		go func() {
			_, err := n.handle(n.request(cniproto.VerbAdd))
			result <- err
		}()
		if _, err := os.ReadFile(fifo); err != nil {
			t.Fatal(err)
		}
		nodetest.WantCode(t, n.del("c1"), 0)
		nodetest.WantCode(t, <-result, cniproto.CodeUnknownContainer)
		settle()
		calls := n.wantCalls("all", "first ADD", "second ADD", "second DEL", "first DEL")
		if err := syscall.Kill(calls[1].PID, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("the plugin lives: %v", err)
		}
		n.wantNothing("DEL")
	})
}

// A DEL that fails is retried until it succeeds. Until then the addresses are not free
// (multus#1239), and other sandboxes are not delayed.
func TestDelegatedDelFails(t *testing.T) {
	for name, tt := range map[string]struct{ breaks, repairs func(n *node2) }{
		"the plugin fails": {
			func(n *node2) { n.Set(n.t, "second", "DEL", delegatetest.Does{Exit: 1, Stderr: "busy"}) },
			func(n *node2) { n.Set(n.t, "second", "DEL", delegatetest.Does{}) },
		},
		"the plugin is gone": {
			func(n *node2) { n.Remove(n.t, "second") },
			func(n *node2) { n.Install(n.t, "second") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			executingNode(t, []string{"eth0", "net1"}, furtherDelegated, func(t *testing.T, n *node2) {
				n.plugged()
				n.deleteAttachment(n.key)
				tt.breaks(n)
				nodetest.WantCode(t, n.del("c1"), 0)
				if links := nettest.LinkNames(t, n.pod); !slices.Equal(links, []string{"lo"}) {
					t.Errorf("the pod has %v", links)
				}
				time.Sleep(report.RetryLast) //nolint:forbidigo // the bubble's clock
				settle()
				n.end()
				sweeps()
				n.restart()
				nodetest.WantCode(t, n.del("c1"), 0)
				n.wantRecords("c1")
				n.wantWrites(n.key, "Attached/c1")
				tt.repairs(n)
				n.Calls(t)
				time.Sleep(2 * report.RetryLast) //nolint:forbidigo // the bubble's clock
				settle()
				for _, c := range n.wantCalls("a retry", "second DEL", "first DEL") {
					if c.Env["CNI_NETNS"] != "" {
						t.Errorf("%s: namespace %q, which has ended", c.Verb(), c.Env["CNI_NETNS"])
					}
				}
				n.wantNothing("a retry")
				n.wantWrites(n.key, "Attached/c1", "Detached/c1")
			})
		})
	}
}

// A sandbox that ends without a DEL of the runtime gets the DEL of its plugins, by the
// sweep, a GC or the next daemon.
func TestDelegatedSandboxIsDead(t *testing.T) {
	for name, do := range map[string]func(n *node2){
		"sweep":   func(*node2) { sweeps() },
		"GC":      func(n *node2) { _, _ = n.handle(gcRequest(`,"cni.dev/valid-attachments":[]`)) },
		"restart": func(n *node2) { n.restart() },
	} {
		t.Run(name, func(t *testing.T) {
			executingNode(t, []string{"eth0"}, func(i []v1alpha1.Interface) { delegates(&i[0], "first") }, func(t *testing.T, n *node2) {
				n.plugged()
				sweeps()
				n.wantRecords("c1")
				n.end()
				n.Calls(t)
				do(n)
				settle()
				if verbs := delegatetest.Verbs(n.Calls(t)); !slices.Contains(verbs, "first DEL") {
					t.Errorf("calls %q", verbs)
				}
				n.wantNothing(name)
			})
		})
	}
}

// The record of a sandbox was damaged. Its plugins are not known, and its PodAttachment is not
// Detached before the namespace that the DEL named has ended.
func TestDelegatedRecordIsDamaged(t *testing.T) {
	executingNode(t, []string{"eth0", "net1"}, func(i []v1alpha1.Interface) {
		furtherDelegated(i)
		i[0].Chain = pluginsOf("third")
	}, func(t *testing.T, n *node2) {
		n.plugged()
		n.stop()
		file := n.damageRecord()
		n.start()
		settle()
		n.kernel.holds(n.holding)
		n.deleteAttachment(n.key)
		sweeps()
		n.wantWrites(n.key, "Attached/c1")
		n.Calls(t)
		_, err := n.handle(n.request(cniproto.VerbDel))
		nodetest.WantCode(t, err, 0)
		n.wantCalls("DEL")
		settle()
		sweeps()
		n.wantWrites(n.key, "Attached/c1")
		n.end()
		sweeps()
		if err := os.Remove(file + ledger.DamagedSuffix); err != nil {
			t.Error(err)
		}
		n.wantNothing("DEL")
		n.wantWrites(n.key, "Attached/c1", "Detached/c1")
	})
}
