package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/trunks"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/driver/neutron"
	"fairlead.dev/fairlead/internal/driver/neutron/pool"
	"fairlead.dev/fairlead/test/pooltest"
)

// poolManager is a nodeManager with a cache of PortPools.
type poolManager struct {
	*nodeManager
	cache *poolCache
}

func (m *poolManager) GetCache() ctrlcache.Cache { return m.cache }

// poolCache is a cache, and its informer, over PortPools in memory.
type poolCache struct {
	ctrlcache.Cache
	api *pooltest.API
}

func (c *poolCache) GetInformer(context.Context, client.Object, ...ctrlcache.InformerGetOption) (ctrlcache.Informer, error) {
	return &poolInformer{api: c.api}, nil
}

type poolInformer struct {
	ctrlcache.Informer
	api *pooltest.API
}

func (i *poolInformer) AddEventHandler(h toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	i.api.Feed(poolFeed{h})
	return fed{}, nil
}

// fed is the registration of a handler that has all events.
type fed struct {
	toolscache.ResourceEventHandlerRegistration
}

func (fed) HasSynced() bool { return true }

// poolFeed passes the events of a watch on.
type poolFeed struct {
	toolscache.ResourceEventHandler
}

func (f poolFeed) Learn(o *v1alpha1.PortPool) { f.OnAdd(o, false) }
func (f poolFeed) Gone(o *v1alpha1.PortPool)  { f.OnDelete(o) }

// oneTerm is a term that lasts as long as the process.
type oneTerm struct{ driver.Term }

func (oneTerm) EachTerm(f func(context.Context) error) func(context.Context) error { return f }

// startPools starts the driver with pools. The returned function ends it.
func (n *nested) startPools(api *pooltest.API, marks pool.Marks) (stop func()) {
	n.Helper()
	ctrl.SetLogger(logr.Discard())
	ctx, cancel := context.WithCancel(context.WithoutCancel(n.Context()))
	var running sync.WaitGroup
	stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	n.cleanup("end the driver", func(context.Context) error { stop(); return nil })
	cfg := n.config()
	cfg.Pools = &pool.Config{
		API: api, Cluster: pooltest.Cluster{}, Marks: marks, Grace: time.Minute,
	}
	parts := neutron.New(cfg).Parts()
	n.driver = parts.Driver
	run := func(r manager.Runnable) { running.Go(func() { _ = r.Start(ctx) }) }
	m := &poolManager{&nodeManager{run: run, node: n.node()}, &poolCache{api: api}}
	if err := parts.Run.Setup(ctx, m, oneTerm{}); err != nil {
		n.Fatal(err)
	}
	return stop
}

// pooled has a pod on a subport of a pool. Ready subports are ACTIVE before a pod has them. A
// released one stays on the trunk until the pool is switched off.
func (n *nested) pooled(trunk string) {
	n.Helper()
	api := pooltest.New()
	stop := n.startPools(api, pool.Marks{Low: 2, High: 4, Batch: 4})
	begin := time.Now()
	ref := n.attach(3, "trunk")
	n.Logf("the first pod of a pool on a trunk has its subport after %v", time.Since(begin).Round(time.Millisecond))
	n.await("ready subports to be ACTIVE", func() bool {
		all := n.subports(trunk)
		for _, id := range all {
			if p, err := ports.Get(n.Context(), n.neutron, id).Extract(); err != nil || p.Status != "ACTIVE" {
				return false
			}
		}
		return len(all) >= 3
	})
	n.Logf("and all are ACTIVE after %v", time.Since(begin).Round(time.Millisecond))
	n.passes("a subport of a pool", n.tagged("pod3", ref))
	begin = time.Now()
	second := n.attach(4, "trunk")
	n.Logf("a further pod has one after %v", time.Since(begin).Round(time.Millisecond))
	n.passes("another subport of the pool", n.tagged("pod4", second))
	n.within(bedTimeout, "the pool to be filled again", func() bool {
		return len(api.List()[0].Spec.Ports) == 4 && len(n.subports(trunk)) == 4
	})
	for _, r := range []driver.Ref{ref, second} {
		if err := n.driver.Release(n.Context(), r); err != nil {
			n.Fatal(err)
		}
	}
	if left := n.subports(trunk); len(left) != 4 {
		n.Errorf("the trunk has the subports %v after the release; want the same 4", left)
	}
	stop()
	n.startPools(api, pool.Marks{})
	n.within(bedTimeout, "the pool to be empty", func() bool { return len(api.List()) == 0 })
	if left := n.subports(trunk); len(left) != 0 {
		n.Errorf("the trunk has the subports %v", left)
	}
}

// subports returns the ports on a trunk.
func (n *nested) subports(trunk string) (ids []string) {
	n.Helper()
	all, err := trunks.GetSubports(n.Context(), n.neutron, trunk).Extract()
	if err != nil {
		n.Fatal(fmt.Errorf("subports of trunk %s: %w", trunk, err))
	}
	for _, s := range all {
		ids = append(ids, s.PortID)
	}
	return ids
}
