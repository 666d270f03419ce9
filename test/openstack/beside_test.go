package main

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/openstack/cloud"
	"fairlead.dev/fairlead/internal/openstack/fabric"
	"fairlead.dev/fairlead/test/openstack/lab"
)

// otherCluster is the fabric of another cluster on the same machines, with its objects in
// memory.
type otherCluster struct {
	f   *fabricBed
	api client.Client
}

const otherName = "other"

// beside has the fabric of another cluster join and leave the same ports, which has the
// range of the first cluster and one of its own.
func (f *fabricBed) beside() {
	f.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme)); err != nil {
		f.Fatal(err)
	}
	o := &otherCluster{f: f, api: fake.NewClientBuilder().WithScheme(scheme).Build()}
	for name, cidr := range map[string]string{"same": fabricPods, "own": fabricMore} {
		o.create(&v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.IPPoolSpec{Ranges: []string{cidr}, Placement: v1alpha1.PlacementPerNode}})
	}
	for _, n := range f.nodes {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}
		ofMachine(n, true)(node)
		o.create(node)
		o.create(&v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: n.Name}, Spec: v1alpha1.NodeNetworkSpec{Underlay: []string{n.address.String() + "/32"}}})
	}
	o.reconcile(false)
	mine, _, err := f.groupOf(f.Context(), bedName)
	if err != nil {
		f.Fatal(err)
	}
	theirs, prefixes, err := f.groupOf(f.Context(), otherName)
	if err = errors.Join(err, differ("rules of the other cluster", []string{fabricPods, fabricMore}, prefixes)); err != nil {
		f.Error(err)
	}
	for _, n := range f.nodes {
		if err := f.portDiffers(f.Context(), n.port, []string{fabricPods, fabricMore}, []string{f.own, mine, theirs}); err != nil {
			f.Errorf("with two clusters: %v", err)
		}
	}
	f.killLeader() // its comparison leaves the entries of the other
	f.pool("fabric-last", "10.99.0.0/24")
	for _, n := range f.nodes {
		f.await("the entries of both clusters", func(ctx context.Context) error {
			return f.portDiffers(ctx, n.port, []string{fabricPods, fabricMore, "10.99.0.0/24"}, []string{f.own, mine, theirs})
		})
	}
	o.reconcile(true)
	o.reconcile(true) // the comparison of the next leader removes the group
	if id, _, err := f.groupOf(f.Context(), otherName); err != nil || id != "" {
		f.Errorf("group %s of the other cluster is left, %v", id, err)
	}
	f.awaitEntries([]string{fabricPods, "10.99.0.0/24"}, []string{fabricPods, "10.99.0.0/24"})
	f.reach(f.nodes...)
}

func (o *otherCluster) create(object client.Object) {
	o.f.Helper()
	if err := o.api.Create(o.f.Context(), object); err != nil {
		o.f.Fatal(err)
	}
}

// reconcile is a new leader of the other cluster, which reconciles all nodes.
func (o *otherCluster) reconcile(remove bool) {
	o.f.Helper()
	metrics, err := fabric.NewMetrics(prometheus.NewRegistry())
	if err != nil {
		o.f.Fatal(err)
	}
	leader := fabric.New(fabric.Config{
		Client: o.api, Events: events.NewFakeRecorder(100), Metrics: metrics, Cluster: otherName, Remove: remove,
		Connect: func(ctx context.Context) (fabric.Calls, error) {
			c, err := cloud.New(ctx, cloud.Config{File: o.f.lab.Clouds, Cloud: lab.K8s, Cluster: otherName})
			return fabric.Calls{Ports: c, Routers: c.Routers, Groups: c.Groups, Rules: c.Groups}, err
		},
	})
	ctx, cancel := context.WithCancel(o.f.Context())
	done := make(chan error, 1)
	go func() { done <- leader.Run(ctx) }()
	for _, n := range o.f.nodes {
		if _, err := leader.Reconcile(ctx, ctrl.Request{NamespacedName: client.ObjectKey{Name: n.Name}}); err != nil {
			o.f.Fatal(err)
		}
	}
	cancel()
	if err := <-done; err != nil {
		o.f.Error(err)
	}
}
