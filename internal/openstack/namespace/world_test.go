package namespace

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/openstack/cloud"
	"fairlead.dev/fairlead/test/cloudtest"
)

// world is an API server and a cloud in memory.
type world struct {
	*testing.T
	server *cloudtest.Server
	cloud  *cloud.Cloud
	api    client.WithWatch
	events *events.FakeRecorder
	cfg    Config
	nets   *Networks
	// write is called before and after each write of the API; an error is returned in place
	// of the result.
	write func(after bool) error
}

// newWorld has a router and a subnet pool of each family. That of IPv4 has four prefixes with
// room for five ports each.
func newWorld(t *testing.T) *world {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, server: cloudtest.New(t), events: events.NewFakeRecorder(1000), write: func(bool) error { return nil }}
	w.server.Add(t, "routers", cloudtest.AdminProject, cloudtest.Object{"name": "gateway"})
	for name, prefix := range map[string]string{"v4": "10.64.0.0/27", "v6": "fd64::/56"} {
		length := map[string]float64{"v4": 29, "v6": 64}[name]
		w.server.Add(t, "subnetpools", cloudtest.AdminProject, cloudtest.Object{"name": name, "prefixes": []any{prefix}, "default_prefixlen": length, "min_prefixlen": length})
	}
	w.cloud = w.connect("east")
	base := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.NamespaceNetwork{}).Build()
	written := func(do func() error) error {
		if err := w.write(false); err != nil {
			return err
		}
		return errors.Join(do(), w.write(true))
	}
	w.api = interceptor.NewClient(base, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return written(func() error { return c.Create(ctx, o, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			return written(func() error { return c.Patch(ctx, o, p, opts...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			return written(func() error { return c.SubResource(sub).Patch(ctx, o, p, opts...) })
		},
	})
	w.cfg = Config{
		Client: w.api, Live: w.api, Events: w.events, Cluster: "east", Served: labels.Everything(), SubnetPools: []string{"v4", "v6"}, Router: "gateway", Interval: time.Hour,
		Connect: func(context.Context) (*cloud.Cloud, error) { return w.cloud, nil },
	}
	w.nets = New(w.cfg)
	return w
}

func (w *world) connect(cluster string) *cloud.Cloud {
	w.Helper()
	c, err := cloud.New(w.Context(), cloud.Config{File: w.server.File, Cloud: cloudtest.Admin, Cluster: cluster})
	if err != nil {
		w.Fatal(err)
	}
	return c
}

// namespace creates a namespace with a UID.
func (w *world) namespace(name, uid string, label ...string) {
	w.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid), Labels: map[string]string{}}}
	for i := 0; i+1 < len(label); i += 2 {
		ns.Labels[label[i]] = label[i+1]
	}
	if err := w.api.Create(w.Context(), ns); err != nil {
		w.Fatal(err)
	}
}

// end deletes a namespace, and then its records, as Kubernetes' garbage collection does.
func (w *world) end(name string) {
	w.Helper()
	if err := w.api.Delete(w.Context(), namespaceObject(name)); client.IgnoreNotFound(err) != nil {
		w.Fatal(err)
	}
	w.collect()
}

// collect deletes the records whose owner is gone.
func (w *world) collect() {
	w.Helper()
	for _, o := range w.records() {
		ns := &corev1.Namespace{}
		err := w.api.Get(w.Context(), client.ObjectKey{Name: o.OwnerReferences[0].Name}, ns)
		if err == nil && ns.UID == o.OwnerReferences[0].UID {
			continue
		}
		if err := w.api.Delete(w.Context(), &o); client.IgnoreNotFound(err) != nil {
			w.Fatal(err)
		}
	}
}

func (w *world) records() []v1alpha1.NamespaceNetwork {
	w.Helper()
	list := &v1alpha1.NamespaceNetworkList{}
	if err := w.api.List(w.Context(), list); err != nil {
		w.Fatal(err)
	}
	return list.Items
}

func (w *world) record(name string) v1alpha1.NamespaceNetwork {
	w.Helper()
	for _, o := range w.records() {
		if o.Name == name {
			return o
		}
	}
	w.Fatalf("no NamespaceNetwork %s", name)
	return v1alpha1.NamespaceNetwork{}
}

// reconcile reconciles all records once, and returns the errors.
func (w *world) reconcile() error {
	w.Helper()
	var errs []error
	for _, o := range w.records() {
		_, err := w.nets.Reconcile(w.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: o.Name}})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// settle reconciles all records some times.
func (w *world) settle() {
	w.Helper()
	for range 3 {
		if err := w.reconcile(); err != nil {
			w.Fatal(err)
		}
	}
}

// network returns a namespace's network, which is made first if there is none.
func (w *world) network(namespace string) string {
	w.Helper()
	if id, err := w.nets.Network(w.Context(), namespace, ""); err == nil {
		return id
	}
	w.settle()
	id, err := w.nets.Network(w.Context(), namespace, "")
	if err != nil || id == "" {
		w.Fatalf("network of namespace %s: %q, %v", namespace, id, err)
	}
	return id
}

// refused checks the error of Network.
func (w *world) refused(namespace, result string, texts ...string) {
	w.Helper()
	id, err := w.nets.Network(w.Context(), namespace, "")
	if err == nil || driver.Result(err) != result {
		w.Fatalf("network of namespace %s: %q, %v, want %s", namespace, id, err, result)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			w.Errorf("network of namespace %s: %v, want %q", namespace, err, text)
		}
	}
}

// port creates a port of a pod.
func (w *world) port(network, name string) (string, error) {
	w.Helper()
	p, err := w.cloud.CreatePort(w.Context(), cloud.PortSpec{Name: name, Network: network, DeviceID: "fairlead/east/" + name, DeviceOwner: "compute:fairlead"})
	return p.ID, err
}

// left counts the objects that are left, by resource. The router and the pools stay.
func (w *world) left() map[string]int {
	out := map[string]int{}
	for _, r := range []string{"networks", "subnets", "ports"} {
		if n := len(w.server.Objects(r)); n > 0 {
			out[r] = n
		}
	}
	if n := len(w.records()); n > 0 {
		out["records"] = n
	}
	return out
}

// made is what a namespace with its network has.
func made(n int) map[string]int {
	return map[string]int{"networks": n, "subnets": 2 * n, "ports": 2 * n, "records": n}
}

func (w *world) wantLeft(want map[string]int) {
	w.Helper()
	if got := w.left(); !maps.Equal(got, want) {
		w.Errorf("there is %v, want %v", got, want)
	}
}

// condition returns the status and the reason of a condition, as "True Made".
func condition(o v1alpha1.NamespaceNetwork, kind string) string {
	c := meta.FindStatusCondition(o.Status.Conditions, kind)
	if c == nil {
		return ""
	}
	return string(c.Status) + " " + c.Reason
}

func (w *world) wantConditions(name, ready, full string) {
	w.Helper()
	o := w.record(name)
	if r, f := condition(o, v1alpha1.ConditionNetworkReady), condition(o, v1alpha1.ConditionNetworkFull); r != ready || f != full {
		w.Errorf("NamespaceNetwork %s is Ready %s, Full %s; want %s, %s: %+v", name, r, f, ready, full, o.Status.Conditions)
	}
}

// eventsSince returns the events since the last call.
func (w *world) eventsSince() (all []string) {
	for {
		select {
		case e := <-w.events.Events:
			all = append(all, e)
		default:
			return slices.Compact(all)
		}
	}
}

// writes returns the number of calls that change the cloud.
func (w *world) writes() int {
	n := 0
	for call, times := range w.server.Calls() {
		if !strings.HasPrefix(call, "GET ") {
			n += times
		}
	}
	return n
}

func updateOf(old, now client.Object) event.UpdateEvent {
	return event.UpdateEvent{ObjectOld: old, ObjectNew: now}
}

func namespaceObject(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}
