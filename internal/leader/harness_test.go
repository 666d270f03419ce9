package leader

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// The defaults of the configuration.
const (
	leaseDuration = 20 * time.Second
	renewDeadline = 15 * time.Second
	retryPeriod   = time.Second
)

// lease is an API server with one Lease, which changes by compare-and-swap.
type lease struct {
	mu      sync.Mutex
	record  *resourcelock.LeaderElectionRecord
	version int
	// stalled has the time of the next answer for a client, and for all under "".
	stalled map[string]time.Time
	holders []string // in order of time
}

var leases = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

// arrive makes a request wait while the server stalls.
func (l *lease) arrive(ctx context.Context, client string) error {
	ctx, cancel := context.WithTimeout(ctx, renewDeadline/3)
	defer cancel()
	for {
		l.mu.Lock()
		left := max(time.Until(l.stalled[client]), time.Until(l.stalled[""]))
		l.mu.Unlock()
		if left <= 0 {
			return ctx.Err()
		}
		select {
		case <-time.After(left):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (l *lease) stall(client string, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stalled[client] = time.Now().Add(d)
}

// put writes the Lease if it still has the version.
func (l *lease) put(r resourcelock.LeaderElectionRecord, version int) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if version != l.version {
		return 0, apierrors.NewConflict(leases, "x", errors.New("changed"))
	}
	l.version++
	l.record = &r
	if n := len(l.holders); n == 0 || l.holders[n-1] != r.HolderIdentity {
		l.holders = append(l.holders, r.HolderIdentity)
	}
	return l.version, nil
}

// client is one user's access to the Lease.
type client struct {
	*lease
	process, identity string
	seen              int
}

func (c *client) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	if err := c.arrive(ctx, c.process); err != nil {
		return nil, nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.record == nil {
		return nil, nil, apierrors.NewNotFound(leases, "x")
	}
	c.seen = c.version
	r := *c.record
	raw, err := json.Marshal(r)
	return &r, raw, err
}

func (c *client) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	if err := c.arrive(ctx, c.process); err != nil {
		return err
	}
	version, err := c.put(r, 0)
	if err == nil {
		c.seen = version
	}
	return err
}

func (c *client) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	if err := c.arrive(ctx, c.process); err != nil {
		return err
	}
	version, err := c.put(r, c.seen)
	if err == nil {
		c.seen = version
	}
	return err
}

func (*client) RecordEvent(string) {}
func (c *client) Identity() string { return c.identity }
func (*client) Describe() string   { return "ns/x" }

// process is a candidate for leader.
type process struct {
	*Election
	name   string
	cancel context.CancelFunc
	done   chan struct{}

	mu            sync.Mutex
	begins, ended int
}

func (p *process) terms() (begins, ended int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.begins, p.ended
}

// testbed has the processes' API server.
type testbed struct {
	t *testing.T
	*lease
}

func newTestbed(t *testing.T) *testbed {
	return &testbed{t, &lease{stalled: map[string]time.Time{}}}
}

// start starts a process.
func (w *testbed) start(name string) *process {
	w.t.Helper()
	p := &process{name: name, done: make(chan struct{})}
	count := func(n *int) func() {
		return func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			*n++
		}
	}
	e, err := New(Config{
		Name: "x", Lock: &client{lease: w.lease, process: name, identity: name},
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
		Begins: count(&p.begins), Ended: count(&p.ended),
	}, prometheus.NewRegistry())
	if err != nil {
		w.t.Fatal(err)
	}
	p.Election = e
	var ctx context.Context
	ctx, p.cancel = context.WithCancel(w.t.Context())
	go func() {
		defer close(p.done)
		if err := e.Run(ctx); err != nil {
			w.t.Error(err)
		}
	}()
	return p
}

// kill ends a process as SIGKILL does: the Lease remains.
func (p *process) kill() {
	p.cancel()
	<-p.done
}

// leadsWithin waits until a process leads, and returns how long that took. It fails the
// test if it takes longer than most.
func (w *testbed) leadsWithin(p *process, most time.Duration) time.Duration {
	w.t.Helper()
	begin := time.Now()
	for !p.gate.isOpen() {
		if time.Since(begin) > most {
			w.t.Fatalf("%s does not lead after %s; the Lease was of %v", p.name, most, w.history())
		}
		pause(w.t.Context(), 10*time.Millisecond)
	}
	synctest.Wait()
	return time.Since(begin)
}

func (w *testbed) history() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.holders)
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
