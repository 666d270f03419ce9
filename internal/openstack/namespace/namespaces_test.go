package namespace

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/openstack/cloud"
	"fairlead.dev/fairlead/test/cloudtest"
)

const blue, blueUID = "blue-1a2b3c4d", "1a2b3c4d-0000-4000-8000-000000000001"

// The first pod of a namespace has its network made, with a subnet of each family and an
// interface of the router in both. The next pods cost no call.
func TestFirstPod(t *testing.T) {
	w := newWorld(t)
	w.namespace("blue", blueUID)
	w.wantLeft(map[string]int{})
	w.refused("blue", "Unavailable", "the network of namespace blue is being made")
	w.wantLeft(map[string]int{"records": 1})
	w.refused("blue", "Unavailable", "the network of namespace blue is being made")
	network := w.network("blue")
	w.wantLeft(made(1))
	w.wantConditions(blue, "True Made", "False AddressesLeft")

	o := w.record(blue)
	if diff := cmp.Diff(v1alpha1.NamespaceNetworkSpec{Namespace: "blue", NamespaceUID: blueUID, SubnetPools: []string{"v4", "v6"}, Router: "gateway"}, o.Spec); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
	if o.Status.Network != network || o.Status.Summary != "10.64.0.0/29,fd64::/64" || len(o.Status.Subnets) != 2 || o.Status.Router != w.server.Objects("routers")[0]["id"] {
		t.Errorf("status %+v", o.Status)
	}
	name := "fairlead/east/blue/" + blueUID
	n := w.server.Objects("networks")[0]
	if n["name"] != name || fmt.Sprint(n["tags"]) != "[fairlead:cluster=east]" || n["project_id"] != cloudtest.AdminProject {
		t.Errorf("network %v", n)
	}
	for i, s := range w.server.Objects("subnets") {
		if want := []string{"ipv4-0", "ipv6-0"}[i]; s["name"] != name+"/"+want || fmt.Sprint(s["tags"]) != "[fairlead:cluster=east]" || s["enable_dhcp"] != false {
			t.Errorf("subnet %v, want the name %s", s, want)
		}
	}
	for _, p := range w.server.Objects("ports") {
		if p["device_owner"] != "network:router_interface" {
			t.Errorf("port %v", p)
		}
	}
	w.server.ResetCalls()
	w.settle() // as after each change of the leader
	if n := w.writes(); n != 0 {
		t.Errorf("%d writes for a network that is there: %v", n, w.server.Calls())
	}
	w.server.ResetCalls()
	if again := w.network("blue"); again != network || len(w.server.Calls()) > 0 {
		t.Errorf("network %s with the calls %v, want %s without", again, w.server.Calls(), network)
	}
	w.end("blue")
	w.settle()
	w.wantLeft(map[string]int{})
	if told := w.eventsSince(); len(told) > 0 {
		t.Errorf("events %q", told)
	}
}

// The labels of a namespace and the configuration decide about its network. A namespace that
// asks in vain gets no other network.
func TestWhoOwnsANetwork(t *testing.T) {
	some := labels.SelectorFromSet(labels.Set{"team": "db"})
	for _, c := range []struct {
		name   string
		served labels.Selector
		asked  bool
		labels []string
		want   string // owns, default, or a part of the error
	}{
		{"all", labels.Everything(), false, nil, "owns"},
		{"all, and it asks", labels.Everything(), false, []string{v1alpha1.LabelNetwork, "own"}, "owns"},
		{"selected", some, false, []string{"team", "db"}, "owns"},
		{"not selected", some, false, []string{"team", "web"}, "default"},
		{"not selected, and it asks", some, false, []string{v1alpha1.LabelNetwork, "own"}, "asks for a network of its own, which the namespace may not have"},
		{"it may ask", some, true, []string{"team", "db"}, "default"},
		{"it asks", some, true, []string{"team", "db", v1alpha1.LabelNetwork, "own"}, "owns"},
		{"it may not ask", some, true, []string{v1alpha1.LabelNetwork, "own"}, "openstack.namespaceNetworks"},
		{"it asks where there is none", nil, true, []string{v1alpha1.LabelNetwork, "own"}, "openstack.namespaceNetworks"},
		{"none", nil, false, nil, "default"},
		{"unknown value", labels.Everything(), false, []string{v1alpha1.LabelNetwork, "shared"}, `label fairlead.dev/network of namespace blue: "shared": must be "own"`},
		{"empty value", nil, false, []string{v1alpha1.LabelNetwork, ""}, `must be "own"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.cfg.Served, w.cfg.Asked = c.served, c.asked
			w.nets = New(w.cfg)
			w.namespace("blue", blueUID, c.labels...)
			switch c.want {
			case "owns":
				w.network("blue")
				w.wantLeft(made(1))
				return
			case "default":
				if id, err := w.nets.Network(t.Context(), "blue", ""); id != "" || err != nil {
					t.Errorf("network %q, %v", id, err)
				}
			default:
				w.refused("blue", "Invalid", c.want)
			}
			w.wantLeft(map[string]int{})
		})
	}
	newWorld(t).refused("unknown", "Unavailable", "namespace unknown is not known yet")
}

// A network is in the project that the namespace of the first pod names.
func TestProjectOfANetwork(t *testing.T) {
	w := newWorld(t)
	w.namespace("blue", blueUID)
	if _, err := w.nets.Network(t.Context(), "blue", cloudtest.MemberProject); driver.Result(err) != "Unavailable" {
		t.Fatal(err)
	}
	w.network("blue")
	if n := w.server.Objects("networks"); len(n) != 1 || n[0]["project_id"] != cloudtest.MemberProject {
		t.Errorf("networks %v", n)
	}
	w.end("blue")
	w.settle()
	w.wantLeft(map[string]int{})
}

// A full subnet has another one added, once, and the waiting pods are woken. The family that
// has room gets none. Without a prefix in the pool the namespace waits, with the reason.
func TestFullSubnet(t *testing.T) {
	w := newWorld(t)
	w.namespace("blue", blueUID)
	w.namespace("red", "2a2b3c4d-0000-4000-8000-000000000001")
	network := w.network("blue")
	pods := 0
	fill := func() int {
		for n := 0; ; n++ {
			_, err := w.port(network, fmt.Sprintf("pod-%d", pods))
			pods++
			if err == nil {
				continue
			}
			err = w.nets.Failed(t.Context(), "blue", fmt.Errorf("%w: %w", fault.ErrExhausted, err))
			if driver.Result(err) != "Exhausted" || !errors.Is(err, cloud.ErrFull) || !strings.Contains(err.Error(), "the network of namespace blue: ") {
				t.Errorf("Failed: %v", err)
			}
			return n
		}
	}
	if n := fill(); n != 5 {
		t.Errorf("%d ports in a /29", n)
	}
	w.wantConditions(blue, "True Made", "True NoAddressLeft")
	if id := w.network("blue"); id != network {
		t.Errorf("the network is %s, want %s", id, network)
	}
	w.settle()
	w.wantConditions(blue, "True Made", "False AddressesLeft")
	if got := w.record(blue).Status.Summary; got != "10.64.0.0/29,10.64.0.8/29,fd64::/64" {
		t.Errorf("subnets %s", got)
	}
	// Another error, and a late report, add no subnet.
	if err := w.nets.Failed(t.Context(), "blue", cloud.ErrQuota); !errors.Is(err, cloud.ErrQuota) || err.Error() != cloud.ErrQuota.Error() {
		t.Errorf("Failed: %v", err)
	}
	_ = w.nets.Failed(t.Context(), "blue", cloud.ErrFull)
	w.settle()
	if got := len(w.record(blue).Status.Subnets); got != 3 {
		t.Errorf("%d subnets after a report from before, want 3", got)
	}
	fill()
	w.network("red") // takes the last but one prefix
	w.settle()
	fill()
	for range 2 {
		if err := w.reconcile(); !errors.Is(err, cloud.ErrFull) {
			t.Fatalf("error %v, want that the pool is empty", err)
		}
	}
	w.wantConditions(blue, "True Made", "True Exhausted")
	if told := w.eventsSince(); len(told) != 1 || !strings.Contains(told[0], "NamespaceNetworkFailed") || !strings.Contains(told[0], "subnet pool") {
		t.Errorf("events %q", told)
	}
	if err := w.nets.Failed(t.Context(), "blue", cloud.ErrFull); !strings.Contains(err.Error(), "has no prefix left") {
		t.Errorf("Failed: %v", err)
	}
	w.end("red") // its prefix is free again
	_ = w.reconcile()
	w.settle()
	w.wantConditions(blue, "True Made", "False AddressesLeft")
	if fill() == 0 {
		t.Error("no port in the next subnet")
	}
}

// A quota stops its namespace, with the reason in the record, an event, and the errors of its
// pods. All others go on.
func TestQuotaIsolates(t *testing.T) {
	w := newWorld(t)
	w.namespace("blue", blueUID)
	w.namespace("red", "2a2b3c4d-0000-4000-8000-000000000001")
	w.network("red")
	w.server.SetQuota(cloudtest.AdminProject, "network", 1)
	w.refused("blue", "Unavailable", "is being made")
	for range 2 {
		if err := w.reconcile(); !errors.Is(err, cloud.ErrQuota) {
			t.Fatalf("error %v", err)
		}
	}
	w.refused("blue", "Exhausted", "the network of namespace blue: ", "Quota exceeded for resources: ['network']")
	w.wantConditions(blue, "False Exhausted", "")
	w.wantConditions("red-2a2b3c4d", "True Made", "False AddressesLeft")
	if told := w.eventsSince(); len(told) != 1 || !strings.Contains(told[0], "Quota exceeded") || strings.Contains(told[0], "request req-") {
		t.Errorf("events %q", told)
	}
	w.server.SetQuota(cloudtest.AdminProject, "network", -1)
	w.server.SetQuota(cloudtest.AdminProject, "subnet", 3)
	if err := w.reconcile(); !errors.Is(err, cloud.ErrQuota) {
		t.Fatalf("error %v", err)
	}
	w.refused("blue", "Exhausted", "['subnet']")
	w.server.SetQuota(cloudtest.AdminProject, "subnet", -1)
	w.network("blue")
	w.wantLeft(made(2))
}

// The use of quotas by a namespace, which docs/operator/openstack.md has.
func TestCostInQuotas(t *testing.T) {
	w := newWorld(t)
	used := func() map[string]int {
		quotas, err := w.cloud.Quotas(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]int{}
		for name, q := range quotas {
			out[name] = q.Used
		}
		return out
	}
	before := used()
	w.namespace("blue", blueUID)
	w.network("blue")
	cost := map[string]int{}
	for name, n := range used() {
		if n != before[name] {
			cost[name] = n - before[name]
		}
	}
	if diff := cmp.Diff(map[string]int{"network": 1, "subnet": 2, "port": 2}, cost); diff != "" {
		t.Errorf("cost of a namespace (-want +got):\n%s", diff)
	}
}

// A router or a subnet pool that is not there, or two pools of one family, stop the namespace
// with their names.
func TestWrongConfiguration(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(cfg *Config)
		reason string
		text   string
	}{
		{"router", func(cfg *Config) { cfg.Router = "none" }, "False NotFound", `router "none"`},
		{"pool", func(cfg *Config) { cfg.SubnetPools = []string{"v4", "none"} }, "False NotFound", `subnet pool "none"`},
		{"two pools of a family", func(cfg *Config) { cfg.SubnetPools = []string{"v4", "v4"} }, "False Invalid", "are both of ipv4: name one of each family"},
		{"no connection", func(cfg *Config) {
			cfg.Connect = func(context.Context) (*cloud.Cloud, error) {
				return nil, fmt.Errorf("%w: no connection to OpenStack", fault.ErrUnavailable)
			}
		}, "False Unavailable", "no connection to OpenStack"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			right := w.cfg.Connect
			c.change(&w.cfg)
			w.nets = New(w.cfg)
			w.namespace("blue", blueUID)
			w.refused("blue", "Unavailable", "is being made")
			if err := w.reconcile(); err == nil {
				t.Fatal("no error")
			}
			w.wantConditions(blue, c.reason, "")
			w.refused("blue", "Unavailable", c.text)
			w.cfg.Connect = right
			w.nets = New(w.cfg)
			w.end("blue")
			w.settle()
			w.wantLeft(map[string]int{})
		})
	}
}

// A network that was deleted in the cloud is made again when a pod does not find it, and no
// pod gets a port in it before it has subnets.
func TestDeletedInTheCloud(t *testing.T) {
	w := newWorld(t)
	w.namespace("blue", blueUID)
	network := w.network("blue")
	router := w.server.Objects("routers")[0]["id"].(string)
	for _, s := range w.record(blue).Status.Subnets {
		if err := errors.Join(w.cloud.Routers.Disconnect(t.Context(), router, s.ID), w.cloud.DeleteSubnet(t.Context(), s.ID)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.cloud.DeleteNetwork(t.Context(), network); err != nil {
		t.Fatal(err)
	}
	if err := w.nets.Failed(t.Context(), "blue", fmt.Errorf("%w: %w", fault.ErrNotFound, cloud.ErrNotFound)); !strings.Contains(err.Error(), "made again") {
		t.Errorf("Failed: %v", err)
	}
	w.wantConditions(blue, "False Checking", "False AddressesLeft")
	w.refused("blue", "Unavailable", "made again if it is gone")
	w.server.SetQuota(cloudtest.AdminProject, "subnet", 0)
	if err := w.reconcile(); !errors.Is(err, cloud.ErrQuota) {
		t.Fatal(err)
	}
	w.refused("blue", "Exhausted", "['subnet']")
	w.server.SetQuota(cloudtest.AdminProject, "subnet", -1)
	if again := w.network("blue"); again == network {
		t.Error("the network is the deleted one")
	}
	w.wantLeft(made(1))
	w.server.Inject(nil)
}

// Only changes that ask for work are reconciled, and only those that matter to waiting pods
// wake them.
func TestDue(t *testing.T) {
	record := func(ready, full string) *v1alpha1.NamespaceNetwork {
		o := &v1alpha1.NamespaceNetwork{}
		for kind, text := range map[string]string{v1alpha1.ConditionNetworkReady: ready, v1alpha1.ConditionNetworkFull: full} {
			if status, reason, ok := strings.Cut(text, " "); ok {
				o.Status.Conditions = append(o.Status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionStatus(status), Reason: reason})
			}
		}
		return o
	}
	deleted := func(o *v1alpha1.NamespaceNetwork) *v1alpha1.NamespaceNetwork {
		o.DeletionTimestamp = &metav1.Time{}
		return o
	}
	const fine, room = "True Made", "False AddressesLeft"
	for _, c := range []struct {
		name        string
		old, now    *v1alpha1.NamespaceNetwork
		due, awaken bool
	}{
		{"made", record("False Making", ""), record(fine, room), false, true},
		{"failed", record("False Making", ""), record("False Exhausted", ""), false, true},
		{"full", record(fine, room), record(fine, "True NoAddressLeft"), true, true},
		{"extended", record(fine, "True NoAddressLeft"), record(fine, room), false, true},
		{"not extended", record(fine, "True NoAddressLeft"), record(fine, "True Exhausted"), false, true},
		{"not found", record(fine, room), record("False Checking", room), true, true},
		{"deleted", record(fine, room), deleted(record(fine, room)), true, false},
		{"still deleted", deleted(record(fine, room)), deleted(record(fine, room)), false, false},
		{"nothing", record(fine, room), record(fine, room), false, false},
	} {
		if got := due().Update(updateOf(c.old, c.now)); got != c.due {
			t.Errorf("%s: due is %v", c.name, got)
		}
		n, woken := New(Config{}), false
		n.OnChange(func() { woken = true })
		n.wakes().Update(t.Context(), updateOf(c.old, c.now), nil)
		if woken != c.awaken {
			t.Errorf("%s: woken is %v", c.name, woken)
		}
	}
}

// Another namespace whose record has the name of this one has to go first.
func TestNameOfAnother(t *testing.T) {
	w := newWorld(t)
	w.namespace("blue", blueUID)
	w.network("blue")
	ns := "1a2b3c4d-ffff-4000-8000-000000000009"
	if err := w.api.Delete(t.Context(), namespaceObject("blue")); err != nil {
		t.Fatal(err)
	}
	w.namespace("blue", ns)
	w.refused("blue", "Unavailable", "NamespaceNetwork blue-1a2b3c4d is that of another namespace, blue with UID "+blueUID)
	w.collect()
	w.settle()
	w.network("blue")
	if got := w.record(blue).Spec.NamespaceUID; got != ns {
		t.Errorf("the record is that of UID %s", got)
	}
}

// A record without its finalizer is left alone.
func TestFinalizerTakenOff(t *testing.T) {
	w := newWorld(t)
	w.namespace("blue", blueUID)
	w.network("blue")
	o := w.record(blue)
	o.Finalizers = nil
	if err := w.api.Update(t.Context(), &o); err != nil {
		t.Fatal(err)
	}
	w.server.ResetCalls()
	if _, err := w.nets.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: blue}}); err != nil || len(w.server.Calls()) > 0 {
		t.Errorf("%v, calls %v", err, w.server.Calls())
	}
	if err := client.IgnoreNotFound(w.api.Delete(t.Context(), &o)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.nets.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: blue}}); err != nil || len(w.records()) > 0 {
		t.Errorf("%v, records %v", err, w.records())
	}
}
