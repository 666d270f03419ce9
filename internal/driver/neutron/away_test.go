package neutron

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllertest"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/driver/neutron/choice"
	"fairlead.dev/fairlead/internal/driver/neutron/pool"
	"fairlead.dev/fairlead/internal/openstack/cloud"
	"fairlead.dev/fairlead/test/cloudtest"
	"fairlead.dev/fairlead/test/drivertest"
	"fairlead.dev/fairlead/test/pooltest"
)

// Calls that hang for one network do not stop others: they do not even wait.
func TestHangingNetworkStopsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(Config{Cluster: "east"})
		var leave []func()
		for range 3 {
			l, err := d.enter(t.Context(), "hangs", 3)
			if err != nil {
				t.Fatal(err)
			}
			leave = append(leave, l)
		}
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error, inQueue)
		for range inQueue {
			go func() { _, err := d.enter(ctx, "hangs", 3); failed <- err }()
		}
		synctest.Wait()
		if _, err := d.enter(t.Context(), "hangs", 3); driver.Result(err) != "Unavailable" || !strings.Contains(err.Error(), "too many wait already: 67 for hangs") {
			t.Errorf("error %v", err)
		}
		other, err := d.enter(t.Context(), "works", 3)
		if err != nil {
			t.Fatal(err)
		}
		other()
		cancel()
		for range inQueue {
			if err := <-failed; driver.Result(err) != "Unavailable" {
				t.Errorf("error %v", err)
			}
		}
		for _, l := range leave {
			l()
		}
		if n := d.gates.Len(); n != 0 {
			t.Errorf("%d gates are left", n)
		}
	})
}

// Neutron away at the start fails every call with the reason, and delays nothing. When it is
// there, the pods that wait are woken.
func TestAwayAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		d := New(Config{Cluster: "east", Choice: choice.Config{Default: choice.Settings{Network: "pods"}}})
		refuse(t, d, drivertest.Request(1), "Unavailable", "the connection to OpenStack is being made")
		woken := 0
		if err := d.Parts().Run.Wake(t.Context(), driver.Wake{Waiting: func() { woken++ }, Leaving: func() { woken++ }}); err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() {
			done <- d.conn.keepTrying(t.Context(), func(context.Context) (*cloud.Cloud, error) {
				if tries++; tries < 10 {
					return nil, cloud.ErrUnavailable
				}
				return &cloud.Cloud{}, nil
			})
		}()
		synctest.Wait()
		refuse(t, d, drivertest.Request(1), "Unavailable", "no connection to OpenStack")
		if err := d.Release(t.Context(), driver.Ref{Owner: drivertest.Request(1).Owner}); driver.Result(err) != "Unavailable" {
			t.Errorf("Release: %v", err)
		}
		for _, err := range d.List(t.Context()) {
			if driver.Result(err) != "Unavailable" {
				t.Errorf("List: %v", err)
			}
		}
		if p := d.Parts(); !p.Knows() || !p.IsSynced() {
			t.Error("the driver says that it does not know what is taken: the controller would not be ready")
		}
		begin := time.Now()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took > 10*lastPause || woken != 2 {
			t.Errorf("connected after %s, woken %d times", took, woken)
		}
	})
}

// unfed is a manager whose PortPools are still being listed.
type unfed struct {
	manager.Manager
	informers informertest.FakeInformers
	added     []manager.Runnable
}

func (u *unfed) GetClient() client.Client  { return nil }
func (u *unfed) GetCache() ctrlcache.Cache { return &u.informers }

func (u *unfed) Add(r manager.Runnable) error {
	u.added = append(u.added, r)
	return nil
}

// termBegun is a term that has begun.
type termBegun struct{ driver.Term }

func (termBegun) EachTerm(f func(context.Context) error) func(context.Context) error { return f }

// The term of a leader begins before its PortPools are known: none of them would be compared with
// the records of pods. No port is handed out, and none is made, until they are.
func TestPoolsWaitForTheirObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(Config{
			Cluster: "east", Connect: func(context.Context) (*cloud.Cloud, error) { return nil, cloud.ErrUnavailable },
			Pools: &pool.Config{API: pooltest.New(), Cluster: pooltest.Cluster{}, Marks: few},
		})
		m := &unfed{informers: informertest.FakeInformers{Scheme: runtime.NewScheme()}}
		if err := v1alpha1.AddToScheme(m.informers.Scheme); err != nil {
			t.Fatal(err)
		}
		listed := controllertest.NewFakeInformer()
		m.informers.InformersByGVK = map[schema.GroupVersionKind]toolscache.SharedIndexInformer{
			v1alpha1.GroupVersion.WithKind("PortPool"): listed,
		}
		if err := d.Parts().Run.Setup(t.Context(), m, termBegun{}); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		for _, r := range m.added {
			running.Go(func() { _ = r.Start(ctx) })
		}
		time.Sleep(time.Minute) //nolint:forbidigo // the bubble's clock
		if p := d.Parts(); p.IsSynced() || p.Run.Ready() {
			t.Errorf("before the PortPools are known: synced %v, ready %v", p.IsSynced(), p.Run.Ready())
		}
		listed.Synced()
		time.Sleep(time.Minute) //nolint:forbidigo // the bubble's clock
		if !d.Parts().Knows() {
			t.Error("the driver hands out no port, and all PortPools are known")
		}
		stop()
		running.Wait()
	})
}

// A call to the cloud goes on when its caller gives up, and the next call waits for it: a
// second create beside it would make a second port.
func TestCreateOutlivesItsCaller(t *testing.T) {
	s, cfg := lan(t, "10.8.0.0/24")
	d := connected(t, cfg, s.File, cloudtest.Admin)
	begun := make(chan struct{})
	s.Inject(func(method, path string) cloudtest.Fault {
		if method != "POST" || path != "/ports" {
			return cloudtest.Fault{}
		}
		close(begun) // a second create would panic
		return cloudtest.Fault{Delay: 200 * time.Millisecond}
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-begun; cancel() }()
	if _, err := d.Ensure(ctx, drivertest.Request(1)); driver.Result(err) != "Unavailable" {
		t.Errorf("error %v", err)
	}
	attach(t, d, drivertest.Request(1))
	if n := len(s.Objects("ports")); n != 1 || s.Calls()["POST /ports"] != 1 {
		t.Errorf("%d ports after %d creates", n, s.Calls()["POST /ports"])
	}
}
