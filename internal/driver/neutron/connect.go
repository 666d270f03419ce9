package neutron

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/driver/neutron/pool"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/openstack/cloud"
	"fairlead.dev/fairlead/internal/run"
)

// Pauses between two tries to connect: the first, doubling up to the last.
const (
	firstPause = time.Second
	lastPause  = 30 * time.Second
)

// connection is the connection to the cloud, once there is one.
type connection struct {
	mu    sync.Mutex
	cloud *cloud.Cloud
	// err is why there is none.
	err   error
	wakes []driver.Wake
}

// get returns the cloud. Errors: fault.ErrUnavailable, with the reason, while there is no
// connection.
func (c *connection) get() (*cloud.Cloud, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.cloud != nil:
		return c.cloud, nil
	case c.err != nil:
		return nil, fmt.Errorf("%w: no connection to OpenStack: %w", fault.ErrUnavailable, c.err)
	default:
		return nil, fmt.Errorf("%w: the connection to OpenStack is being made", fault.ErrUnavailable)
	}
}

// wake registers the functions to call once there is a connection.
func (c *connection) wake(_ context.Context, w driver.Wake) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wakes = append(c.wakes, w)
	return nil
}

// wakeWaiting wakes the pods that wait for an interface.
func (c *connection) wakeWaiting() {
	for _, w := range c.all() {
		w.Waiting()
	}
}

// wakeAll wakes the pods that wait for an interface, and those that wait for its release.
func (c *connection) wakeAll() {
	for _, w := range c.all() {
		w.Waiting()
		w.Leaving()
	}
}

func (c *connection) all() []driver.Wake {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.wakes)
}

// keepTrying connects, and wakes the pods that wait. It tries again until ctx ends.
func (c *connection) keepTrying(ctx context.Context, connect func(context.Context) (*cloud.Cloud, error)) error {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		got, err := connect(ctx)
		c.mu.Lock()
		logged := c.err != nil
		c.cloud, c.err = got, err
		c.mu.Unlock()
		if err == nil {
			log.FromContext(ctx).Info("connected to OpenStack", "project", got.Project())
			c.wakeAll()
			return nil
		}
		if !logged && ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "no connection to OpenStack: pods with ports of Neutron wait", "atMostEvery", lastPause)
		}
		if !run.Sleep(ctx, pause) {
			return nil
		}
	}
}

// wake is driver.Run.Wake.
func (d *Driver) wake(ctx context.Context, w driver.Wake) error {
	if d.cfg.Namespaces != nil {
		d.cfg.Namespaces.OnChange(w.Waiting)
	}
	return d.conn.wake(ctx, w)
}

// setUp is driver.Run.Setup.
func (d *Driver) setUp(ctx context.Context, mgr manager.Manager, term driver.Term) error {
	d.nodes.reader = mgr.GetClient()
	err := mgr.Add(run.Everywhere(func(ctx context.Context) error {
		err := d.conn.keepTrying(ctx, d.connect)
		if d.pools != nil {
			d.pools.Connected()
		}
		return err
	}))
	if err != nil || d.pools == nil {
		return err
	}
	synced, err := pool.Watch(ctx, mgr.GetCache(), d.pools)
	if err != nil {
		return err
	}
	d.synced.Store(&synced)
	fed := func(ctx context.Context) error {
		if toolscache.WaitForCacheSync(ctx.Done(), synced) {
			d.conn.wakeAll()
		}
		return nil
	}
	work := func(ctx context.Context) error { // a PortPool that is not known yet would not be compared with the records
		if toolscache.WaitForCacheSync(ctx.Done(), synced) {
			return d.pools.Run(ctx)
		}
		return nil
	}
	return errors.Join(mgr.Add(run.Everywhere(fed)), mgr.Add(run.Everywhere(term.EachTerm(work))))
}

// isSynced is driver.Run.Synced: all PortPools are known.
func (d *Driver) isSynced() bool {
	synced := d.synced.Load()
	return d.pools == nil || synced != nil && (*synced)()
}

// isReady is driver.Run.Ready: no port is handed out that the record of a pod names.
func (d *Driver) isReady() bool { return d.pools == nil || d.pools.Compared() }
