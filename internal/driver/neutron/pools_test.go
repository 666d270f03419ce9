package neutron

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/driver/neutron/choice"
	"fairlead.dev/fairlead/internal/driver/neutron/pool"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/openstack/cloud"
	"fairlead.dev/fairlead/test/cloudtest"
	"fairlead.dev/fairlead/test/drivertest"
	"fairlead.dev/fairlead/test/pooltest"
)

// patient is a driver with pools, whose Ensure is repeated, as the controller does, while
// ports are being made.
type patient struct {
	*Driver
	mu    sync.Mutex
	woken chan struct{}
}

// start returns a process with pools that work until the end of the test.
func start(tb testing.TB, s *cloudtest.Server, api *pooltest.API, cfg Config, m pool.Marks) *patient {
	tb.Helper()
	return startOn(tb, s, api, cfg, m, nil)
}

// startOn is start with the Nodes of the cluster.
func startOn(tb testing.TB, s *cloudtest.Server, api *pooltest.API, cfg Config, m pool.Marks, nodes client.Reader) *patient {
	tb.Helper()
	cfg.Pools = &pool.Config{
		API: api, Cluster: pooltest.Cluster{}, Marks: m, Grace: time.Minute,
	}
	cfg.Connect = func(ctx context.Context) (*cloud.Cloud, error) {
		return cloud.New(ctx, cloud.Config{File: s.File, Cloud: cloudtest.Admin, Cluster: cfg.Cluster})
	}
	p := &patient{Driver: New(cfg), woken: make(chan struct{})}
	p.nodes.reader = nodes
	if err := p.Parts().Run.Wake(tb.Context(), driver.Wake{Waiting: p.wake, Leaving: func() {}}); err != nil {
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
		if !errors.Is(err, pool.ErrEmpty) || errors.Is(err, fault.ErrExhausted) {
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
		return backend(func(t *testing.T, api *pooltest.API) driver.Driver { return start(t, s, api, cfg, few) })
	})
}

// backend returns that of a driver with pools on a network with 13 addresses.
func backend(start func(t *testing.T, api *pooltest.API) driver.Driver) drivertest.Backend {
	api := pooltest.New()
	return drivertest.Backend{
		Start:    func(t *testing.T) driver.Driver { return start(t, api) },
		Capacity: 13,
		Recover: func() { // the cool-down is over
			for _, o := range api.List() {
				err := api.Edit(o.Name, func(o *v1alpha1.PortPool) {
					for i := range o.Spec.Ports {
						if s := &o.Spec.Ports[i]; s.State == v1alpha1.PortCooling {
							s.State = v1alpha1.PortReady
						}
					}
				})
				if err != nil {
					panic(err)
				}
			}
		},
		OwnBinding: true,
		Interrupt: func(after bool, do func()) {
			var done atomic.Bool
			api.Inject(func(verb string, o *v1alpha1.PortPool) pooltest.Fault {
				ofPod1 := func(s v1alpha1.PortPoolSlot) bool { return s.Pod != nil && s.Pod.Name == "pod-1" }
				if verb != "update" || !slices.ContainsFunc(o.Spec.Ports, ofPod1) || !done.CompareAndSwap(false, true) {
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
}

// counted counts the calls of Neutron by method and path from now on.
func counted(s *cloudtest.Server, fault func(method, path string) cloudtest.Fault) func() map[string]int {
	var mu sync.Mutex
	calls := map[string]int{}
	s.Inject(func(method, path string) cloudtest.Fault {
		mu.Lock()
		calls[method+" "+path]++
		mu.Unlock()
		if fault != nil {
			return fault(method, path)
		}
		return cloudtest.Fault{}
	})
	return func() map[string]int { mu.Lock(); defer mu.Unlock(); return maps.Clone(calls) }
}

// full waits until a process has so many ready ports.
func (p *patient) full(t *testing.T, n int) {
	t.Helper()
	for deadline := time.After(time.Minute); p.pools.Ready() < n; {
		select {
		case <-time.After(10 * time.Millisecond): // ports get ready without a word when no pod waits
		case <-deadline:
			t.Fatalf("%d ports are ready, want %d", p.pools.Ready(), n)
		}
	}
}

// obtain obtains the interface of the nth pod.
func (p *patient) obtain(t *testing.T, n int) driver.Ref {
	t.Helper()
	r := drivertest.Request(n)
	a, err := p.Ensure(t.Context(), r)
	if err != nil {
		t.Fatalf("pod %d: %v", n, err)
	}
	return driver.Ref{Owner: r.Owner, Interface: a.Interface}
}

// A pod whose pool has a port costs no call of Neutron when it starts and when it ends, and
// Neutron may be away, also when the controller has restarted.
func TestPooledPodCostsNoCall(t *testing.T) {
	s, cfg := lan(t, "10.8.0.0/24", "fd08::/64")
	api := pooltest.New()
	first := start(t, s, api, cfg, pool.Marks{Low: 8, High: 16, Batch: 20})
	first.obtain(t, 0)
	first.full(t, 8)
	away := func(string, string) cloudtest.Fault { return cloudtest.Fault{Status: 500} }
	for name, p := range map[string]*patient{"at first": first, "restarted": start(t, s, api, cfg, pool.Marks{Low: 1, High: 16, Batch: 20})} {
		p.full(t, 4)
		calls := counted(s, away)
		ref := p.obtain(t, len(name))
		if i := ref.Interface; len(i.Addresses) != 2 || len(i.Gateways) != 2 || i.MTU == 0 || i.Binding.OVS.Bridge != "br-int" || i.WaitForActive {
			t.Errorf("%s: interface %+v", name, i)
		}
		if err := ref.Interface.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := p.Release(t.Context(), ref); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		// A process that starts compares the pools with one list of the cloud, in two parts.
		for call, n := range calls() {
			if name == "restarted" && (call != "GET /networks" && call != "GET /ports" || n > 2) {
				t.Errorf("%s: calls %v", name, calls())
			}
		}
		s.Inject(nil)
	}
	for _, p := range s.Objects("ports") {
		if p["binding:host_id"] != "node-1" || p["device_owner"] != DeviceOwner || !strings.HasPrefix(p["device_id"].(string), "fairlead/east/pool/node-1-") || len(p["tags"].([]any)) != 1 {
			t.Errorf("port %v", p)
		}
	}
}

// A reply that is lost, or a tag that is dropped, leaves no port unknown: they are adopted at
// their places.
func TestLostReplyOfARefill(t *testing.T) {
	for name, fault := range map[string]func(method, path string) cloudtest.Fault{
		"reply": func(method, path string) cloudtest.Fault {
			return cloudtest.Fault{LoseReply: method == "POST" && path == "/ports"}
		},
		"request": func(method, path string) cloudtest.Fault {
			return cloudtest.Fault{LoseRequest: method == "POST" && path == "/ports"}
		},
		"tag": func(method, path string) cloudtest.Fault {
			return cloudtest.Fault{LoseRequest: strings.HasSuffix(path, "/tags")}
		},
		"busy": func(method, path string) cloudtest.Fault {
			if method == "POST" && path == "/ports" {
				return cloudtest.Fault{Status: 503, RetryAfter: "1"}
			}
			return cloudtest.Fault{}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, cfg := lan(t, "10.8.0.0/24")
			p := start(t, s, pooltest.New(), cfg, few)
			var once atomic.Bool
			counted(s, func(method, path string) cloudtest.Fault {
				f := fault(method, path)
				if f == (cloudtest.Fault{}) || !once.CompareAndSwap(false, true) {
					return cloudtest.Fault{}
				}
				return f
			})
			p.obtain(t, 1)
			p.full(t, 1)
			ports := s.Objects("ports")
			if n := p.pools.Ready() + 1; !once.Load() || len(ports) != n {
				t.Errorf("%d ports in the cloud, %d in the pool", len(ports), n)
			}
			for _, p := range ports {
				if len(p["tags"].([]any)) != 1 {
					t.Errorf("port %v has tags %v", p["name"], p["tags"])
				}
			}
		})
	}
}

// A quota that is used up is told to the pods of its project; a pod whose port is there starts.
func TestQuotaOfAPool(t *testing.T) {
	s, cfg := lan(t, "10.8.0.0/24")
	s.SetQuota(cloudtest.AdminProject, "port", 3)
	p := start(t, s, pooltest.New(), cfg, pool.Marks{Low: 8, High: 8, Batch: 8})
	for n := range 3 {
		p.obtain(t, n)
	}
	if _, err := p.Ensure(t.Context(), drivertest.Request(3)); !errors.Is(err, fault.ErrExhausted) || !strings.Contains(err.Error(), "quota of OpenStack project") {
		t.Errorf("error %v", err)
	}
}

// A port of a pool whose network cannot be read holds up the comparison of no other with the cloud.
func TestPooledPortWithoutItsNetwork(t *testing.T) {
	s, cfg := lan(t, "10.8.0.0/24")
	start(t, s, pooltest.New(), cfg, few).obtain(t, 0)
	for status, ends := range map[int]bool{http.StatusNotFound: false, http.StatusInternalServerError: true} {
		next := connected(t, cfg, s.File, cloudtest.Admin)
		s.Inject(func(method, path string) cloudtest.Fault {
			if method == http.MethodGet && path == "/networks/{id}" {
				return refusal(status, "NetworkNotFound")
			}
			return cloudtest.Fault{}
		})
		found, err := next.made(t.Context())
		if (err != nil) != ends || !ends && len(found) == 0 {
			t.Errorf("%d: %d ports are found, %v", status, len(found), err)
		}
		for _, f := range found {
			if f.ID == "" || len(f.Addresses) != 0 {
				t.Errorf("found %+v", f)
			}
		}
		s.Inject(nil)
	}
}

// A pod that wishes what a port of a pool does not have gets a port of its own, and so does one
// whose pool is drained. Both are released with their port.
func TestPortsOfTheirOwn(t *testing.T) {
	s, cfg := lan(t, "10.8.0.0/24")
	api := pooltest.New()
	p := start(t, s, api, cfg, few)
	pooled := p.obtain(t, 0)
	r := drivertest.Request(1)
	r.Addresses = []netip.Addr{netip.MustParseAddr("10.8.0.200")}
	own := map[string]*driver.Request{"address": r}
	r = drivertest.Request(2)
	r.MAC = "02:00:00:00:00:02"
	own["MAC"] = r
	on := true
	own["DNS name"] = onLan(3, choice.Settings{Network: "pods", DNSName: &on})
	for name, r := range own {
		a, err := p.Ensure(t.Context(), r)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !a.Interface.WaitForActive {
			t.Errorf("%s: a port of a pool", name)
		}
		if err := p.Release(t.Context(), driver.Ref{Owner: r.Owner, Interface: a.Interface}); err != nil {
			t.Error(err)
		}
	}
	if err := api.Edit(api.List()[0].Name, func(o *v1alpha1.PortPool) { o.Spec.Desired = new(int32) }); err != nil {
		t.Fatal(err)
	}
	ref := p.obtain(t, 5)
	if !ref.Interface.WaitForActive {
		t.Error("a drained pool gave a port")
	}
	if err := p.Release(t.Context(), ref); err != nil {
		t.Error(err)
	}
	if again := p.obtain(t, 0); again.Interface.Binding.OVS.PortID != pooled.Interface.Binding.OVS.PortID {
		t.Error("a drained pool took a pod's port")
	}
	if _, ok := poolKey(drivertest.Request(1), target{Choice: choice.Choice{Settings: choice.Settings{QoSPolicy: "slow"}}}, "node-1"); ok {
		t.Error("a pool has a QoS policy")
	}
}

// A pool on a host without a chassis: its ports cannot be bound. They are deleted, and the
// event names the host.
func TestPoolOnAHostWithoutAgent(t *testing.T) {
	s, cfg := lan(t, "10.8.0.0/24")
	s.FailBinding(func(cloudtest.Object) bool { return true })
	p := start(t, s, pooltest.New(), cfg, few)
	for {
		p.mu.Lock()
		woken := p.woken
		p.mu.Unlock()
		_, err := p.Driver.Ensure(t.Context(), drivertest.Request(1))
		if !errors.Is(err, fault.ErrUnavailable) {
			t.Fatalf("error %v", err)
		}
		if strings.Contains(err.Error(), `on host "node-1" (vif_type binding_failed)`) {
			break
		}
		select {
		case <-woken:
		case <-time.After(10 * time.Second):
			t.Fatalf("error %v", err)
		}
	}
	s.FailBinding(nil)
	p.obtain(t, 1)
	for _, port := range s.Objects("ports") {
		if port["binding:vif_type"] != "ovs" {
			t.Errorf("port %v is left", port)
		}
	}
}
