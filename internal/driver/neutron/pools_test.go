package neutron

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/driver/drivertest"
	"fairlead.dev/fairlead/internal/driver/neutron/pool"
	"fairlead.dev/fairlead/internal/driver/neutron/pool/pooltest"
	"fairlead.dev/fairlead/internal/openstack/cloud"
	"fairlead.dev/fairlead/internal/openstack/cloud/cloudtest"
)

// records are the PortIDs that PodAttachments name.
type records struct {
	mu sync.Mutex
	m  map[string]pool.Holder
}

func (r *records) all(context.Context, string) (map[string]pool.Holder, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.m), nil
}

func (r *records) put(ref driver.Ref) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.m == nil {
		r.m = map[string]pool.Holder{}
	}
	r.m[ref.Interface.Binding.OVS.PortID] = pool.Holder{UID: ref.PodUID, Namespace: ref.Namespace, Pod: ref.PodName, Interface: ref.Owner.Interface, Network: ref.Interface.Network, Default: ref.Interface.Default}
}

// patient is a driver with pools, whose Ensure is repeated, as the controller does, while
// ports are being made.
type patient struct {
	*Driver
	mu    sync.Mutex
	woken chan struct{}
}

// start returns a process with pools that work until the end of the test.
func start(tb testing.TB, s *cloudtest.Server, api *pooltest.API, r *records, cfg Config, m pool.Marks) *patient {
	tb.Helper()
	if r == nil {
		r = &records{}
	}
	cfg.Pools = &pool.Config{
		API: api, Marks: m, Recorded: r.all, Grace: time.Minute,
		NodeGone: func(context.Context, string) (bool, error) { return false, nil },
		Told:     func(context.Context, *v1alpha1.PortPool, error) {},
	}
	cfg.Connect = func(ctx context.Context) (*cloud.Cloud, error) {
		return cloud.New(ctx, cloud.Config{File: s.File, Cloud: cloudtest.Admin, Cluster: cfg.Cluster})
	}
	p := &patient{Driver: New(cfg), woken: make(chan struct{})}
	if err := p.Parts().Wake(tb.Context(), driver.Wake{Waiting: p.wake, Leaving: func() {}}); err != nil {
		tb.Fatal(err)
	}
	api.Feed(p.pools)
	if err := p.conn.keepTrying(tb.Context(), cfg.Connect); err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = p.pools.Run(ctx) }()
	tb.Cleanup(func() { cancel(); <-done })
	return p
}

func (p *patient) wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.woken)
	p.woken = make(chan struct{})
}

// Ensure waits as long as ports are being made.
func (p *patient) Ensure(ctx context.Context, r *driver.Request) (*driver.Attachment, error) {
	for {
		p.mu.Lock()
		woken := p.woken
		p.mu.Unlock()
		a, err := p.Driver.Ensure(ctx, r)
		if !errors.Is(err, pool.ErrEmpty) || errors.Is(err, driver.ErrExhausted) {
			return a, err
		}
		select {
		case <-woken:
		case <-ctx.Done():
			return nil, err
		}
	}
}

// few are marks of tests.
var few = pool.Marks{Low: 1, High: 2, Batch: 4}

func TestContractWithPools(t *testing.T) {
	drivertest.Run(t, func(t *testing.T) drivertest.Backend {
		s, cfg := lan(t, "10.8.0.0/28")
		api := pooltest.New()
		return drivertest.Backend{
			Start:    func(t *testing.T) driver.Driver { return start(t, s, api, nil, cfg, few) },
			Capacity: 13,
			Recover: func() { // the cool-down is over
				for _, o := range api.List() {
					if err := api.Edit(o.Name, func(o *v1alpha1.PortPool) {
						for i, text := range o.Spec.Ports {
							o.Spec.Ports[i] = strings.Replace(text, " cooling ", " ready ", 1)
						}
					}); err != nil {
						t.Fatal(err)
					}
				}
			},
			OwnBinding: true,
			Interrupt: func(after bool, do func()) {
				var done atomic.Bool
				api.Inject(func(verb string, o *v1alpha1.PortPool) pooltest.Fault {
					if verb != "update" || !strings.Contains(strings.Join(o.Spec.Ports, "\n"), "/pod-1/") || !done.CompareAndSwap(false, true) {
						return pooltest.None
					}
					do()
					if after {
						return pooltest.LoseReply
					}
					return pooltest.LoseRequest
				})
			},
		}
	})
}
