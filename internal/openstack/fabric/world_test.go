package fabric

import (
	"context"
	"fmt"
	"maps"
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
	"fairlead.dev/fairlead/test/cloudtest"
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
	w.cloud, w.calls = c, Calls{Ports: c, Routers: c.Routers, Groups: c.Groups, Rules: c.Groups}
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
	maps.Copy(o, attributes)
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

// rules returns the prefixes that the group of the cluster c1 lets in.
func (w *world) rules() []string {
	var out []string
	for _, g := range w.server.Objects("security-groups") {
		if g["name"] != "fairlead-c1-fabric" {
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
