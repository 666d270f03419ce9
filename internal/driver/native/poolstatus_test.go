package native

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block"
	"fairlead.dev/fairlead/test/blocktest"
	"fairlead.dev/fairlead/test/cluster"
	"fairlead.dev/fairlead/test/drivertest"
)

type noGauges struct{}

func (noGauges) Pool(string, string, float64) {}

func (noGauges) Exhausts(string, time.Duration, bool) {}

func (noGauges) Valid(string, bool) {}

func (noGauges) NoPool(string) {}

// behind is a client whose reads return a deleted pool, as a cache that is behind does.
type behind struct {
	client.Client
	pool *v1alpha1.IPPool
}

func (b behind) Get(_ context.Context, _ client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	b.pool.DeepCopyInto(into.(*v1alpha1.IPPool))
	return nil
}

// gone is a client that finds no pool, and gauges that record the calls of NoPool.
type gone struct {
	client.Client
	noGauges
	ended []string
}

func (*gone) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	return apierrors.NewNotFound(schema.GroupResource{Resource: "ippools"}, key.Name)
}

func (g *gone) NoPool(pool string) { g.ended = append(g.ended, pool) }

// The gauges and samples of a pool end with it: pools of networks come and go.
func TestGaugesEndWithTheirPool(t *testing.T) {
	g := &gone{}
	r := &PoolStatus{Client: g, Pools: NewPools(), Gauges: g, Synced: func() bool { return true }}
	r.forecast.note(family{"wb-x", ipam.IPv4}, ipam.Counts{Usable: 9, Free: 9}, time.Now())
	if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Name: "wb-x"}}); err != nil {
		t.Fatal(err)
	}
	if len(g.ended) != 1 || g.ended[0] != "wb-x" || len(r.forecast.m) != 0 {
		t.Errorf("ended %v, %d forecasts", g.ended, len(r.forecast.m))
	}
}

// editedPool is a client that has one pool, which a person edits.
type editedPool struct {
	client.Client
	pool *v1alpha1.IPPool
}

func (e *editedPool) Get(_ context.Context, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	e.pool.DeepCopyInto(o.(*v1alpha1.IPPool))
	return nil
}

func (*editedPool) Status() client.SubResourceWriter { return writtenStatus{} }

// writtenStatus accepts each patch.
type writtenStatus struct{ client.SubResourceWriter }

func (writtenStatus) Patch(context.Context, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
	return nil
}

// validity records the calls of its methods.
type validity struct {
	noGauges
	calls []string
}

func (v *validity) Valid(pool string, valid bool) {
	v.calls = append(v.calls, fmt.Sprint(pool, " valid ", valid))
}

func (v *validity) NoPool(pool string) { v.calls = append(v.calls, pool+" removed") }

// A pool whose spec is refused has no counts, and a gauge that shows the refusal.
func TestGaugeOfARefusedPool(t *testing.T) {
	d, g := start(t, blocktest.NewAPI()), &validity{}
	e := &editedPool{pool: &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "a"}}}
	r := &PoolStatus{Client: e, Pools: d.pools, Store: d.store, Gauges: g, Synced: func() bool { return true }}
	for _, ranges := range []string{"10.0.0.0/28", "10.0.0.0/99", "10.0.0.0/28"} {
		e.pool.Spec.Ranges = []string{ranges}
		if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Name: "a"}}); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"a valid true", "a removed", "a valid false", "a valid true"}, g.calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// It is no error if a pool is deleted while its status is being written.
func TestStatusOfAPoolThatWent(t *testing.T) {
	c := cluster.New(t)
	pool := &v1alpha1.IPPool{
		ObjectMeta: metav1.ObjectMeta{Name: c.Namespace},
		Spec:       v1alpha1.IPPoolSpec{Ranges: []string{"10.1.0.0/28"}},
	}
	r := &PoolStatus{
		Client: behind{c.Client, pool},
		Pools:  NewPools(),
		Store:  block.New(block.Kube{Writer: c.Client, Live: c.Client}, block.Config{}),
		Gauges: noGauges{},
		Synced: func() bool { return true },
	}
	if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(pool)}); err != nil {
		t.Error(err)
	}
}

// gauges records the last forecast.
type gauges struct {
	noGauges
	known bool
	in    time.Duration
}

func (g *gauges) Exhausts(_ string, in time.Duration, known bool) { g.in, g.known = in, known }

// A pod needs an address of each family, so a pool is exhausted when one family
// is, however many addresses the other has.
func TestExhaustedInOneFamily(t *testing.T) {
	d := start(t, blocktest.NewAPI(), "a")
	d.pool("a", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.1", "fd00::/64"}})
	g := &gauges{}
	r := &PoolStatus{Pools: d.pools, Store: d.store, Gauges: g}
	count := func() *metav1.Condition {
		t.Helper()
		pool, err := d.pools.Get("a")
		if err != nil {
			t.Fatal(err)
		}
		o := &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
		r.validStatus(o, pool.Pool)
		return meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionExhausted)
	}
	if c := count(); c.Status != metav1.ConditionFalse || g.known {
		t.Errorf("an empty pool: %+v, forecast %s, %v", c, g.in, g.known)
	}
	d.get(drivertest.Request(1))
	want := "no IPv4 address is left: usable=1 free=0 allocated=1 cooling=0 held=0 reserved=0"
	if c := count(); c.Status != metav1.ConditionTrue || c.Message != want || !g.known || g.in != 0 {
		t.Errorf("a full pool: %+v, forecast %s, %v", c, g.in, g.known)
	}
}

// While the outcome of a write is unknown, the pool is counted again soon: the block's
// event came before the outcome, and no other follows.
func TestCountedAgainWhenAReplyWasLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		d := start(t, api, "a")
		d.pool("a", one("10.0.0.0/24"))
		feed := api.NewFeed(d.store)
		api.Hook(func(c blocktest.Call) blocktest.Fault {
			switch c.N {
			case 1:
				return blocktest.Fault{After: blocktest.ErrLost}
			case 2:
				return blocktest.Fault{Delay: 10 * StatusDelay}
			}
			return blocktest.Fault{}
		})
		r := &PoolStatus{Pools: d.pools, Store: d.store, Gauges: noGauges{}}
		pool, err := d.pools.Get("a")
		if err != nil {
			t.Fatal(err)
		}
		count := func() (allocated int64, again time.Duration) {
			o := &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
			again = r.validStatus(o, pool.Pool)
			return o.Status.Allocated, again
		}
		done := make(chan struct{})
		go func() { defer close(done); d.get(drivertest.Request(1)) }()
		synctest.Wait()
		feed.Deliver(-1)
		if allocated, again := count(); allocated != 0 || again != StatusDelay {
			t.Errorf("while the outcome is unknown: %d allocated, again in %s", allocated, again)
		}
		<-done
		if allocated, again := count(); allocated != 1 || again != forecastStep {
			t.Errorf("afterwards: %d allocated, again in %s", allocated, again)
		}
	})
}

// A pool that is created, changed or deleted is reconciled at once, since pods may wait for
// it. After a write of its status it is reconciled once per StatusDelay: otherwise each
// write would cause the next.
func TestGathered(t *testing.T) {
	pool := &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "x", Generation: 1}}
	changed := pool.DeepCopy()
	changed.Generation++
	for _, tc := range []struct {
		name   string
		happen func(context.Context, queue)
		atOnce bool
	}{
		{"pool created", func(ctx context.Context, q queue) { poolEvents().Create(ctx, event.CreateEvent{Object: pool}, q) }, true},
		{"pool changed", func(ctx context.Context, q queue) { update(ctx, poolEvents(), pool, changed, q) }, true},
		{"status of a pool written", func(ctx context.Context, q queue) { update(ctx, poolEvents(), pool, pool, q) }, false},
		{"pool deleted", func(ctx context.Context, q queue) { poolEvents().Delete(ctx, event.DeleteEvent{Object: pool}, q) }, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
				defer q.ShutDown()
				started := time.Now()
				for range 10 {
					tc.happen(t.Context(), q)
				}
				want := reconcile.Request{NamespacedName: client.ObjectKey{Name: "x"}}
				got, _ := q.Get()
				if got != want {
					t.Errorf("%v is enqueued, want %v", got, want)
				}
				delay := StatusDelay
				if tc.atOnce {
					delay = 0
				}
				if took := time.Since(started); took != delay || q.Len() > 0 {
					t.Errorf("it came after %s, and %d times more; want %s, once", took, q.Len(), delay)
				}
			})
		})
	}
}

func update(ctx context.Context, h handler.EventHandler, was, is client.Object, q queue) {
	h.Update(ctx, event.UpdateEvent{ObjectOld: was, ObjectNew: is}, q)
}
