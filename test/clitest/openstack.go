package clitest

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli/kube"
)

// cloudOf returns a Cloud that answers. with changes it.
func cloudOf(with ...func(*v1alpha1.CloudStatus)) v1alpha1.Cloud {
	o := v1alpha1.Cloud{ObjectMeta: metav1.ObjectMeta{Name: "east"}, Status: v1alpha1.CloudStatus{
		CheckedAt: new(Ago(2 * time.Minute)), Project: "b1946ac92492d2347c6235b4d2611184", Summary: "12 ACTIVE, 1 DOWN",
		Quotas: []v1alpha1.CloudQuota{{Resource: "port", Limit: 500, Used: 40}, {Resource: "network", Limit: 100, Used: 2}},
		Conditions: []metav1.Condition{
			Condition(v1alpha1.ConditionConnected, metav1.ConditionTrue, "Answered"),
			Condition(v1alpha1.ConditionQuotaLeft, metav1.ConditionTrue, "Enough"),
			Condition(v1alpha1.ConditionTagInCreate, metav1.ConditionFalse, "Tried"),
		},
	}}
	for _, change := range with {
		change(&o.Status)
	}
	return o
}

// OnOpenStack returns a quiet cluster with a Cloud.
func OnOpenStack(with ...func(*v1alpha1.CloudStatus)) kube.Snapshot {
	snap := Quiet()
	snap.Clouds = []v1alpha1.Cloud{cloudOf(with...)}
	return snap
}

// Leaving has two ports that no pod explains.
func Leaving(s *v1alpha1.CloudStatus) {
	s.LeftCount = 2
	s.Left = []v1alpha1.CloudLeft{
		{ID: "5d8a1f6e-0000-4000-8000-000000000001", Name: "shop/cart-7/eth0", Collected: true, Reason: "its pod is gone, and no PodAttachment names it"},
		{ID: "5d8a1f6e-0000-4000-8000-000000000002", Name: "web", Reason: "it has the device ID of this cluster, and its name, description or project was changed: delete it by hand if no pod uses it"},
	}
}

// WithLostNode adds a node that is gone, whose entries the cloud still has.
func WithLostNode(snap kube.Snapshot) kube.Snapshot {
	gone := v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: "node-9", DeletionTimestamp: &metav1.Time{Time: Now}, Finalizers: []string{v1alpha1.FabricFinalizer}}}
	failed := Condition(v1alpha1.ConditionFabricReady, metav1.ConditionFalse, "Forbidden")
	failed.Message = "port 5d8a1f6e-0000-4000-8000-000000000009: forbidden"
	gone.Spec.Fabric = &v1alpha1.Fabric{
		Port: "5d8a1f6e-0000-4000-8000-000000000009", Pairs: []string{"10.244.0.0/16"}, Group: "5d8a1f6e-0000-4000-8000-000000000008",
		Router: "5d8a1f6e-0000-4000-8000-000000000007", Routes: []v1alpha1.FabricRoute{{Destination: "10.244.9.0/26", NextHop: "192.0.2.19"}},
		Conditions: []metav1.Condition{failed},
	}
	snap.Nodes = append(slices.Clone(snap.Nodes), gone)
	return snap
}
