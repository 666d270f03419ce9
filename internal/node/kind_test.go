package node

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/netdev/kinds"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/netdev/plug/routed"
	"fairlead.dev/fairlead/internal/node/answer"
	"fairlead.dev/fairlead/internal/node/background"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/internal/node/report"
	"fairlead.dev/fairlead/test/nettest"
	"fairlead.dev/fairlead/test/nodetest"
	"fairlead.dev/fairlead/test/plugtest"
)

// kindOf returns the kind of a binding for a table that has one kind more than Binding
// has members. The bridge "nowhere" stands for the additional kind.
func kindOf(b v1alpha1.Binding) string {
	if b.Bridge != nil && b.Bridge.Name == plugtest.KindNowhere {
		return plugtest.KindNowhere
	}
	return plug.KindRouted
}

// faulty is a kind whose Remove fails, or after whose Make the daemon is killed.
type faulty struct {
	plug.Kind
	killed, stuck atomic.Bool
}

func (f *faulty) Make(ctx context.Context, ns *link.Namespace, i plug.Interface) error {
	err := f.Kind.Make(ctx, ns, i)
	if f.killed.Load() {
		runtime.Goexit()
	}
	return err
}

func (f *faulty) Remove(ctx context.Context, m plug.Made) error {
	if f.stuck.Load() {
		return errors.New("device or resource busy")
	}
	return f.Kind.Remove(ctx, m)
}

// node1 is a node whose pods are network namespaces, with a kind that has no link on the
// host. It has pod p with sandbox c1.
type node1 struct {
	*podNode
	nowhere *faulty
	// last is the name of the pod's last interface, which is of the kind nowhere.
	last string
}

// everyNode runs a test twice: with a pod that has only an interface of the kind nowhere,
// and with a pod that has a routed interface too.
func everyNode(t *testing.T, test func(*testing.T, *node1)) {
	for name, interfaces := range map[string][]string{"alone": {"eth0"}, "beside a routed one": {"eth0", "net1"}} {
		t.Run(name, func(t *testing.T) {
			nettest.NeedRoot(t)
			n := &node1{podNode: newPodNode(t), nowhere: &faulty{Kind: plugtest.Nowhere()}, last: interfaces[len(interfaces)-1]}
			n.hostLinks = nettest.LinkNames(t, n.host.Namespace())
			table := kinds.New(n.host, kindOf, map[string]plug.Kind{
				plug.KindRouted: routed.New(n.host, nil), plugtest.KindNowhere: n.nowhere,
			})
			onTestNodeWith(t, table, func(w *testNode) {
				pa := nodetest.Attachment("p", "u1", interfaces...)
				last := &pa.Spec.Interfaces[len(interfaces)-1]
				last.Binding = v1alpha1.Binding{Bridge: &v1alpha1.BridgeBinding{Name: plugtest.KindNowhere}}
				last.Gateways, last.MTU = nil, 1500
				n.serve(w, pa)
				test(w.t, n)
			})
		})
	}
}

// sweeps waits for a sweep.
func sweeps() {
	time.Sleep(background.SweepInterval) //nolint:forbidigo // the bubble's clock
	settle()
}

// end ends the pod's namespace, as a runtime does.
func (n *node1) end() {
	n.t.Helper()
	if err := n.pod.Close(); err != nil {
		n.t.Fatal(err)
	}
	nettest.DropPath(n.t, n.pod.Path())
	if err := os.Remove(n.pod.Path()); err != nil {
		n.t.Fatal(err)
	}
}

// wantPlugged checks that the pod has its interface and that the record names its kind.
func (n *node1) wantPlugged(when string) {
	n.t.Helper()
	if links := nettest.LinkNames(n.t, n.pod); !slices.Contains(links, n.last) {
		n.t.Errorf("%s: the pod has %v, want %s", when, links, n.last)
	}
	n.wantRecords("c1")
	rec := n.network.ledger.Get("c1")
	if rec == nil || rec.Plug() == nil {
		n.t.Fatalf("%s: no record of an ADD", when)
	}
	made := rec.Plug().Interfaces[len(rec.Plug().Interfaces)-1].Made
	want := plug.Made{Kind: plugtest.KindNowhere, ContainerID: "c1", Name: n.last, Namespace: n.pod.Place()}
	if diff := cmp.Diff(want, made); rec.Plug().State != ledger.Attached || diff != "" {
		n.t.Errorf("%s: the ADD is %s (-want +made):\n%s", when, rec.Plug().State, diff)
	}
}

// wantNothing checks that nothing of the pod is left, on the host and in its namespace if
// that exists.
func (n *node1) wantNothing(when string) {
	n.t.Helper()
	n.wantRecords()
	if diff := cmp.Diff(n.hostLinks, nettest.LinkNames(n.t, n.host.Namespace())); diff != "" {
		n.t.Errorf("%s: links of the host (-before +after):\n%s", when, diff)
	}
	if n.pod.FD() < 0 {
		return
	}
	if links := nettest.LinkNames(n.t, n.pod); !slices.Equal(links, []string{"lo"}) {
		n.t.Errorf("%s: the pod has %v", when, links)
	}
}

// A live sandbox without a link on the host is plugged, checked and adopted.
func TestKindWithoutHostLinkLives(t *testing.T) {
	everyNode(t, func(t *testing.T, n *node1) {
		if n.network.Checks()[plugtest.KindNowhere] == nil {
			t.Error("the kind has no check of its health")
		}
		raw := n.plugged()
		res, err := types100.NewResult(raw)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, i := range res.(*types100.Result).Interfaces {
			names = append(names, i.Name)
		}
		want := []string{"eth0"}
		if n.last != "eth0" {
			want = []string{plug.RoutedName("c1", "eth0"), "eth0", n.last}
		}
		if !slices.Equal(names, want) {
			t.Errorf("ADD answers with %v, want %v", names, want)
		}
		n.wantPlugged("ADD")
		nodetest.WantCode(t, n.check(raw), 0)
		sweeps()
		n.wantPlugged("a sweep")
		if _, err := n.handle(gcRequest(`,"cni.dev/valid-attachments":[]`)); err != nil {
			t.Errorf("GC: %v", err)
		}
		settle()
		n.wantPlugged("a GC that lists nothing")
		n.restart()
		n.wantPlugged("a restart")
		if again := n.plugged(); string(again) != string(raw) {
			t.Errorf("ADD again: %s, want %s", again, raw)
		}
		nodetest.WantCode(t, n.check(raw), 0)
		n.wantWrites(n.key, "Attached/c1")

		if err := n.pod.With(func(c *link.Conn) error { return c.Do(link.Remove(n.last)) }); err != nil {
			t.Fatal(err)
		}
		err = n.check(raw)
		nodetest.WantCode(t, err, answer.CodeDiffers)
		if e := cniproto.AsError(err); !strings.Contains(e.Details, "interface "+n.last+" is missing") {
			t.Errorf("CHECK without %s: %s", n.last, e.Details)
		}
		sweeps()
		n.wantRecords("c1") // the pod lives
	})
}

// A sandbox is removed by its DEL, or without a DEL when its namespace has ended.
func TestKindWithoutHostLinkGoes(t *testing.T) {
	del := func(n *node1) error { return n.del("c1") }
	for _, tt := range []struct {
		name  string
		ended bool
		do    func(n *node1) error
	}{
		{"DEL", false, del},
		{"DEL after the namespace", true, del},
		{"sweep", true, func(*node1) error { sweeps(); return nil }},
		{"GC", true, func(n *node1) error {
			_, err := n.handle(gcRequest(`,"cni.dev/valid-attachments":[]`))
			return err
		}},
		{"restart", true, func(n *node1) error { n.restart(); return nil }},
		{"the PodAttachment is deleted", true, func(*node1) error { return nil }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			everyNode(t, func(t *testing.T, n *node1) {
				n.plugged()
				if tt.ended {
					n.end()
				}
				if err := tt.do(n); err != nil {
					t.Error(err)
				}
				n.deleteAttachment(n.key)
				settle()
				n.wantNothing(tt.name)
				n.wantWrites(n.key, "Attached/c1", "Detached/c1")
			})
		})
	}
}

// killed kills the daemon between Make and the answer of an ADD, and starts another.
func (n *node1) killed() {
	n.t.Helper()
	n.nowhere.killed.Store(true)
	go func() { _, _ = n.handle(n.request(cniproto.VerbAdd)) }()
	settle()
	if links := nettest.LinkNames(n.t, n.pod); !slices.Contains(links, n.last) {
		n.t.Errorf("the ADD that was killed has made no %s: %v", n.last, links)
	}
	n.nowhere.killed.Store(false)
	n.restart()
}

// The interfaces of a killed ADD have no link on the host: the next daemon finds them in
// the record.
func TestKindWithoutHostLinkKilled(t *testing.T) {
	t.Run("ADD again", func(t *testing.T) {
		everyNode(t, func(t *testing.T, n *node1) {
			n.killed()
			n.wantNothing("a restart")
			raw := n.plugged()
			n.wantPlugged("ADD again")
			nodetest.WantCode(t, n.check(raw), 0)
			nodetest.WantCode(t, n.del("c1"), 0)
			settle()
			n.wantNothing("DEL")
		})
	})
	t.Run("DEL", func(t *testing.T) {
		everyNode(t, func(t *testing.T, n *node1) {
			n.nowhere.stuck.Store(true)
			n.killed()
			_, err := n.handle(n.request(cniproto.VerbDel))
			nodetest.WantCode(t, err, 0)
			n.deleteAttachment(n.key)
			settle()
			n.wantWrites(n.key) // the interface still has its addresses
			n.nowhere.stuck.Store(false)
			time.Sleep(report.RetryLast) //nolint:forbidigo // the bubble's clock
			settle()
			n.wantNothing("DEL")
			n.wantWrites(n.key, "Detached/c1")
		})
	})
	t.Run("the namespace ends", func(t *testing.T) {
		everyNode(t, func(t *testing.T, n *node1) {
			n.nowhere.stuck.Store(true)
			n.killed()
			n.end()
			n.nowhere.stuck.Store(false)
			sweeps()
			n.wantNothing("the namespace has ended")
		})
	})
}

// holding is plug.Holding for the namespace of the pod alone.
func (n *node1) holding(ctx context.Context, addrs []netip.Addr) (string, error) {
	ns, err := n.pod.Place().Open()
	if errors.Is(err, link.ErrNotNamespace) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer ns.Close()
	inside, err := plug.Namespaces{}.Inspect(ctx, ns)
	for _, i := range inside {
		if slices.ContainsFunc(i.Addresses, func(p netip.Prefix) bool { return slices.Contains(addrs, p.Addr()) }) {
			return n.pod.Path(), nil
		}
	}
	return "", err
}

// No link on the host belongs to a sandbox whose record was damaged. Its addresses are
// free when no namespace has them.
func TestKindWithoutHostLinkDamaged(t *testing.T) {
	everyNode(t, func(t *testing.T, n *node1) {
		n.plugged()
		n.stop()
		file := n.damageRecord()
		n.start()
		settle()
		n.kernel.holds(n.holding)
		n.deleteAttachment(n.key)
		sweeps()
		n.wantWrites(n.key, "Attached/c1")
		if _, err := n.handle(n.request(cniproto.VerbDel)); err != nil {
			t.Errorf("DEL: %v", err)
		}
		settle()
		if n.last != "eth0" { // no link names this sandbox
			sweeps()
			n.wantWrites(n.key, "Attached/c1")
			n.end()
			sweeps()
		}
		if err := os.Remove(file + ledger.DamagedSuffix); err != nil {
			t.Error(err)
		}
		n.wantNothing("all")
		n.wantWrites(n.key, "Attached/c1", "Detached/c1")
	})
}
