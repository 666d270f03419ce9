package slim

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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
