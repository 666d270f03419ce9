package cli

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli/kube"
)

// cloudOf returns a Cloud that answers. with changes it.
func cloudOf(with ...func(*v1alpha1.CloudStatus)) v1alpha1.Cloud {
	o := v1alpha1.Cloud{ObjectMeta: metav1.ObjectMeta{Name: "east"}, Status: v1alpha1.CloudStatus{
		CheckedAt: new(ago(2 * time.Minute)), Project: "b1946ac92492d2347c6235b4d2611184", Summary: "12 ACTIVE, 1 DOWN",
		Quotas: []v1alpha1.CloudQuota{{Resource: "port", Limit: 500, Used: 40}, {Resource: "network", Limit: 100, Used: 2}},
		Conditions: []metav1.Condition{
			condition(v1alpha1.ConditionConnected, metav1.ConditionTrue, "Answered"),
			condition(v1alpha1.ConditionQuotaLeft, metav1.ConditionTrue, "Enough"),
			condition(v1alpha1.ConditionTagInCreate, metav1.ConditionFalse, "Tried"),
		},
	}}
	for _, change := range with {
		change(&o.Status)
	}
	return o
}

// onOpenStack returns a quiet cluster with a Cloud.
func onOpenStack(with ...func(*v1alpha1.CloudStatus)) kube.Snapshot {
	snap := quiet()
	snap.Clouds = []v1alpha1.Cloud{cloudOf(with...)}
	return snap
}

// leaving has two ports that no pod explains.
func leaving(s *v1alpha1.CloudStatus) {
	s.LeftCount = 2
	s.Left = []v1alpha1.CloudLeft{
		{ID: "5d8a1f6e-0000-4000-8000-000000000001", Name: "shop/cart-7/eth0", Collected: true, Reason: "its pod is gone, and no PodAttachment names it"},
		{ID: "5d8a1f6e-0000-4000-8000-000000000002", Name: "web", Reason: "it has the device ID of this cluster, and its name, description or project was changed: delete it by hand if no pod uses it"},
	}
}

// withLostNode adds a node that is gone, whose entries the cloud still has.
func withLostNode(snap kube.Snapshot) kube.Snapshot {
	gone := v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: "node-9", DeletionTimestamp: &metav1.Time{Time: now}, Finalizers: []string{v1alpha1.FabricFinalizer}}}
	failed := condition(v1alpha1.ConditionFabricReady, metav1.ConditionFalse, "Forbidden")
	failed.Message = "port 5d8a1f6e-0000-4000-8000-000000000009: forbidden"
	gone.Spec.Fabric = &v1alpha1.Fabric{
		Port: "5d8a1f6e-0000-4000-8000-000000000009", Pairs: []string{"10.244.0.0/16"}, Group: "5d8a1f6e-0000-4000-8000-000000000008",
		Router: "5d8a1f6e-0000-4000-8000-000000000007", Routes: []v1alpha1.FabricRoute{{Destination: "10.244.9.0/26", NextHop: "192.0.2.19"}},
		Conditions: []metav1.Condition{failed},
	}
	snap.Nodes = append(slices.Clone(snap.Nodes), gone)
	return snap
}

// Only nodes that are gone have entries that are about to be removed.
func TestNodesOfGC(t *testing.T) {
	snap := withLostNode(onOpenStack())
	living := *snap.Nodes[len(snap.Nodes)-1].DeepCopy()
	living.Name, living.DeletionTimestamp = "node-8", nil
	freed := *snap.Nodes[len(snap.Nodes)-1].DeepCopy()
	freed.Name, freed.Finalizers = "node-7", []string{"another"}
	snap.Nodes = append(snap.Nodes, living, freed)
	v := buildGC(auditOf(sound()), snap)
	if len(v.Nodes) != 1 || v.Nodes[0].Name != "node-9" || v.OK {
		t.Errorf("nodes %+v, OK %v", v.Nodes, v.OK)
	}
}

func TestAttentionToOpenStack(t *testing.T) {
	turned := func(kind, reason string) func(*v1alpha1.CloudStatus) {
		return func(s *v1alpha1.CloudStatus) {
			s.Conditions = append([]metav1.Condition{condition(kind, metav1.ConditionFalse, reason)}, s.Conditions...)
		}
	}
	for name, test := range map[string]struct {
		snap kube.Snapshot
		want []string
	}{
		"well":            {onOpenStack(), []string{}},
		"away":            {onOpenStack(turned(v1alpha1.ConditionConnected, "NoAnswer")), []string{"OpenStack east: Connected: NoAnswer: NoAnswer it is"}},
		"quota":           {onOpenStack(turned(v1alpha1.ConditionQuotaLeft, "QuotaLow")), []string{"OpenStack east: QuotaLeft: QuotaLow: QuotaLow it is"}},
		"no right":        {onOpenStack(turned(v1alpha1.ConditionBindHost, "Tried")), []string{"OpenStack east: BindHost: Tried: Tried it is"}},
		"ports are left":  {onOpenStack(leaving), []string{"OpenStack east: garbage collection leaves 1 port alone: see fairlead gc --dry-run"}},
		"nothing is seen": {kube.Snapshot{Now: now, Clouds: []v1alpha1.Cloud{{}}, Lease: quiet().Lease, Nodes: quiet().Nodes}, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, buildStatus(test.snap).Attention); diff != "" {
				t.Errorf("attention (-want +got):\n%s", diff)
			}
		})
	}
}
