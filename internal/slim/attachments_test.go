package slim

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// testRecord returns a PodAttachment with all fields that the program writes.
func testRecord() *v1alpha1.PodAttachment {
	at, micro := metav1.NewTime(time.Unix(1_700_000_000, 0)), metav1.NewMicroTime(time.Unix(1_700_000_000, 123_000))
	return &v1alpha1.PodAttachment{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "PodAttachment"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web-12345678", UID: "1", ResourceVersion: "7", Generation: 3,
			CreationTimestamp: at, DeletionTimestamp: &at, DeletionGracePeriodSeconds: new(int64(0)),
			Labels: map[string]string{v1alpha1.LabelNode: "node-1"}, Annotations: map[string]string{"note": "\"managedFields\":[ \\ \u2028 <&>"},
			Finalizers:      []string{v1alpha1.ReleaseFinalizer},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "web", UID: "12345678"}},
		},
		Spec: v1alpha1.PodAttachmentSpec{
			PodName: "web", PodUID: "12345678", NodeName: "node-1", NodeUID: "0d9c1f6e-node",
			Interfaces: []v1alpha1.Interface{
				{Name: "eth0", Network: "default", Driver: "native", Default: true, Addresses: []string{"10.1.0.5/24"}, Gateways: []string{"10.1.0.1"}, MTU: 1400, Binding: v1alpha1.Binding{Bridge: &v1alpha1.BridgeBinding{Name: "fairlead0"}}},
			},
			Summary: v1alpha1.AttachmentSummary{Interfaces: "eth0", Addresses: "10.1.0.5"},
		},
		Status: v1alpha1.PodAttachmentStatus{
			Sandbox:    &v1alpha1.Sandbox{ID: "c0ffee", BootID: "b", State: v1alpha1.SandboxAttached, AttachedAt: &micro},
			Conditions: []metav1.Condition{{Type: v1alpha1.ConditionAttached, Status: metav1.ConditionTrue, Reason: "Plugged", Message: "plugged", LastTransitionTime: at}},
		},
	}
}

// managed are managed fields, the API server's account of who wrote which field.
var managed = []metav1.ManagedFieldsEntry{{
	Manager: "fairlead-node", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1",
	FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{".":{},"f:}]\"":{}}}}`),
}}

// benchmark measures decoding of data by this package and by client-go.
func benchmark(b *testing.B, data []byte, slim, standard func() error) {
	b.Helper()
	for name, decode := range map[string]func() error{"slim": slim, "client-go": standard} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				if err := decode(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
