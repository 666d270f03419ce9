package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/driver/neutron"
	"fairlead.dev/fairlead/internal/openstack/cloud"
	"fairlead.dev/fairlead/test/drivertest"
	"fairlead.dev/fairlead/test/openstack/lab"
)

// The driver keeps the contract of drivers with the real Neutron.
func TestDriverContract(t *testing.T) {
	l := lab.Use(t)
	if _, err := l.Chassis(t.Context(), nodes[0], firstNumber); err != nil { // that of the suite's requests
		t.Fatal(err)
	}
	ctrl.SetLogger(logr.Discard())
	p := newProxy(t, l)
	var count int
	drivertest.Run(t, func(t *testing.T) drivertest.Backend {
		count++
		b := &bed{T: t, lab: l}
		var err error
		if b.neutron, err = l.Network(t.Context(), lab.K8s); err != nil {
			t.Fatal(err)
		}
		cfg := neutron.Config{Cluster: fmt.Sprintf("contract-%d", count)}
		cfg.Choice.Namespace = "fairlead-system"
		cfg.Choice.Default.Network, _ = b.network(cfg.Cluster, "10.94.0.0/28")
		b.cleanup("delete the ports", b.deletePorts(cfg.Choice.Default.Network))
		cfg.Connect = func(ctx context.Context) (*cloud.Cloud, error) {
			return cloud.New(ctx, cloud.Config{File: p.clouds, Cloud: lab.K8s, Cluster: cfg.Cluster})
		}
		t.Cleanup(func() { p.intercept(nil) })
		return drivertest.Backend{
			Start:      func(t *testing.T) driver.Driver { return connected(t, cfg) },
			Capacity:   13,
			Recover:    func() {},
			OwnBinding: true,
			Interrupt: func(late bool, do func()) {
				want := map[bool]moment{false: before, true: after}[late]
				var done atomic.Bool
				p.intercept(func(call string, at moment) bool {
					if call != "POST /ports" || at != want || !done.CompareAndSwap(false, true) {
						return false
					}
					do()
					return true
				})
			},
		}
	})
}

// connected returns a driver that has connected.
func connected(t *testing.T, cfg neutron.Config) driver.Driver {
	t.Helper()
	done := make(chan struct{})
	connect := cfg.Connect
	cfg.Connect = func(ctx context.Context) (*cloud.Cloud, error) {
		c, err := connect(ctx)
		if err != nil {
			t.Error(err)
		}
		return c, err
	}
	parts := neutron.New(cfg).Parts()
	loops := &loops{ctx: t.Context(), done: done}
	if err := parts.Run.Setup(t.Context(), loops, nil); err != nil {
		t.Fatal(err)
	}
	<-done
	return parts.Driver
}

// loops is a manager that runs each part that is added.
type loops struct {
	manager.Manager
	ctx  context.Context //nolint:containedctx // a manager has none in Add
	done chan struct{}   // closed when it has ended
}

// GetClient implements manager.Manager: the ports here are those of no nodes.
func (*loops) GetClient() client.Client { return nil }

// Add implements manager.Manager.
func (l *loops) Add(r manager.Runnable) error {
	go func() {
		_ = r.Start(l.ctx)
		close(l.done)
	}()
	return nil
}
