package fabric

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/openstack/cloud"
	"fairlead.dev/fairlead/internal/openstack/cloud/cloudtest"
)

func wantError(t *testing.T, err error, part string) {
	t.Helper()
	if part == "" && err != nil || part != "" && (err == nil || !strings.Contains(err.Error(), part)) {
		t.Errorf("error %v, want %q", err, part)
	}
}

// world is a cluster whose nodes are machines of a cloud in memory.
type world struct {
	t       *testing.T
	server  *cloudtest.Server
	network string
	client  client.Client
	config  Config
	cloud   *cloud.Cloud
	calls   Calls
	fabric  *Fabric
	events  *events.FakeRecorder
}

func newWorld(t *testing.T, server *cloudtest.Server, network, cluster string, with func(*Config)) *world {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c, err := cloud.New(t.Context(), cloud.Config{File: server.File, Cloud: cloudtest.Admin, Cluster: cluster})
	if err != nil {
		t.Fatal(err)
	}
	m, err := NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	w := &world{
		t: t, server: server, network: network, events: events.NewFakeRecorder(1000),
		client: fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.NodeNetwork{}).Build(),
	}
	w.config = Config{Client: w.client, Events: w.events, Metrics: m, Cluster: cluster}
	w.cloud, w.calls = c, Calls{Ports: c, Routers: c, Groups: c, Rules: c}
	if with != nil {
		with(&w.config)
	}
	w.pool("default", "10.244.0.0/16", "fd00:10:244::/56")
	w.restart()
	return w
}

func oneWorld(t *testing.T, with func(*Config)) *world {
	t.Helper()
	s := cloudtest.New(t)
	network, _ := s.AddNetwork(t, "nodes", "192.0.2.0/24")
	return newWorld(t, s, network, "c1", with)
}

// restart is a new leader.
func (w *world) restart() {
	w.fabric = New(w.config)
	w.fabric.Calls = w.calls
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) pool(name string, ranges ...string) {
	w.t.Helper()
	p := &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if w.client.Get(w.t.Context(), client.ObjectKey{Name: name}, p) == nil {
		p.Spec.Ranges = ranges
		w.must(w.client.Update(w.t.Context(), p))
		return
	}
	p.Spec = v1alpha1.IPPoolSpec{Ranges: ranges, Placement: v1alpha1.PlacementPerNode}
	w.must(w.client.Create(w.t.Context(), p))
}

// machine makes a port of a machine in the cloud and returns its ID.
func (w *world) machine(name, address string, attributes cloudtest.Object) string {
	w.t.Helper()
	o := cloudtest.Object{"network_id": w.network, "name": name, "device_id": "machine-" + name, "device_owner": "compute:nova", "fixed_ips": []any{cloudtest.Object{"ip_address": address}}}
	for k, v := range attributes {
		o[k] = v
	}
	return w.server.Add(w.t, "ports", cloudtest.AdminProject, o)
}

// join makes a Node and its NodeNetwork.
func (w *world) join(name, address string, blocks ...string) {
	w.t.Helper()
	at := netip.MustParseAddr(address)
	w.must(w.client.Create(w.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{ProviderID: "openstack:///machine-" + name}}))
	nn := &v1alpha1.NodeNetwork{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.NodeNetworkSpec{Blocks: blocks, Underlay: []string{netip.PrefixFrom(at, 32).String()}},
	}
	w.must(w.client.Create(w.t.Context(), nn))
	nn.Status.Addresses = []string{netip.PrefixFrom(at, 24).String()}
	w.must(w.client.Status().Update(w.t.Context(), nn))
}

// leave deletes a Node, as the API server does with its NodeNetwork.
func (w *world) leave(name string) {
	w.t.Helper()
	w.must(w.client.Delete(w.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	w.must(client.IgnoreNotFound(w.client.Delete(w.t.Context(), &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: name}})))
}

func (w *world) blocks(name string, blocks ...string) {
	w.t.Helper()
	nn := w.get(name)
	nn.Spec.Blocks = blocks
	w.must(w.client.Update(w.t.Context(), nn))
}

func (w *world) get(name string) *v1alpha1.NodeNetwork {
	w.t.Helper()
	nn := &v1alpha1.NodeNetwork{}
	w.must(w.client.Get(w.t.Context(), client.ObjectKey{Name: name}, nn))
	return nn
}

// compare is a periodic comparison.
func (w *world) compare(ctx context.Context) error {
	err := w.fabric.compare(ctx)
	w.fabric.opened()
	return err
}

// settle reconciles all nodes as the queue would, and again after each failure. It returns
// the last error of each node.
func (w *world) settle() map[string]error {
	w.t.Helper()
	failed := map[string]error{}
	for range 6 {
		var list v1alpha1.NodeNetworkList
		w.must(w.client.List(w.t.Context(), &list))
		clear(failed)
		for _, nn := range list.Items {
			if _, err := w.fabric.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&nn)}); err != nil {
				failed[nn.Name] = err
			}
		}
		if len(failed) == 0 {
			break
		}
	}
	return failed
}

// run compares and settles without a failure.
func (w *world) run() {
	w.t.Helper()
	w.must(w.compare(w.t.Context()))
	for name, err := range w.settle() {
		w.t.Errorf("node %s: %v", name, err)
	}
	for len(w.fabric.drifted) > 0 {
		<-w.fabric.drifted
	}
}

// pairsOf and groupsOf return the pairs and groups of a port in the cloud.
func (w *world) pairsOf(port string) []string {
	w.t.Helper()
	var out []string
	for _, p := range w.server.Object("ports", port)["allowed_address_pairs"].([]any) {
		out = append(out, p.(cloudtest.Object)["ip_address"].(string))
	}
	return out
}

func (w *world) groupsOf(port string) int {
	w.t.Helper()
	return len(w.server.Object("ports", port)["security_groups"].([]any))
}

func (w *world) wantPairs(port string, want ...string) {
	w.t.Helper()
	less := cmpopts.SortSlices(func(a, b string) bool { return a < b })
	if diff := cmp.Diff(want, w.pairsOf(port), cmpopts.EquateEmpty(), less); diff != "" {
		w.t.Errorf("pairs of port %s: %s", port, diff)
	}
}

func (w *world) wantReason(node, reason string) {
	w.t.Helper()
	f := w.get(node).Spec.Fabric
	if f == nil {
		w.t.Fatalf("node %s has no record", node)
	}
	if c := meta.FindStatusCondition(f.Conditions, v1alpha1.ConditionFabricReady); c == nil || c.Reason != reason {
		w.t.Errorf("node %s: condition %+v, want reason %s", node, c, reason)
	}
}

// rules returns the prefixes that the cluster's group lets in.
func (w *world) rules(cluster string) []string {
	var out []string
	for _, g := range w.server.Objects("security-groups") {
		if g["name"] != "fairlead-"+cluster+"-fabric" {
			continue
		}
		for _, r := range w.server.Objects("security-group-rules") {
			if r["security_group_id"] == g["id"] && r["direction"] == "ingress" {
				out = append(out, fmt.Sprint(r["remote_ip_prefix"]))
			}
		}
	}
	slices.Sort(out)
	return out
}

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
	if diff := cmp.Diff([]string{v4, v6}, w.rules("c1")); diff != "" {
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
			w.must(c.DeleteRule(t.Context(), r["id"].(string)))
		}
	}
	w.run()
	w.wantPairs(port, v4, v6)
	if w.groupsOf(port) != 1 || len(w.rules("c1")) != 2 {
		t.Errorf("groups %d, rules %v", w.groupsOf(port), w.rules("c1"))
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
	if diff := cmp.Diff([]string{"10.244.1.0/26"}, w.rules("c1")); diff != "" {
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
	if len(a.rules("c1")) != 2 {
		t.Errorf("rules of the other cluster: %v", a.rules("c1"))
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
