package pool

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/test/pooltest"
)

var (
	errFull = errors.New("the network is full")
	errAway = errors.New("the cloud is away")
)

// world is a cloud, an API and the records of pods.
type world struct {
	*testing.T
	api *pooltest.API

	mu       sync.Mutex
	network  v1alpha1.PortPoolNetwork
	ports    map[string]Made
	groups   map[string][]string
	next     int
	capacity int
	calls    []string
	// fault returns the error of a call; lost is true if the call takes effect all the same.
	fault    func(call string) (err error, lost bool)
	recorded map[string]Holder
	gone     map[string]bool
	told     error
	wakes    int
	// corrected are the ports that a PortPool had otherwise than a record.
	corrected []string
}

func newWorld(t *testing.T) *world {
	return &world{
		T: t, api: pooltest.New(), ports: map[string]Made{}, groups: map[string][]string{}, capacity: 1000, recorded: map[string]Holder{}, gone: map[string]bool{},
		network: v1alpha1.PortPoolNetwork{ID: "net-1", GroupIDs: []string{"g1"}, Subnets: []v1alpha1.PortPoolSubnet{{ID: "s", CIDR: "10.8.0.0/16"}}},
	}
}

// call notes a call and returns its fault.
func (w *world) call(format string, args ...any) (err error, lost bool) {
	text := fmt.Sprintf(format, args...)
	w.mu.Lock()
	w.calls = append(w.calls, text)
	f := w.fault
	w.mu.Unlock()
	if f == nil {
		return nil, false
	}
	return f(text)
}

func (w *world) Network(context.Context, Key) (v1alpha1.PortPoolNetwork, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.network, nil
}

func (w *world) Make(_ context.Context, k Key, n v1alpha1.PortPoolNetwork, places []Place) ([]Port, error) {
	err, lost := w.call("make %d", len(places))
	if err != nil && !lost {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []Port
	missing := 0
	for _, at := range places {
		out = append(out, w.at(at).Port)
		if out[len(out)-1].ID == "" {
			missing++
		}
	}
	if len(w.ports)+missing > w.capacity {
		return nil, errFull
	}
	for i, at := range places {
		if out[i].ID != "" {
			continue
		}
		w.next++
		out[i] = Port{ID: fmt.Sprintf("port-%d", w.next), MAC: fmt.Sprintf("fa:16:3e:00:%02x:%02x", w.next/256, w.next%256), Addresses: []string{fmt.Sprintf("10.8.%d.%d/16", w.next/256, w.next%256)}}
		w.ports[out[i].ID] = Made{Port: out[i], Place: at, Network: n.ID, Host: k.Host}
		w.groups[out[i].ID] = n.GroupIDs
	}
	return out, err
}

// at returns the port of a place. w.mu is held.
func (w *world) at(at Place) Made {
	for _, m := range w.ports {
		if m.Place == at {
			return m
		}
	}
	return Made{}
}

func (w *world) Change(_ context.Context, p Port, n v1alpha1.PortPoolNetwork) error {
	err, lost := w.call("change %s", p.ID)
	if err == nil || lost {
		w.mu.Lock()
		w.groups[p.ID] = n.GroupIDs
		w.mu.Unlock()
	}
	return err
}

func (w *world) Delete(_ context.Context, p Port, _ v1alpha1.PortPoolNetwork) error {
	err, lost := w.call("delete %s", p.ID)
	if err == nil || lost {
		w.mu.Lock()
		delete(w.ports, p.ID)
		w.mu.Unlock()
	}
	return err
}

func (w *world) Recorded(context.Context, string) (map[string]Holder, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.recorded), nil
}

func (w *world) NodeGone(_ context.Context, node string) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.gone[node], nil
}

func (w *world) ReportMade(_ context.Context, _ *v1alpha1.PortPool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told = err
}

func (w *world) ReportRecorded(_ context.Context, _ *v1alpha1.PortPool, port string, _ Holder) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.corrected = append(w.corrected, port)
}

// process is a controller with pools.
type process struct {
	*Pools
	stop func()
}

func (w *world) start(m Marks) *process {
	w.Helper()
	p := New(Config{
		API: w.api, Maker: w, Cluster: w, Marks: m, Grace: 5 * time.Minute,
		Scarce: func(err error) bool { return errors.Is(err, errFull) },
		Made: func(context.Context) ([]Made, error) {
			if err, _ := w.call("list"); err != nil {
				return nil, err
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			return slices.Collect(maps.Values(w.ports)), nil
		},
		Wake: func() { w.mu.Lock(); w.wakes++; w.mu.Unlock() },
	})
	w.api.Feed(p)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = p.Run(ctx) }()
	stop := sync.OnceFunc(func() { cancel(); <-done })
	w.Cleanup(func() {
		stop()
		wait(time.Hour) // writes that are under way end
	})
	return &process{p, stop}
}

func holder(n int) Holder {
	return Holder{UID: "uid-1", Namespace: "default", Name: fmt.Sprintf("pod-%d", n), Interface: "eth0", Network: "default", Default: true}
}

var (
	key   = Key{Node: "node-1", Host: "node-1", Network: "pods", Groups: []string{"web"}}
	marks = Marks{Low: 4, High: 8, Batch: 20}
)

// take takes a port, and waits for it.
func (w *world) take(p *process, k Key, n int) Held {
	w.Helper()
	for range 100 {
		h, err := p.Take(context.Background(), k, holder(n))
		if err == nil {
			return h
		}
		if !errors.Is(err, ErrEmpty) && !errors.Is(err, fault.ErrUnavailable) {
			w.Fatalf("pod %d: %v", n, err)
		}
		wait(time.Second) // of the bubble
	}
	w.Fatalf("pod %d waits for ever", n)
	return Held{}
}

func (w *world) free(p *process, n int) {
	w.Helper()
	for {
		if _, _, err := p.Free(context.Background(), holder(n)); err == nil {
			return
		} else if !errors.Is(err, fault.ErrUnavailable) {
			w.Fatal(err)
		}
		wait(time.Second)
	}
}

// states returns the states of all slots, sorted.
func (w *world) states() string {
	var all []string
	for _, o := range w.api.List() {
		for _, s := range o.Spec.Ports {
			all = append(all, strings.ToLower(string(s.State)))
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// want compares the states after a time.
func (w *world) want(after time.Duration, states string) {
	w.Helper()
	wait(after)
	synctest.Wait()
	if got := w.states(); got != states {
		w.Errorf("after %v the slots are %q, want %q", after, got, states)
	}
}

// sound waits for the calls that are under way, and checks that each port of the cloud is in
// one slot, each slot has a port, and no pod has two.
func (w *world) sound() {
	w.Helper()
	synctest.Wait()
	w.mu.Lock()
	ports := maps.Clone(w.ports)
	w.mu.Unlock()
	pods := map[identity]string{}
	for _, o := range w.api.List() {
		for _, s := range o.Spec.Ports {
			if m, ok := ports[s.ID]; !ok || m.Pool != o.Name || m.Slot != int(s.Slot) {
				w.Errorf("%s: slot %v: the cloud has %+v", o.Name, s, m)
			}
			delete(ports, s.ID)
			if (s.State == used) != (s.Pod != nil) {
				w.Errorf("%s: slot %v", o.Name, s)
			}
			if s.Pod != nil {
				if has, ok := pods[identityOf(*s.Pod)]; ok {
					w.Errorf("%v has %s and %s", s.Pod, has, s.ID)
				}
				pods[identityOf(*s.Pod)] = s.ID
			}
		}
	}
	for id, m := range ports {
		w.Errorf("port %s of %v is in no slot", id, m.Place)
	}
}

func repeat(state string, n int) string { return strings.TrimSpace(strings.Repeat(state+" ", n)) }

// wait passes time of the bubble.
func wait(d time.Duration) { time.Sleep(d) } //nolint:forbidigo // the bubble's clock

// set changes the world while processes run.
func (w *world) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// made returns the ports in the cloud, by ID.
func (w *world) made() map[string]Made {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.ports)
}

func (w *world) called() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.calls)
}

func (w *world) grouped(id string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.groups[id]
}

func (w *world) lastTold() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.told
}

// fails sets the faults of the calls.
func (w *world) fails(fault func(call string) (error, bool)) { w.set(func() { w.fault = fault }) }

func (w *world) given() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.corrected)
}
