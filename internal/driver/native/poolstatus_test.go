package native

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam/block"
	"fairlead.dev/fairlead/test/cluster"
)

type noGauges struct{}

func (noGauges) Pool(string, string, float64)         {}
func (noGauges) Exhausts(string, time.Duration, bool) {}
func (noGauges) NoPool(string)                        {}

// behind is a client whose reads, as a cache's may, still show a pool.
type behind struct {
	client.Client
	pool *v1alpha1.IPPool
}

func (b behind) Get(_ context.Context, _ client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	b.pool.DeepCopyInto(into.(*v1alpha1.IPPool))
	return nil
}

// A pool that went while its status was being written is no failure.
func TestStatusOfAPoolThatWent(t *testing.T) {
	c := cluster.New(t)
	pool := &v1alpha1.IPPool{
		ObjectMeta: metav1.ObjectMeta{Name: c.Namespace},
		Spec:       v1alpha1.IPPoolSpec{Ranges: []string{"10.1.0.0/28"}},
	}
	r := &PoolStatus{
		Client: behind{c.Client, pool},
		Pools:  NewPools(),
		Store:  block.New(Blocks{Writer: c.Client, Live: c.Client}, block.Config{}),
		Gauges: noGauges{},
		Synced: func() bool { return true },
	}
	if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(pool)}); err != nil {
		t.Error(err)
	}
}
