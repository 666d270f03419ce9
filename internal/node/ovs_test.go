package node

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/netdev/host"
	"fairlead.dev/fairlead/internal/netdev/kinds"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/nft"
	"fairlead.dev/fairlead/internal/node/answer"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/internal/node/report"
	"fairlead.dev/fairlead/test/nettest"
	"fairlead.dev/fairlead/test/nodetest"
	"fairlead.dev/fairlead/test/ovslab"
)

// ovsNode is a node whose pod p, with sandbox c1, is a port of a real Open vSwitch.
type ovsNode struct {
	*podNode
	sw   *ovslab.OVS
	port string // the name of its host end
}

// onOVSNode runs a test on such a node, with the pod plugged. result is the answer of ADD.
func onOVSNode(t *testing.T, test func(t *testing.T, n *ovsNode, result []byte)) {
	t.Helper()
	nettest.NeedRoot(t)
	n := &ovsNode{podNode: newPodNode(t), port: plug.HostName("c1", "eth0")}
	n.sw = ovslab.New(t, n.host)
	n.hostLinks = nettest.LinkNames(t, n.host.Namespace())
	table := kinds.All(n.host).OpenVSwitch(n.host, n.sw.Socket(), ovslab.NewShutter(n.host))
	onTestNodeWith(t, table, func(w *testNode) {
		pa := nodetest.Attachment("p", "u1", "eth0")
		i := &pa.Spec.Interfaces[0]
		i.MAC, i.MTU, i.Gateways = "fa:16:3e:00:00:01", 1442, nil
		i.Binding = v1alpha1.Binding{OVS: &v1alpha1.OVSBinding{PortID: "3f1c2d4e-0000-4000-8000-00000000000a"}}
		n.serve(w, pa)
		raw := n.plugged()
		n.wantPort("ADD")
		test(w.t, n, raw)
	})
}

func (n *ovsNode) wantPort(when string) {
	n.t.Helper()
	if ports := n.sw.Ports(); !slices.Equal(ports, []string{n.port}) {
		n.t.Errorf("%s: br-int has the ports %q, want %s", when, ports, n.port)
	}
	n.wantRecords("c1")
}

func (n *ovsNode) wantNothing(when string) {
	n.t.Helper()
	n.wantRecords()
	if diff := cmp.Diff(n.hostLinks, nettest.LinkNames(n.t, n.host.Namespace())); diff != "" {
		n.t.Errorf("%s: links of the host (-before +after):\n%s", when, diff)
	}
	if left := slices.Concat(n.sw.Ports(), n.sw.Shut()); len(left) > 0 {
		n.t.Errorf("%s: %q are left in Open vSwitch and the packet filter", when, left)
	}
}

// end ends the pod's namespace, as a runtime does.
func (n *ovsNode) end() {
	n.t.Helper()
	if err := n.pod.Close(); err != nil {
		n.t.Fatal(err)
	}
	nettest.DropPath(n.t, n.pod.Path())
	if err := os.Remove(n.pod.Path()); err != nil {
		n.t.Fatal(err)
	}
}

// A port lives as long as its pod, and is repaired when another program removes it.
func TestOVSLives(t *testing.T) {
	onOVSNode(t, func(t *testing.T, n *ovsNode, raw []byte) {
		nodetest.WantCode(t, n.check(raw), 0)
		sweeps()
		n.wantPort("a sweep")
		if _, err := n.handle(gcRequest(`,"cni.dev/valid-attachments":[]`)); err != nil {
			t.Errorf("GC: %v", err)
		}
		settle()
		n.wantPort("a GC that lists nothing")
		n.restart()
		n.wantPort("a restart")
		if again := n.plugged(); string(again) != string(raw) {
			t.Errorf("ADD again: %s, want %s", again, raw)
		}
		n.sw.Ctl("del-port", n.port)
		err := n.check(raw)
		nodetest.WantCode(t, err, answer.CodeDiffers)
		if e := cniproto.AsError(err); !strings.Contains(e.Details, "is no port of Open vSwitch") {
			t.Errorf("CHECK without the port: %s", e.Details)
		}
		settle()
		n.wantPort("a repair after CHECK")
		n.sw.Ctl("del-port", n.port)
		sweeps()
		n.wantPort("a repair after a sweep")
		n.wantWrites(n.key, "Attached/c1")
		nodetest.WantCode(t, n.del("c1"), 0)
		settle()
		n.wantNothing("DEL")
	})
}

// Own review: a host end stayed open after "nft flush ruleset" of another program, and the node
// answered for the pod.
func TestOVSIsShutAgain(t *testing.T) {
	onOVSNode(t, func(t *testing.T, n *ovsNode, _ []byte) {
		heard := func(c host.RuleChange) {
			n.filter.mu.Lock()
			others := n.filter.others
			n.filter.mu.Unlock()
			others(c)
			settle()
		}
		for name, change := range map[string]host.RuleChange{
			"the table":                  {Table: nft.ShutTable, Deleted: true},
			"the chain":                  {Table: nft.ShutTable, Chain: n.port, Deleted: true},
			"anything may be changed":    {},
			"the chain, by another name": {Table: nft.ShutTable, Chain: "other", Deleted: true},
			"a new chain":                {Table: nft.ShutTable, Chain: n.port},
			"the table of another":       {Table: "filter", Deleted: true},
		} {
			ovslab.Run(t, n.host.Namespace(), "nft", "flush", "ruleset")
			if shut := n.sw.Shut(); len(shut) > 0 {
				t.Fatalf("%s: %q are shut after the flush", name, shut)
			}
			heard(change)
			var want []string
			if name == "the table" || name == "the chain" || name == "anything may be changed" {
				want = []string{n.port}
			}
			if diff := cmp.Diff(want, n.sw.Shut()); diff != "" {
				t.Errorf("%s: shut (-want +got):\n%s", name, diff)
			}
		}
		heard(host.RuleChange{})
		n.wantPort("a flush")
	})
}

// A port goes with its pod, and its addresses are free afterwards alone.
func TestOVSGoes(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(n *ovsNode)
	}{
		{"the namespace ends", func(n *ovsNode) {
			n.end()
			sweeps()
		}},
		{"the namespace ends without a daemon", func(n *ovsNode) {
			n.stop()
			n.end()
			n.start()
			settle()
		}},
		{"the record is damaged", func(n *ovsNode) {
			n.stop()
			file := n.damageRecord()
			n.start()
			settle()
			if ports := n.sw.Ports(); !slices.Equal(ports, []string{n.port}) {
				n.t.Errorf("a restart: br-int has the ports %q, want %s", ports, n.port)
			}
			nodetest.WantCode(n.t, n.del("c1"), 0)
			settle()
			if err := os.Remove(file + ledger.DamagedSuffix); err != nil {
				n.t.Error(err)
			}
		}},
		{"ovsdb-server is away", func(n *ovsNode) {
			n.sw.Stop("ovs-vswitchd")
			n.sw.Stop("ovsdb-server")
			_, err := n.handle(n.request(cniproto.VerbDel))
			nodetest.WantCode(n.t, err, 0)
			n.deleteAttachment(n.key)
			settle()
			n.wantWrites(n.key, "Attached/c1") // the row is still there
			n.sw.StartDatabase()
			n.sw.StartSwitch()
			time.Sleep(report.RetryLast) //nolint:forbidigo // the bubble's clock
			settle()
		}},
		{"ovsdb-server is away, and the daemon ends", func(n *ovsNode) {
			n.sw.Stop("ovs-vswitchd")
			n.sw.Stop("ovsdb-server")
			_, err := n.handle(n.request(cniproto.VerbDel))
			nodetest.WantCode(n.t, err, 0)
			n.restart()
			n.sw.StartDatabase()
			n.sw.StartSwitch()
			time.Sleep(report.RetryLast) //nolint:forbidigo // the bubble's clock
			settle()
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onOVSNode(t, func(_ *testing.T, n *ovsNode, _ []byte) {
				tt.do(n)
				n.deleteAttachment(n.key)
				settle()
				n.wantNothing(tt.name)
				n.wantWrites(n.key, "Attached/c1", "Detached/c1")
			})
		})
	}
}

// A row whose link is gone, and which no record names, is removed by the sweep.
func TestOVSRowAlone(t *testing.T) {
	onOVSNode(t, func(_ *testing.T, n *ovsNode, _ []byte) {
		row := []string{
			"add-port", "br-int", plug.HostName("c7", "eth0"), "--", "set", "Interface", plug.HostName("c7", "eth0"),
			"external_ids:fairlead=true", "external_ids:fairlead-container=c7", "external_ids:fairlead-interface=eth0",
		}
		n.sw.Ctl(append([]string{"--no-wait"}, row...)...)
		sweeps()
		n.wantPort("a sweep")
	})
}
