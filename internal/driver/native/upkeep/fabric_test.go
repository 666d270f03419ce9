package upkeep

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// The record of the fabric is in the same spec: a change of the blocks leaves it alone.
// Otherwise the entries in the cloud were never removed.
func TestBlocksLeaveTheFabricAlone(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	had := &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: v1alpha1.NodeNetworkSpec{
		Blocks: []string{"10.244.1.0/26"}, Fabric: &v1alpha1.Fabric{Port: "p", Pairs: []string{"10.244.0.0/16"}},
	}}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(had).Build()
	r := &Nodes{Client: c}
	if err := r.write(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, []string{"10.244.2.0/26"}); err != nil {
		t.Fatal(err)
	}
	got := &v1alpha1.NodeNetwork{}
	if err := c.Get(t.Context(), client.ObjectKey{Name: "n1"}, got); err != nil {
		t.Fatal(err)
	}
	if got.Spec.Blocks[0] != "10.244.2.0/26" || got.Spec.Fabric == nil || got.Spec.Fabric.Port != "p" {
		t.Errorf("spec %+v", got.Spec)
	}
}
