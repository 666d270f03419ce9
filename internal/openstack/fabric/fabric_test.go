package fabric

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/openstack/cloud"
	"fairlead.dev/fairlead/test/cloudtest"
)

const v4, v6 = "10.244.0.0/16", "fd00:10:244::/56"

// A node costs one list and one change in its life, and events that change nothing cost
// nothing. A pair of others stays.
func TestOneCallInTheLifeOfANode(t *testing.T) {
	w := oneWorld(t, nil)
	vip := cloudtest.Object{"allowed_address_pairs": []any{cloudtest.Object{"ip_address": "192.0.2.200"}}}
	first := w.machine("n1", "192.0.2.11", vip)
	w.join("n1", "192.0.2.11", "10.244.1.0/26")
	w.run()
	w.wantPairs(first, "192.0.2.200", v4, v6)
	w.wantReason("n1", ReasonReady)
	if diff := cmp.Diff([]string{v4, v6}, w.rules()); diff != "" {
		t.Error(diff)
	}
	second := w.machine("n2", "192.0.2.12", nil)
	w.server.ResetCalls()
	w.join("n2", "192.0.2.12")
	for range 3 {
		if failed := w.settle(); len(failed) > 0 {
			t.Error(failed)
		}
	}
	w.blocks("n2", "10.244.2.0/26")
	w.settle()
	w.wantPairs(second, v4, v6)
	if got := w.groupsOf(second); got != 2 {
		t.Errorf("%d security groups, want the default one and that of the cluster", got)
	}
	want := map[string]int{"GET /ports": 1, "PUT /ports/{id}": 1}
	if diff := cmp.Diff(want, w.server.Calls()); diff != "" {
		t.Errorf("calls for a node: %s", diff)
	}
	// A new leader lists the ports of all nodes once.
	w.server.ResetCalls()
	w.restart()
	w.run()
	calls := w.server.Calls()
	if calls["GET /ports"] != 1 || calls["PUT /ports/{id}"] != 0 || calls["GET /ports/{id}"] != 0 {
		t.Errorf("calls of a new leader: %v", calls)
	}
	// The node is gone: its entries go, those of others stay.
	w.leave("n1")
	w.run()
	w.wantPairs(first, "192.0.2.200")
	if got := w.groupsOf(first); got != 1 {
		t.Errorf("%d security groups are left", got)
	}
	if err := w.client.Get(t.Context(), client.ObjectKey{Name: "n1"}, &v1alpha1.NodeNetwork{}); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("the NodeNetwork stays: %v", err)
	}
}

// The comparison puts back entries that were changed by hand.
func TestHandEditsAreHealed(t *testing.T) {
	w := oneWorld(t, nil)
	port := w.machine("n1", "192.0.2.11", nil)
	w.join("n1", "192.0.2.11", "10.244.1.0/26")
	w.run()
	c := w.cloud
	_, err := c.UpdatePort(t.Context(), port, 0, cloud.PortChange{Pairs: &[]cloud.Pair{}, Groups: &[]string{}})
	w.must(err)
	for _, r := range w.server.Objects("security-group-rules") {
		if r["remote_ip_prefix"] == v4 {
			w.must(c.Groups.DeleteRule(t.Context(), r["id"].(string)))
		}
	}
	w.run()
	w.wantPairs(port, v4, v6)
	if w.groupsOf(port) != 1 || len(w.rules()) != 2 {
		t.Errorf("groups %d, rules %v", w.groupsOf(port), w.rules())
	}
}

// The pools change, and with them pairs and rules. A deleted pool keeps those of its
// blocks: pods still have addresses of them.
func TestPoolsChange(t *testing.T) {
	w := oneWorld(t, nil)
	port := w.machine("n1", "192.0.2.11", nil)
	w.join("n1", "192.0.2.11", "10.244.1.0/26")
	w.run()
	w.pool("more", "10.245.0.0/16")
	w.run()
	w.wantPairs(port, "10.244.0.0/15", v6)
	w.must(w.client.Delete(t.Context(), &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "more"}}))
	w.must(w.client.Delete(t.Context(), &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "default"}}))
	w.run()
	w.wantPairs(port, "10.244.1.0/26")
	if diff := cmp.Diff([]string{"10.244.1.0/26"}, w.rules()); diff != "" {
		t.Error(diff)
	}
	w.blocks("n1")
	w.run()
	w.wantPairs(port)
}

// With PerBlock a port has the pairs of its node's blocks, aggregated, and those of the
// pools if the blocks are too many.
func TestPairsPerBlock(t *testing.T) {
	w := oneWorld(t, func(c *Config) { c.PerBlock = true })
	port := w.machine("n1", "192.0.2.11", nil)
	w.join("n1", "192.0.2.11", "10.244.1.0/26", "10.244.1.64/26", "fd00:10:244:1::/122")
	w.run()
	w.wantPairs(port, "10.244.1.0/25", "fd00:10:244:1::/122")
	w.wantReason("n1", ReasonReady)
	var many []string
	for i := range 11 {
		many = append(many, fmt.Sprintf("10.244.%d.0/26", i))
	}
	w.blocks("n1", many...)
	w.run()
	w.wantPairs(port, v4, v6)
	w.wantReason("n1", ReasonCoarse)
	w.blocks("n1", "10.244.1.0/26")
	w.run()
	w.wantPairs(port, "10.244.1.0/26")
	w.wantReason("n1", ReasonReady)
}

// Two clusters in one project, with the same pods' range and one machine in both, do not
// touch each other's entries.
func TestTwoClusters(t *testing.T) {
	a := oneWorld(t, nil)
	b := newWorld(t, a.server, a.network, "c2", nil)
	shared, alone := a.machine("n1", "192.0.2.11", nil), a.machine("n2", "192.0.2.12", nil)
	a.join("n1", "192.0.2.11")
	a.run()
	b.join("n1", "192.0.2.11")
	b.join("n2", "192.0.2.12")
	b.run()
	a.wantPairs(shared, v4, v6)
	if got := a.groupsOf(shared); got != 3 {
		t.Errorf("%d groups, want the default one and one for each cluster", got)
	}
	b.leave("n1")
	b.leave("n2")
	b.run()
	a.wantPairs(shared, v4, v6)
	a.wantPairs(alone)
	if got := a.groupsOf(shared); got != 2 {
		t.Errorf("%d groups are left", got)
	}
	if len(a.rules()) != 2 {
		t.Errorf("rules of the other cluster: %v", a.rules())
	}
	// The other way round: the pairs were the first cluster's. The second one adds its own
	// when they are gone.
	b.join("n1", "192.0.2.11")
	b.run()
	a.leave("n1")
	a.run()
	b.run()
	b.wantPairs(shared, v4, v6)
}

// Everything that can go wrong with a port becomes a condition, and touches no other node.
func TestConditions(t *testing.T) {
	w := oneWorld(t, nil)
	w.server.SetMaxPairs(3)
	vips := []any{cloudtest.Object{"ip_address": "192.0.2.200"}, cloudtest.Object{"ip_address": "192.0.2.201"}}
	w.machine("full", "192.0.2.21", cloudtest.Object{"allowed_address_pairs": vips})
	off := w.machine("off", "192.0.2.22", cloudtest.Object{"port_security_enabled": false, "security_groups": []any{}})
	good := w.machine("good", "192.0.2.23", nil)
	w.join("full", "192.0.2.21")
	w.join("off", "192.0.2.22")
	w.join("good", "192.0.2.23")
	w.join("lost", "192.0.2.24")
	w.run()
	w.wantReason("full", ReasonLimit)
	w.wantReason("off", ReasonOff)
	w.wantReason("good", ReasonReady)
	w.wantReason("lost", ReasonNoPort)
	w.wantPairs(off)
	w.wantPairs(good, v4, v6)
	if len(w.events.Events) != 2 {
		t.Errorf("%d events, want one for each of the two nodes", len(w.events.Events))
	}
	w.run()
	if len(w.events.Events) != 2 {
		t.Errorf("%d events after a second round", len(w.events.Events))
	}
}

// A member on another project's network may not change pairs (403).
func TestForbidden(t *testing.T) {
	w := oneWorld(t, nil)
	w.machine("n1", "192.0.2.11", nil)
	w.join("n1", "192.0.2.11")
	w.server.Inject(func(method, path string) cloudtest.Fault {
		if method == "PUT" && strings.HasPrefix(path, "/ports/") {
			return cloudtest.Fault{Status: 403, Body: `{"NeutronError": {"type": "PolicyNotAuthorized", "message": "rule:update_port is disallowed by policy"}}`}
		}
		return cloudtest.Fault{}
	})
	w.run()
	w.wantReason("n1", ReasonForbidden)
	w.server.Inject(nil)
	w.restart()
	w.run()
	w.wantReason("n1", ReasonReady)
}

// Another program adds the same pair to the port at the same time: the pair is its own,
// and stays when the node leaves.
func TestConcurrentChange(t *testing.T) {
	w := oneWorld(t, nil)
	port := w.machine("n1", "192.0.2.11", nil)
	w.join("n1", "192.0.2.11")
	other := w.cloud
	w.calls.Ports = &meddler{Cloud: other, before: func() {
		_, err := other.UpdatePort(t.Context(), port, 0, cloud.PortChange{Pairs: &[]cloud.Pair{{Prefix: netip.MustParsePrefix(v4)}}})
		w.must(err)
	}}
	w.restart()
	w.run()
	w.wantPairs(port, v4, v6)
	w.leave("n1")
	w.run()
	w.wantPairs(port, v4)
}

// meddler calls a function before the first change of a port.
type meddler struct {
	*cloud.Cloud
	before func()
}

func (m *meddler) UpdatePort(ctx context.Context, id string, revision int, ch cloud.PortChange) (cloud.Port, error) {
	if f := m.before; f != nil {
		m.before = nil
		f()
	}
	return m.Cloud.UpdatePort(ctx, id, revision, ch)
}

// The reply to a change is lost: the change is recorded, so it is found, and goes with the
// node.
func TestLostReply(t *testing.T) {
	w := oneWorld(t, nil)
	port := w.machine("n1", "192.0.2.11", nil)
	w.join("n1", "192.0.2.11")
	lost := false
	w.server.Inject(func(method, path string) cloudtest.Fault {
		if method == "PUT" && strings.HasPrefix(path, "/ports/") && !lost {
			lost = true
			return cloudtest.Fault{LoseReply: true}
		}
		return cloudtest.Fault{}
	})
	w.run()
	w.restart()
	w.leave("n1")
	w.run()
	w.wantPairs(port)
	if w.groupsOf(port) != 1 || !lost {
		t.Errorf("%d groups are left", w.groupsOf(port))
	}
}

// The last pass takes everything back, and then the cluster's own group goes.
func TestRemove(t *testing.T) {
	w := oneWorld(t, nil)
	port := w.machine("n1", "192.0.2.11", nil)
	w.join("n1", "192.0.2.11", "10.244.1.0/26")
	w.run()
	w.config.Remove = true
	w.restart()
	w.run()
	w.run()
	w.wantPairs(port)
	if nn := w.get("n1"); nn.Spec.Fabric != nil || len(nn.Finalizers) > 0 {
		t.Errorf("left: %+v %v", nn.Spec.Fabric, nn.Finalizers)
	}
	for _, g := range w.server.Objects("security-groups") {
		if g["name"] != "default" {
			t.Errorf("group %v is left", g["name"])
		}
	}
}

// Without the fabric in the configuration a deleted NodeNetwork does not wait for ever, and
// an event names what stays.
func TestForgotten(t *testing.T) {
	w := oneWorld(t, nil)
	w.machine("n1", "192.0.2.11", nil)
	w.join("n1", "192.0.2.11")
	w.run()
	r := &Forgetter{Client: w.client, Events: w.events}
	ask := func() {
		_, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Name: "n1"}})
		w.must(err)
	}
	ask()
	if len(w.get("n1").Finalizers) != 1 {
		t.Error("a living node is forgotten")
	}
	w.leave("n1")
	ask()
	if err := w.client.Get(t.Context(), client.ObjectKey{Name: "n1"}, &v1alpha1.NodeNetwork{}); err == nil {
		t.Error("it waits")
	}
	if got := <-w.events.Events; !strings.Contains(got, "FabricLeft") || !strings.Contains(got, v4) {
		t.Errorf("event %q", got)
	}
}

// The cloud is away at the start: the fabric connects when it is back. Then the nodes
// that joined meanwhile get their entries.
func TestConnectsLate(t *testing.T) {
	w := oneWorld(t, nil)
	port := w.machine("n1", "192.0.2.11", nil)
	w.join("n1", "192.0.2.11")
	w.fabric.Calls = Calls{}
	tries := 0
	w.fabric.Connect = func(context.Context) (Calls, error) {
		if tries++; tries == 1 {
			return Calls{}, cloud.ErrUnavailable
		}
		return w.calls, nil
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- w.fabric.Run(ctx) }()
	if _, err := w.fabric.Reconcile(ctx, ctrl.Request{NamespacedName: client.ObjectKey{Name: "n1"}}); err != nil {
		t.Error(err)
	}
	w.wantPairs(port, v4, v6)
	stop()
	if err := <-done; err != nil || tries != 2 {
		t.Errorf("%v after %d tries", err, tries)
	}
}
