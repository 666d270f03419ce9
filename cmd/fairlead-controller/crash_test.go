package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/test/cluster"
)

// asController makes the test binary be the program: what is killed below is
// a real process of it.
const asController = "FAIRLEAD_TEST_AS_CONTROLLER"

func TestMain(m *testing.M) {
	if os.Getenv(asController) != "" {
		os.Exit(execute(os.Args[1:]))
	}
	ctrl.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

// moment is one write of the controller, and on which side of it the process
// is killed: before the API server has it, or after, with the reply lost.
type moment struct {
	method, resource, subresource string
	after                         bool
}

func (m moment) String() string {
	side := "before"
	if m.after {
		side = "after"
	}
	return strings.TrimSuffix(fmt.Sprintf("%s %s %s/%s", side, m.method, m.resource, m.subresource), "/")
}

// killer stands between a controller and the API server, where it has the rights
// that an installation gives it, and kills the controller at chosen moments.
type killer struct {
	*httptest.Server
	proxy *httputil.ReverseProxy

	mu     sync.Mutex
	victim *program
	due    func(moment) bool // says whether to kill it now
	away   bool              // the API server seems to be
}

func newKiller(t *testing.T, c *cluster.Cluster) *killer {
	t.Helper()
	target, err := url.Parse(c.REST.Host)
	if err != nil {
		t.Fatal(err)
	}
	account, err := clientcmd.BuildConfigFromFlags("", c.Account(cluster.ControllerAccount, ""))
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(account)
	if err != nil {
		t.Fatal(err)
	}
	k := &killer{proxy: &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     transport,
		FlushInterval: -1,
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) {}, // the victim's connections break
	}}
	k.Server = httptest.NewServer(k)
	t.Cleanup(k.CloseClientConnections)
	t.Cleanup(k.Close)
	return k
}

// aim makes it kill the victim whenever due says so, which it asks for one
// moment after the other.
func (k *killer) aim(victim *program, due func(moment) bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.victim, k.due = victim, due
}

// arm makes it kill the victim at a moment, once.
func (k *killer) arm(at moment, victim *program) <-chan struct{} {
	fired, done := make(chan struct{}), false
	k.aim(victim, func(m moment) bool {
		if done || m != at {
			return false
		}
		done = true
		close(fired)
		return true
	})
	return fired
}

// shoot kills the victim if this request is the moment.
func (k *killer) shoot(r *http.Request, after bool) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	resource, subresource := resourceOf(r.URL.Path)
	if r.Method == http.MethodGet || k.due == nil || !k.due(moment{r.Method, resource, subresource, after}) {
		return false
	}
	k.victim.kill()
	return true
}

// seem makes the API server seem to be away, with all connections broken, or to
// be back.
func (k *killer) seem(away bool) {
	k.mu.Lock()
	k.away = away
	k.mu.Unlock()
	if away {
		k.CloseClientConnections()
	}
}

func (k *killer) isAway() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.away
}

func (k *killer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if k.isAway() {
		http.Error(w, "the API server is away", http.StatusServiceUnavailable)
		return
	}
	if k.shoot(r, false) {
		return
	}
	if r.Method == http.MethodGet {
		k.proxy.ServeHTTP(w, r)
		return
	}
	done := httptest.NewRecorder()
	k.proxy.ServeHTTP(done, r)
	if k.shoot(r, true) {
		return
	}
	maps.Copy(w.Header(), done.Header())
	w.WriteHeader(done.Code)
	_, _ = w.Write(done.Body.Bytes())
}

// resourceOf is the resource of an API path, and its subresource.
func resourceOf(path string) (resource, subresource string) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	for i, part := range parts {
		switch part {
		case "podattachments", "ipblocks", "ippools", "nodenetworks":
			if len(parts) > i+2 {
				subresource = parts[i+2]
			}
			return part, subresource
		}
	}
	return "", ""
}

// kubeconfig returns the path of a kubeconfig for this server.
func (k *killer) kubeconfig(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	write(t, path, fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q}}]
contexts: [{name: c, context: {cluster: c, user: c}}]
users: [{name: c, user: {}}]
current-context: c
`, k.URL))
	return path
}

// program is a controller that is started again whenever it dies.
type program struct {
	mu      sync.Mutex
	process *os.Process
	starts  int
}

func (p *program) started(process *os.Process) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.process = process
	p.starts++
}

// count is how many processes of it there were.
func (p *program) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.starts
}

// kill kills the process that runs now.
func (p *program) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.process.Signal(syscall.SIGKILL)
}

// supervise runs the controller until the test ends, and starts it again
// whenever it dies. More are further lines of its configuration.
func supervise(t *testing.T, kubeconfig string, more ...string) *program {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "controller.yaml")
	write(t, file, fmt.Sprintf(`kubeconfig: %q
metricsAddress: "0"
leaderElection: {leaseDuration: 2s, renewDeadline: 1500ms, retryPeriod: 100ms}
%s
`, kubeconfig, strings.Join(more, "\n")))
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &program{}
	begin := func() *exec.Cmd {
		cmd := exec.CommandContext(ctx, os.Args[0], "--config", file, "-v", "1")
		cmd.Env = append(os.Environ(), asController+"=1")
		cmd.Stderr = log
		if err := cmd.Start(); err != nil {
			t.Error(err)
			return nil
		}
		p.started(cmd.Process)
		return cmd
	}
	first := begin()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for cmd := first; cmd != nil; cmd = begin() {
			_ = cmd.Wait()
			if ctx.Err() != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		_ = log.Close()
		text, _ := os.ReadFile(log.Name())
		if strings.Contains(string(text), "forbidden") {
			t.Error("the controller tried what deploy/rights does not allow; its log says what")
		}
		if t.Failed() {
			t.Logf("the controller's log:\n%s", text)
		}
	})
	return p
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestKilledAtEveryStep kills the controller with SIGKILL on either side of
// each write that it makes to give a pod its network and to take it back, and
// lets another process go on. Afterwards nothing is left, and at no time do two
// records name one address, or a record an address that its slot does not.
func TestKilledAtEveryStep(t *testing.T) {
	c := cluster.Exclusive(t)
	k := newKiller(t, c)
	var moments []moment
	for _, after := range []bool{false, true} {
		moments = append(moments,
			moment{http.MethodPost, "ipblocks", "", after},
			moment{http.MethodPut, "ipblocks", "", after},
			moment{http.MethodPost, "podattachments", "", after},
			moment{http.MethodPost, "nodenetworks", "", after},
			moment{http.MethodPatch, "nodenetworks", "", after},
			moment{http.MethodDelete, "podattachments", "", after},
			moment{http.MethodPatch, "podattachments", "", after},
			moment{http.MethodPatch, "ippools", "status", after},
		)
	}
	for i, at := range moments {
		if !t.Run(at.String(), func(t *testing.T) { life(t, c, k, at, fmt.Sprintf("run-%d", i)) }) {
			return // the next would find what this one left
		}
	}
}

// life is the life of three pods on a new node, during which the controller is
// killed once.
func life(t *testing.T, c *cluster.Cluster, k *killer, at moment, name string) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	pool := &v1alpha1.IPPool{
		ObjectMeta: metav1.ObjectMeta{Name: "default"},
		Spec:       v1alpha1.IPPoolSpec{Domain: name, Ranges: []string{"10.1.0.0/24"}, Placement: v1alpha1.PlacementPerNode},
	}
	for _, o := range []client.Object{node, pool} {
		if err := c.Client.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Client.Delete(context.Background(), o) }()
	}
	world := watchWorld(t, c, name)
	fired := k.arm(at, supervise(t, k.kubeconfig(t)))

	// Only once the node has its NodeNetwork: it would be created with the first
	// pod's block already in it, and the write that adds a block never be made.
	c.Eventually(t, "the node's network", func(ctx context.Context) error {
		return c.Client.Get(ctx, client.ObjectKey{Name: name}, &v1alpha1.NodeNetwork{})
	})
	pods := []*corev1.Pod{c.Pod(name+"-a", name)}
	c.Eventually(t, "the first record", func(ctx context.Context) error { return world.recorded(ctx, pods) })
	pods = append(pods, c.Pod(name+"-b", name), c.Pod(name+"-c", name))
	c.Eventually(t, "all records", func(ctx context.Context) error { return world.recorded(ctx, pods) })
	// One pod finishes: its record's deletion is for the controller to ask for.
	// Of the others Kubernetes' garbage collector is usually first.
	finished := pods[2].DeepCopy()
	finished.Status.Phase = corev1.PodSucceeded
	if err := c.Client.Status().Patch(t.Context(), finished, client.MergeFrom(pods[2])); err != nil {
		t.Fatal(err)
	}
	for _, p := range pods[:2] {
		if err := c.Client.Delete(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	c.Eventually(t, "everything to be given back", world.empty)
	c.Eventually(t, "the controller to have been killed", func(context.Context) error {
		select {
		case <-fired:
			return nil
		default:
			return fmt.Errorf("it never made the write %s", at)
		}
	})
}

// world is what the test sees of its namespace and of one domain.
type world struct {
	c      *cluster.Cluster
	domain string
	mu     sync.Mutex
	faults []string
}

// watchWorld looks at the world until the test ends, and plays the nodes: it
// says Detached of each record that is being deleted.
func watchWorld(t *testing.T, c *cluster.Cluster, domain string) *world {
	w := &world{c: c, domain: domain}
	w.keep(t, 10*time.Millisecond, func(ctx context.Context) { w.detach(ctx, w.look(ctx)) })
	return w
}

// keep does something again and again until the test ends, which fails with the
// faults that were noted.
func (w *world) keep(t *testing.T, every time.Duration, do func(ctx context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for ctx.Err() == nil {
			do(ctx)
			<-tick.C
		}
	}()
	t.Cleanup(func() {
		for _, f := range w.faults {
			t.Error(f)
		}
	})
	t.Cleanup(func() { cancel(); <-done })
}

func (w *world) records(ctx context.Context) ([]v1alpha1.PodAttachment, error) {
	var list v1alpha1.PodAttachmentList
	err := w.c.Client.List(ctx, &list, client.InNamespace(w.c.Namespace))
	return list.Items, err
}

// slots are the taken addresses by the pod UID that holds them.
func (w *world) slots(ctx context.Context) (map[string]string, error) {
	var list v1alpha1.IPBlockList
	if err := w.c.Client.List(ctx, &list, client.MatchingLabels{v1alpha1.LabelDomain: w.domain}); err != nil {
		return nil, err
	}
	taken := map[string]string{}
	for _, b := range list.Items {
		decoded := ipam.DecodeBlock(netip.MustParsePrefix(b.Spec.CIDR), b.Spec.Node, b.Spec.Slots)
		for slot := range decoded.Slots() {
			if slot.State == ipam.Taken {
				taken[slot.Addr.String()] = slot.Holder.PodUID
			}
		}
	}
	return taken, nil
}

// look notes what must never be, and returns the records.
func (w *world) look(ctx context.Context) []v1alpha1.PodAttachment {
	records, err := w.records(ctx)
	if err != nil {
		return nil
	}
	slots, err := w.slots(ctx)
	if err != nil {
		return nil
	}
	seen := map[string]string{}
	for i := range records {
		r := &records[i]
		if r.DeletionTimestamp != nil && detached(r) {
			continue // its address may be somebody else's by now
		}
		address := r.Spec.Summary.Addresses
		if other := seen[address]; other != "" {
			w.fault("records %s and %s both name %s", other, r.Name, address)
		}
		seen[address] = r.Name
		// The blocks were read after the record: unless it was being released
		// then, its slot must say the same.
		if holder := slots[address]; r.DeletionTimestamp == nil && holder != string(r.Spec.PodUID) && w.still(ctx, r) {
			w.fault("record %s names %s, which its slot gives to %q", r.Name, address, holder)
		}
	}
	return records
}

func detached(r *v1alpha1.PodAttachment) bool {
	return r.Status.Sandbox != nil && r.Status.Sandbox.State == v1alpha1.SandboxDetached
}

// detach says Detached of the records that are being deleted.
func (w *world) detach(ctx context.Context, records []v1alpha1.PodAttachment) {
	for i := range records {
		if r := &records[i]; r.DeletionTimestamp != nil && r.Status.Sandbox == nil {
			_ = w.write(ctx, r, v1alpha1.Sandbox{State: v1alpha1.SandboxDetached})
		}
	}
}

// write writes what a node says about a record.
func (w *world) write(ctx context.Context, r *v1alpha1.PodAttachment, s v1alpha1.Sandbox) error {
	after := r.DeepCopy()
	after.Status.Sandbox = &s
	return w.c.Client.Status().Patch(ctx, after, client.MergeFrom(r))
}

// still reports whether a record is as it was, and its pod too. That of a pod
// that is gone may have been written late, by a controller that was killed, when
// another one had taken everything back.
func (w *world) still(ctx context.Context, r *v1alpha1.PodAttachment) bool {
	p := &corev1.Pod{}
	err := w.c.Client.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: r.Spec.PodName}, p)
	if err != nil || p.UID != r.Spec.PodUID {
		return false
	}
	now := &v1alpha1.PodAttachment{}
	err = w.c.Client.Get(ctx, client.ObjectKeyFromObject(r), now)
	return err == nil && now.ResourceVersion == r.ResourceVersion
}

func (w *world) fault(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = append(w.faults, fmt.Sprintf(format, args...))
}

// recorded fails until each pod has exactly one record.
func (w *world) recorded(ctx context.Context, pods []*corev1.Pod) error {
	records, err := w.records(ctx)
	if err != nil {
		return err
	}
	count := map[string]int{}
	for _, r := range records {
		count[string(r.Spec.PodUID)]++
	}
	for _, p := range pods {
		if count[string(p.UID)] != 1 {
			return fmt.Errorf("pod %s has %d records", p.Name, count[string(p.UID)])
		}
	}
	return nil
}

// empty fails while anything is recorded or taken.
func (w *world) empty(ctx context.Context) error {
	records, err := w.records(ctx)
	if err != nil {
		return err
	}
	slots, err := w.slots(ctx)
	if err != nil {
		return err
	}
	if len(records) > 0 || len(slots) > 0 {
		return fmt.Errorf("%d records, slots %v", len(records), slots)
	}
	return nil
}
