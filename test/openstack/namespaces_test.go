package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/layer3/routers"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/subnetpools"
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

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/openstack/cloud"
	"fairlead.dev/fairlead/internal/openstack/namespace"
	"fairlead.dev/fairlead/test/openstack/lab"
)

// ownName begins the names of the objects of the test in the cloud.
const ownName = "nsnet"

// ownNetworks has the networks of namespaces in a real cloud, and their records in memory.
type ownNetworks struct {
	*testing.T
	neutron *gophercloud.ServiceClient
	cloud   *cloud.Cloud
	api     client.Client
	nets    *namespace.Networks
}

// A real Neutron makes, extends and removes the network of a namespace.
func TestNamespaceNetworks(t *testing.T) {
	l := lab.Use(t)
	w := &ownNetworks{T: t}
	var err error
	if w.neutron, err = l.Network(t.Context(), lab.K8s); err != nil {
		t.Fatal(err)
	}
	if w.cloud, err = cloud.New(t.Context(), cloud.Config{File: l.Clouds, Cloud: lab.K8s, Cluster: ownName}); err != nil {
		t.Fatal(err)
	}
	w.prepare()
	before := w.quotas()
	start := time.Now()
	network := w.made()
	t.Logf("the network of a namespace took %v", time.Since(start))
	t.Logf("its use of quotas: %v", w.difference(before))

	// A subnet of 29 bits has room for five ports.
	var ports []string
	for n := 0; len(ports) < 7; n++ {
		if n > 12 {
			t.Fatal("the network does not grow")
		}
		id, err := w.port(network, n)
		switch {
		case err == nil:
			ports = append(ports, id)
		case errors.Is(err, cloud.ErrFull):
			_ = w.nets.Failed(t.Context(), ownName, err)
			w.reconcile()
		default:
			t.Fatal(err)
		}
	}
	o := w.record()
	if len(o.Status.Subnets) != 3 || meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.ConditionNetworkFull) {
		t.Errorf("status after 7 ports: %+v, want two subnets of IPv4 and one of IPv6", o.Status)
	}
	w.reconcile() // as after a change of the leader

	if err := w.api.Delete(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	w.reconcile()
	if c := meta.FindStatusCondition(w.record().Status.Conditions, v1alpha1.ConditionNetworkReady); c == nil || c.Reason != "PortsLeft" {
		t.Errorf("condition with ports: %+v", c)
	}
	for _, p := range ports {
		if err := w.cloud.DeletePort(t.Context(), p); err != nil {
			t.Error(err)
		}
	}
	w.reconcile()
	if left := w.difference(before); len(left) > 0 {
		t.Errorf("left in the cloud: %v", left)
	}
	if found, err := w.cloud.NetworksOf(t.Context(), ""); err != nil || len(found) > 0 {
		t.Errorf("left networks: %v, %v", found, err)
	}
}

// prepare makes a router, a subnet pool of each family, and a namespace.
func (w *ownNetworks) prepare() {
	w.Helper()
	ctx := w.Context()
	later := context.WithoutCancel(ctx)
	r, err := routers.Create(ctx, w.neutron, routers.CreateOpts{Name: ownName}).Extract()
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		if err := routers.Delete(later, w.neutron, r.ID).ExtractErr(); err != nil {
			w.Error(err)
		}
	})
	for _, p := range []subnetpools.CreateOpts{
		{Name: ownName + "-v4", Prefixes: []string{"10.94.0.0/27"}, DefaultPrefixLen: 29, MinPrefixLen: 29},
		{Name: ownName + "-v6", Prefixes: []string{"fd94::/56"}, DefaultPrefixLen: 64, MinPrefixLen: 64},
	} {
		pool, err := subnetpools.Create(ctx, w.neutron, p).Extract()
		if err != nil {
			w.Fatal(err)
		}
		w.Cleanup(func() {
			if err := subnetpools.Delete(later, w.neutron, pool.ID).ExtractErr(); err != nil {
				w.Error(err)
			}
		})
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme)); err != nil {
		w.Fatal(err)
	}
	w.api = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.NamespaceNetwork{}).
		WithObjects(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ownName, UID: "1a2b3c4d-0000-4000-8000-000000000001"}}).Build()
	w.nets = namespace.New(namespace.Config{
		Client: w.api, Live: w.api, Events: events.NewFakeRecorder(100), Cluster: ownName, Interval: time.Hour,
		Served: labels.Everything(), SubnetPools: []string{ownName + "-v4", ownName + "-v6"}, Router: ownName,
		Connect: func(context.Context) (*cloud.Cloud, error) { return w.cloud, nil },
	})
}

// made has the network made, and returns its ID.
func (w *ownNetworks) made() string {
	w.Helper()
	if id, err := w.nets.Network(w.Context(), ownName, ""); err == nil {
		w.Fatalf("network %s is there already", id)
	}
	w.reconcile()
	id, err := w.nets.Network(w.Context(), ownName, "")
	if err != nil {
		w.Fatal(err)
	}
	return id
}

func (w *ownNetworks) reconcile() {
	w.Helper()
	if _, err := w.nets.Reconcile(w.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: ownName + "-1a2b3c4d"}}); err != nil {
		w.Fatal(err)
	}
}

func (w *ownNetworks) record() *v1alpha1.NamespaceNetwork {
	w.Helper()
	o := &v1alpha1.NamespaceNetwork{}
	if err := w.api.Get(w.Context(), client.ObjectKey{Name: ownName + "-1a2b3c4d"}, o); err != nil {
		w.Fatal(err)
	}
	return o
}

func (w *ownNetworks) port(network string, n int) (string, error) {
	p, err := w.cloud.CreatePort(w.Context(), cloud.PortSpec{Name: fmt.Sprint(ownName, "-", n), Network: network, DeviceID: fmt.Sprint(ownName, "-", n), DeviceOwner: "compute:" + ownName})
	if err == nil && (len(p.Addresses) != 2 || !slices.ContainsFunc(p.Addresses, func(a cloud.Address) bool { return strings.HasPrefix(a.Addr.String(), "10.94.0.") })) {
		w.Errorf("port with %v, want an address of each family", p.Addresses)
	}
	return p.ID, err
}

// quotas returns the used part of each quota of the test's objects.
func (w *ownNetworks) quotas() map[string]int {
	w.Helper()
	all, err := w.cloud.Quotas(w.Context(), "")
	if err != nil {
		w.Fatal(err)
	}
	out := map[string]int{}
	for _, name := range []string{"network", "subnet", "port", "router", "subnetpool"} {
		out[name] = all[name].Used
	}
	return out
}

// difference returns the quotas whose use has changed.
func (w *ownNetworks) difference(before map[string]int) map[string]int {
	w.Helper()
	out := map[string]int{}
	for name, n := range w.quotas() {
		if n != before[name] {
			out[name] = n - before[name]
		}
	}
	return out
}
