package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/cluster"
)

// slowAPI is the API server of one controller, with the rights of an installation. While it
// stalls, it answers no request and sends no event of a watch.
type slowAPI struct {
	*killer

	mu    sync.Mutex
	stall chan struct{}  // closed when it answers again; nil while it does not stall
	lists map[string]int // number of lists by resource, also those at the begin of a watch
}

func newSlowAPI(t *testing.T, c *cluster.Cluster) *slowAPI {
	s := &slowAPI{killer: newKiller(t, c), lists: map[string]int{}}
	s.Config.Handler = s
	t.Cleanup(s.resume)
	return s
}

func (s *slowAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	if resource := path.Base(r.URL.Path); r.Method == http.MethodGet && (!query.Has("watch") || query.Has("sendInitialEvents")) {
		s.mu.Lock()
		s.lists[resource]++
		s.mu.Unlock()
	}
	s.wait(r.Context())
	s.proxy.ServeHTTP(slowWriter{w, s, r.Context()}, r)
}

// wait waits while the server stalls.
func (s *slowAPI) wait(ctx context.Context) {
	s.mu.Lock()
	stall := s.stall
	s.mu.Unlock()
	if stall == nil {
		return
	}
	select {
	case <-stall:
	case <-ctx.Done():
	}
}

func (s *slowAPI) pause() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stall = make(chan struct{})
}

func (s *slowAPI) resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stall != nil {
		close(s.stall)
	}
	s.stall = nil
}

// listed returns the number of lists of each resource that a controller keeps in memory.
func (s *slowAPI) listed() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := []string{"pods", "nodes", "namespaces", "podattachments", "ipblocks", "ippools", "ipclaims", "ipreservations", "nodenetworks"}
	out := maps.Clone(s.lists)
	maps.DeleteFunc(out, func(resource string, _ int) bool { return !slices.Contains(kept, resource) })
	return out
}

type slowWriter struct {
	http.ResponseWriter
	s   *slowAPI
	ctx context.Context //nolint:containedctx // the context of the request
}

func (w slowWriter) Write(p []byte) (int, error) {
	w.s.wait(w.ctx)
	return w.ResponseWriter.Write(p)
}

// Unwrap lets the proxy flush.
func (w slowWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// replicas are two controllers. Each has an API server that may stall.
type replicas struct {
	*observer
	apis     []*slowAPI
	programs []*program
}

func startReplicas(t *testing.T, c *cluster.Cluster, election string) *replicas {
	t.Helper()
	freeLease(t, c)
	t.Cleanup(func() { freeLease(t, c) })
	for i := range 5 {
		c.Node(fmt.Sprintf("slow-%d", i))
	}
	if err := c.Client.Create(t.Context(), &v1alpha1.IPPool{
		ObjectMeta: metav1.ObjectMeta{Name: "default"},
		Spec:       v1alpha1.IPPoolSpec{Domain: "slow", Ranges: []string{"10.1.0.0/20"}},
	}); err != nil {
		t.Fatal(err)
	}
	r := &replicas{observer: &observer{c: c, domain: "slow"}}
	for range 2 {
		api := newSlowAPI(t, c)
		r.apis = append(r.apis, api)
		r.programs = append(r.programs, supervise(t, api.kubeconfig(t), election))
	}
	return r
}

// of returns the index of the program whose process has this identity.
func (r *replicas) of(t *testing.T, identity string) int {
	t.Helper()
	pid := processOf(t, identity)
	i := slices.IndexFunc(r.programs, func(p *program) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.process.Pid == pid
	})
	if i < 0 {
		t.Fatalf("%s leads, and no program has this process", identity)
	}
	return i
}

// pods creates n pods, 8 at a time.
func (r *replicas) pods(name string, n int) []*corev1.Pod {
	pods := make([]*corev1.Pod, n)
	var g sync.WaitGroup
	next := make(chan int)
	for range 8 {
		g.Go(func() {
			for i := range next {
				pods[i] = r.c.Pod(fmt.Sprintf("%s-%d", name, i), fmt.Sprintf("slow-%d", i%5))
			}
		})
	}
	for i := range pods {
		next <- i
	}
	close(next)
	g.Wait()
	return pods
}

// alive checks that each program was started only once.
func (r *replicas) alive(t *testing.T) {
	t.Helper()
	for i, p := range r.programs {
		if n := p.count(); n != 1 {
			t.Errorf("controller %d was started %d times", i, n)
		}
	}
}

// An API server that stalls for 1, 3 and 5 s, twice, while 1,000 pods are created ends no
// process and changes no leader, and every pod has exactly one record. With a lease of 3 s,
// one late renewal ended the leader's process.
func TestStallsChangeNoLeader(t *testing.T) {
	c := cluster.Exclusive(t)
	r := startReplicas(t, c, "leaderElection: {}") // the defaults
	first := leaderOf(t, c)
	made := make(chan []*corev1.Pod, 1)
	go func() { made <- r.pods("web", 1000) }()
	for range 2 {
		for _, d := range []time.Duration{time.Second, 3 * time.Second, 5 * time.Second} {
			for _, api := range r.apis {
				api.pause()
			}
			<-time.After(d)
			for _, api := range r.apis {
				api.resume()
			}
			<-time.After(time.Second)
		}
	}
	pods := <-made
	c.Eventually(t, "all records", func(ctx context.Context) error { return r.recorded(ctx, pods) })
	r.inspect(t.Context())
	for _, f := range r.faults {
		t.Error(f)
	}
	r.alive(t)
	if now := leaderOf(t, c); now != first {
		t.Errorf("%s leads, want %s still", now, first)
	}
}

// A leader whose API server stalls for longer than the lease steps down, its process goes
// on, and another process leads. When the second leader is killed, the first leads again
// with the caches that it has in memory: it lists nothing a second time.
func TestLeaderStepsDown(t *testing.T) {
	c := cluster.Exclusive(t)
	r := startReplicas(t, c, mediumLease)
	first := leaderOf(t, c)
	at := r.of(t, first)
	pods := r.pods("before", 20)
	c.Eventually(t, "the records of the first term", func(ctx context.Context) error { return r.recorded(ctx, pods) })
	listed := r.apis[at].listed()
	if len(listed) < 8 {
		t.Fatalf("only %v were listed", listed)
	}
	other := func(than string) (identity string) {
		c.Eventually(t, "another leader than "+than, func(ctx context.Context) (err error) {
			if identity, err = leads(ctx, c); err == nil && identity == than {
				err = errors.New("it still leads")
			}
			return err
		})
		return identity
	}
	r.apis[at].pause()
	second := other(first)
	pods = append(pods, r.pods("meanwhile", 20)...)
	c.Eventually(t, "the records of the second term", func(ctx context.Context) error { return r.recorded(ctx, pods) })
	r.apis[at].resume()
	r.alive(t)

	if err := syscall.Kill(processOf(t, second), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// If the process that is started in its place leads, kill that process, too.
	for now := other(second); now != first; now = other(now) {
		if err := syscall.Kill(processOf(t, now), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	pods = append(pods, r.pods("after", 20)...)
	c.Eventually(t, "the records of the third term", func(ctx context.Context) error { return r.recorded(ctx, pods) })
	r.inspect(t.Context())
	for _, f := range r.faults {
		t.Error(f)
	}
	if n := r.programs[at].count(); n != 1 {
		t.Errorf("the first leader was started %d times", n)
	}
	if now := r.apis[at].listed(); !maps.Equal(now, listed) {
		t.Errorf("the first leader had listed %v, and has %v", listed, now)
	}
}
