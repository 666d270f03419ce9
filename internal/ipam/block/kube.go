package block

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// Kube is a Client over the API server, without a cache.
type Kube struct {
	Writer client.Writer
	Live   client.Reader
}

// Create implements Client.
func (k Kube) Create(ctx context.Context, o *v1alpha1.IPBlock) (*v1alpha1.IPBlock, error) {
	o = o.DeepCopy()
	return o, k.Writer.Create(ctx, o)
}

// Update implements Client. One empty entry clears the managed fields (Kubernetes,
// server-side apply, "clearing managedFields"). IPBlocks have one writer, so the fields
// are useless, and the API server spends a quarter of a write on them (3.7 ms of
// processor time with, 2.9 ms without).
func (k Kube) Update(ctx context.Context, o *v1alpha1.IPBlock) (*v1alpha1.IPBlock, error) {
	o = o.DeepCopy()
	o.ManagedFields = []metav1.ManagedFieldsEntry{{}}
	return o, k.Writer.Update(ctx, o)
}

// Get implements Client.
func (k Kube) Get(ctx context.Context, name string) (*v1alpha1.IPBlock, error) {
	o := &v1alpha1.IPBlock{}
	return o, k.Live.Get(ctx, client.ObjectKey{Name: name}, o)
}

// Delete implements Client.
func (k Kube) Delete(ctx context.Context, o *v1alpha1.IPBlock) error {
	return k.Writer.Delete(ctx, o, client.Preconditions{UID: &o.UID, ResourceVersion: &o.ResourceVersion})
}
