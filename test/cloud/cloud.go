// Package cloud is a network in memory with an HTTP API, and the driver for it: the second
// driver of the tests. Unlike drivertest.Memory, its backend outlives the controller's
// process and serves several controllers at once. Tests activate its ports, and make it
// slow or fail.
package cloud

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
)

// Port is the port of an interface in the cloud.
type Port struct {
	Owner     driver.Owner
	Interface v1alpha1.Interface
	Active    bool
	slot      int
}

// identity returns an owner without its node.
func identity(o driver.Owner) driver.Owner {
	o.NodeName = ""
	return o
}

// Cloud is the backend.
type Cloud struct {
	URL      string
	capacity int

	mu    sync.Mutex
	ports map[driver.Owner]*Port
	calls map[string]int
	// version counts activations; changed is closed at the next activation.
	version int
	changed chan struct{}
	// fail makes calls fail, and delay makes them slow.
	fail  func(call string) bool
	delay time.Duration
	// before and after are called once, at the next write.
	before, after func()
}

// New starts a cloud with room for capacity ports. It ends with the test.
func New(tb testing.TB, capacity int) *Cloud {
	tb.Helper()
	c := &Cloud{capacity: capacity, ports: map[driver.Owner]*Port{}, calls: map[string]int{}, changed: make(chan struct{})}
	mux := http.NewServeMux()
	for call, serve := range map[string]func(context.Context, request) (answer, int){
		"ensure": c.ensure, "release": c.release, "confirm": c.confirm, "list": c.list, "changes": c.changes,
	} {
		mux.HandleFunc("/"+call, func(w http.ResponseWriter, r *http.Request) { c.serve(w, r, call, serve) })
	}
	server := httptest.NewServer(mux)
	tb.Cleanup(server.Close)
	tb.Cleanup(server.CloseClientConnections)
	c.URL = server.URL
	return c
}

// Fail makes the calls fail for which f returns true. A nil f ends the failures.
func (c *Cloud) Fail(f func(call string) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fail = f
}

// Slow delays each call.
func (c *Cloud) Slow(delay time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.delay = delay
}

// Activate makes all existing ports active.
func (c *Cloud) Activate() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.ports {
		p.Active = true
	}
	c.version++
	close(c.changed)
	c.changed = make(chan struct{})
}

// Put makes a port that no controller knows.
func (c *Cloud) Put(o driver.Owner) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = c.take(request{Owner: o, Interface: v1alpha1.Interface{Name: o.Interface, Network: v1alpha1.UnknownNetwork, Driver: Name}})
}

// Held returns all ports, in no order.
func (c *Cloud) Held() []Port {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []Port
	for _, p := range c.ports {
		out = append(out, *p)
	}
	return out
}

// Calls returns how often a call was made: ensure, release, confirm, list or changes.
func (c *Cloud) Calls(call string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[call]
}

// Interrupt makes the next write call do, once, before or after the write.
func (c *Cloud) Interrupt(after bool, do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if after {
		c.after = do
	} else {
		c.before = do
	}
}

// request is the body of a driver's request, answer the body of the reply.
type (
	request struct {
		Owner     driver.Owner
		Interface v1alpha1.Interface
		After     int
	}
	answer struct {
		Ports   []Port
		Version int
	}
)

func (c *Cloud) serve(w http.ResponseWriter, r *http.Request, call string, serve func(context.Context, request) (answer, int)) {
	var asked request
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	c.calls[call]++
	fails, delay := c.fail != nil && c.fail(call), c.delay
	c.mu.Unlock()
	select {
	case <-time.After(delay):
	case <-r.Context().Done():
		return
	}
	if fails {
		http.Error(w, "the cloud is away", http.StatusServiceUnavailable)
		return
	}
	got, status := serve(r.Context(), asked)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(got) // the client may be gone
}

// take returns the port of an owner, and makes it if there is none. It returns false if the
// cloud is full. The lock is held.
func (c *Cloud) take(r request) (*Port, bool) {
	key := identity(r.Owner)
	if p, ok := c.ports[key]; ok {
		return p, true
	}
	taken := make([]bool, c.capacity)
	for _, p := range c.ports {
		taken[p.slot] = true
	}
	slot := slices.Index(taken, false)
	if slot < 0 {
		return nil, false
	}
	i := r.Interface
	i.Addresses = []string{fmt.Sprintf("198.51.100.%d/24", slot+1)}
	i.WaitForActive = true
	if i.Binding == (v1alpha1.Binding{}) {
		i.Binding = v1alpha1.Binding{Bridge: &v1alpha1.BridgeBinding{Name: "cloud0"}}
	}
	c.ports[key] = &Port{Owner: r.Owner, Interface: i, slot: slot}
	return c.ports[key], true
}

func once(do *func()) {
	if *do != nil {
		(*do)()
		*do = nil
	}
}

func (c *Cloud) ensure(ctx context.Context, r request) (answer, int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.ports[identity(r.Owner)]; !ok {
		once(&c.before)
	}
	if ctx.Err() != nil {
		return answer{}, http.StatusServiceUnavailable
	}
	p, ok := c.take(r)
	if !ok {
		return answer{}, http.StatusInsufficientStorage
	}
	once(&c.after)
	return answer{Ports: []Port{*p}}, http.StatusOK
}

func (c *Cloud) release(_ context.Context, r request) (answer, int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.ports, identity(r.Owner))
	return answer{}, http.StatusOK
}

func (c *Cloud) confirm(_ context.Context, r request) (answer, int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.ports[identity(r.Owner)]
	if !ok || !slices.Equal(p.Interface.Addresses, r.Interface.Addresses) {
		return answer{}, http.StatusNotFound
	}
	return answer{Ports: []Port{*p}}, http.StatusOK
}

func (c *Cloud) list(context.Context, request) (answer, int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out answer
	for _, p := range c.ports {
		out.Ports = append(out.Ports, *p)
	}
	out.Version = c.version
	return out, http.StatusOK
}

// changes waits until the version is newer than r.After, and returns all ports.
func (c *Cloud) changes(ctx context.Context, r request) (answer, int) {
	for {
		c.mu.Lock()
		version, changed := c.version, c.changed
		c.mu.Unlock()
		if version > r.After {
			return c.list(ctx, r)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return answer{}, http.StatusServiceUnavailable
		}
	}
}
