package controller

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/cluster"
)

const (
	// podsPerWave is the number of pods that a wave creates.
	podsPerWave = 150
	// usualPods is the number of pods in all if FAIRLEAD_LIVES is not set.
	usualPods = 300
	// crashEvery is the mean number of moments between two crashes; each write has two
	// moments. A crash costs seconds, until another controller leads.
	crashEvery = 200
)

// TestFiveThousandLives creates and deletes pods in waves, on several nodes and with far
// fewer addresses than pods. Meanwhile it kills two controllers with SIGKILL at random. It
// also kills the control plane (API server and etcd) at random and starts it again. Each
// pod has an address of each family; every tenth pod has the addresses of a claim.
//
// At no time are two pods plugged with one address, or do two records name one address. The
// slot of an address names the same pod as the record while the pod runs. No record
// disappears while its pod is plugged. The addresses of a claim stay the same. At the end
// there is no record and no taken address.
//
// The test creates 300 pods, or the number in FAIRLEAD_LIVES, such as 5000. FAIRLEAD_SEED
// repeats the random choices of a run, but not the timing.
func TestFiveThousandLives(t *testing.T) {
	t.Parallel()
	if os.Getenv("FAIRLEAD_TEST_KUBECONFIG") != "" {
		t.Skip("kills the control plane, which must not be done to a given cluster")
	}
	c := cluster.Exclusive(t)
	remaining, seed := fromEnvironment(t, "FAIRLEAD_LIVES", usualPods), fromEnvironment(t, "FAIRLEAD_SEED", time.Now().UnixNano())
	t.Logf("FAIRLEAD_LIVES=%d FAIRLEAD_SEED=%d", remaining, seed)
	l := &wavesRun{
		observer: &observer{c: c, domain: "lives"}, t: t,
		rng: rand.New(rand.NewPCG(uint64(seed), 0)), crasher: newCrasher(uint64(seed)),
	}
	for i := range 5 {
		l.nodes = append(l.nodes, c.Node(fmt.Sprintf("lives-%d", i)).Name)
	}
	if err := c.Client.Create(t.Context(), &v1alpha1.IPPool{
		ObjectMeta: metav1.ObjectMeta{Name: "default"},
		Spec: v1alpha1.IPPoolSpec{
			Domain: l.domain, Ranges: []string{"10.1.0.0-10.1.0.191", "fd00:1::/120"}, Cooldown: &metav1.Duration{Duration: 5 * time.Second},
		},
	}); err != nil {
		t.Fatal(err)
	}
	l.kubelets = startKubelets(t, l.observer)
	var programs []*program
	for range 2 {
		k := newKiller(t, c)
		p := supervise(t, k.kubeconfig(t))
		p.apiCrashes = true
		programs = append(programs, p)
		l.crasher.addProgram(k, p)
	}
	l.crasher.crashAPI(t, c)
	l.repeat(t, time.Second, func(ctx context.Context) { l.inspect(ctx) })

	for wave := 0; remaining > 0; wave++ {
		n := min(remaining, podsPerWave)
		l.wave(wave, n)
		remaining -= n
	}
	l.progress("the end of all records", func(ctx context.Context) (int, error) {
		records, err := l.records(ctx)
		return len(records), err
	})
	kills, restarts := l.crasher.end()
	// A killed controller may have taken addresses without a record. The next controller
	// finds them when it begins to lead.
	for _, p := range programs {
		p.kill()
	}
	c.Eventually(t, "everything to be given back", l.empty)
	c.Eventually(t, "a clean audit", func(ctx context.Context) error { return audited(ctx, c) })
	plugged, addresses, claims := l.kubelets.summary()
	t.Logf("%d controllers killed, the API server and etcd %d times, %d starts; %d pods plugged with %d addresses and %d claims",
		kills, restarts, programs[0].count()+programs[1].count(), plugged, addresses, claims)
	if kills == 0 || restarts == 0 || claims == 0 {
		t.Error("no controller was killed, or the API server was not, or no claim had addresses")
	}
}

func fromEnvironment(t *testing.T, name string, usual int64) int64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return usual
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n <= 0 {
		t.Fatalf("%s is %q; must be a number above 0", name, text)
	}
	return n
}

type wavesRun struct {
	*observer
	t        *testing.T
	rng      *rand.Rand
	nodes    []string
	kubelets *kubelets
	crasher  *crasher
}

// wave creates n pods and deletes them. Some are deleted before they have a record, and some
// finish. Every tenth has the name and the claim of a pod of the previous wave.
func (l *wavesRun) wave(wave int, n int64) {
	var stay []*corev1.Pod
	for i := range n {
		name, asks := fmt.Sprintf("web-%d-%d", wave, i), func(*corev1.Pod) {}
		if i%10 == 0 {
			name = fmt.Sprintf("again-%d", i)
			asks = func(p *corev1.Pod) { p.Annotations = map[string]string{v1alpha1.AnnotationClaim: name} }
		}
		p := l.pod(name, l.nodes[l.rng.IntN(len(l.nodes))], asks)
		if l.rng.IntN(10) > 0 {
			stay = append(stay, p)
			continue
		}
		l.c.Eventually(l.t, "delete "+p.Name, func(ctx context.Context) error { return client.IgnoreNotFound(l.c.Client.Delete(ctx, p)) })
	}
	l.progress(fmt.Sprintf("the records of wave %d", wave), func(ctx context.Context) (int, error) { return l.kubelets.missing(ctx, stay) })
	for _, p := range stay {
		if l.rng.IntN(8) > 0 {
			continue
		}
		finished := p.DeepCopy()
		finished.Status.Phase = corev1.PodSucceeded
		l.c.Eventually(l.t, "finish "+p.Name, func(ctx context.Context) error {
			return l.c.Client.Status().Patch(ctx, finished, client.MergeFrom(p))
		})
	}
	l.c.Eventually(l.t, "delete the pods", func(ctx context.Context) error {
		return l.c.Client.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(l.c.Namespace), client.GracePeriodSeconds(0))
	})
}

// pod creates a pod. The control plane is not killed meanwhile.
func (l *wavesRun) pod(name, node string, asks func(*corev1.Pod)) *corev1.Pod {
	l.crasher.up.RLock()
	defer l.crasher.up.RUnlock()
	return l.c.Pod(name, node, asks)
}

// progress waits until left returns 0. The test fails if the number does not shrink within
// the time of Eventually.
func (l *wavesRun) progress(what string, left func(ctx context.Context) (int, error)) {
	for last := -1; last != 0; {
		l.c.Eventually(l.t, what, func(ctx context.Context) error {
			n, err := left(ctx)
			if err != nil {
				return err
			}
			if last >= 0 && n >= last {
				return fmt.Errorf("%d left", n)
			}
			last = n
			return nil
		})
	}
}

// kubelets play the nodes: they plug most of the pods that have a record, and set Detached
// after they have unplugged a pod whose record is being deleted.
type kubelets struct {
	*observer
	cache cache.Cache
	queue workqueue.TypedRateLimitingInterface[types.NamespacedName]

	mu      sync.Mutex
	plugged map[types.NamespacedName][]string // addresses by record
	holders map[string]types.NamespacedName   // record by address
	count   int
	used    map[string]bool
	claims  map[string]string // addresses by claim
}

func startKubelets(t *testing.T, w *observer) *kubelets {
	t.Helper()
	records, err := cache.New(w.c.REST, cache.Options{
		Scheme: w.c.Client.Scheme(), DefaultNamespaces: map[string]cache.Config{w.c.Namespace: {}},
	})
	if err != nil {
		t.Fatal(err)
	}
	k := &kubelets{
		observer: w, cache: records,
		queue:   workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[types.NamespacedName]()),
		plugged: map[types.NamespacedName][]string{}, holders: map[string]types.NamespacedName{}, used: map[string]bool{}, claims: map[string]string{},
	}
	informer, err := records.GetInformer(t.Context(), &v1alpha1.PodAttachment{})
	if err != nil {
		t.Fatal(err)
	}
	seen := func(o any) {
		if key, err := toolscache.DeletionHandlingObjectToName(o); err == nil {
			k.queue.Add(types.NamespacedName(key))
		}
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: seen, UpdateFunc: func(_, o any) { seen(o) }, DeleteFunc: seen,
	}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = records.Start(ctx) })
	for range 8 {
		running.Go(func() { k.work(ctx) })
	}
	t.Cleanup(func() {
		cancel()
		k.queue.ShutDown()
		running.Wait()
	})
	return k
}

func (k *kubelets) work(ctx context.Context) {
	for {
		key, ended := k.queue.Get()
		if ended {
			return
		}
		if err := k.sync(ctx, key); err != nil {
			k.queue.AddRateLimited(key)
		} else {
			k.queue.Forget(key)
		}
		k.queue.Done(key)
	}
}

// sync plugs or unplugs the pod of one record and writes the sandbox, as a node does.
func (k *kubelets) sync(ctx context.Context, key types.NamespacedName) error {
	r := &v1alpha1.PodAttachment{}
	err := k.cache.Get(ctx, key, r)
	switch {
	case apierrors.IsNotFound(err):
		if addresses := k.unplug(key); addresses != nil {
			k.fault("record %s is gone, and its pod is plugged with %v", key.Name, addresses)
		}
		return nil
	case err != nil:
		return err
	case r.DeletionTimestamp != nil && !detached(r):
		k.unplug(key)
		return k.writeSandbox(ctx, r, v1alpha1.Sandbox{State: v1alpha1.SandboxDetached})
	case r.DeletionTimestamp != nil || r.Status.Sandbox != nil || r.UID[0] == '0':
		return nil // a record with such a UID is never plugged
	}
	k.plug(key, r)
	return k.writeSandbox(ctx, r, v1alpha1.Sandbox{ID: string(r.UID), State: v1alpha1.SandboxAttached})
}

func (k *kubelets) plug(key types.NamespacedName, r *v1alpha1.PodAttachment) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.plugged[key] != nil {
		return // it is plugged; the write of its status failed
	}
	addresses := addressesOf(r)
	// A record without an owner is of a pod that is gone. It has the addresses that the pod
	// had got so far.
	whole := len(r.OwnerReferences) > 0
	if whole && len(addresses) != 2 {
		k.fault("record %s has %v, not one address of each family", key.Name, addresses)
	}
	for _, address := range addresses {
		if other, taken := k.holders[address]; taken {
			k.fault("%s and %s are plugged with %s", other.Name, key.Name, address)
		}
		k.holders[address], k.used[address] = key, true
	}
	if claim := r.Spec.Interfaces[0].Claim; whole && claim != "" {
		had, now := k.claims[claim], r.Spec.Summary.Addresses
		if had != "" && had != now {
			k.fault("claim %s had %s, and its next pod has %s", claim, had, now)
		}
		k.claims[claim] = now
	}
	k.plugged[key] = addresses
	k.count++
}

func (k *kubelets) unplug(key types.NamespacedName) (addresses []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	addresses = k.plugged[key]
	delete(k.plugged, key)
	for _, address := range addresses {
		if k.holders[address] == key {
			delete(k.holders, address)
		}
	}
	return addresses
}

// missing returns the number of pods that have no record yet.
func (k *kubelets) missing(ctx context.Context, pods []*corev1.Pod) (int, error) {
	var list v1alpha1.PodAttachmentList
	if err := k.cache.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return 0, err
	}
	has := map[types.UID]bool{}
	for i := range list.Items {
		uid := list.Items[i].Spec.PodUID
		if has[uid] {
			return 0, fmt.Errorf("pod %s has two records", list.Items[i].Spec.PodName)
		}
		has[uid] = true
	}
	n := 0
	for _, p := range pods {
		if !has[p.UID] {
			n++
		}
	}
	return n, nil
}

// summary returns the number of times that a pod was plugged, of different addresses, and of
// claims.
func (k *kubelets) summary() (plugged, addresses, claims int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.count, len(k.used), len(k.claims)
}

// crasher kills a controller after a random number of writes: before the write, after it or up
// to 300 ms later. In some cases it kills the control plane instead.
type crasher struct {
	crash chan struct{} // one value for each crash of the control plane
	up    sync.RWMutex  // read-locked while the API server is needed

	mu              sync.Mutex
	rng             *rand.Rand
	left            int // moments until the next crash
	kills, restarts int
	stopped         bool
}

func newCrasher(seed uint64) *crasher {
	h := &crasher{rng: rand.New(rand.NewPCG(seed, 1)), crash: make(chan struct{}, 1)}
	h.left = 1 + h.rng.IntN(podsPerWave/3) // early enough if the pods are few
	return h
}

// addProgram adds a program, and the killer between it and the API server.
func (h *crasher) addProgram(k *killer, p *program) {
	k.aim(p, func(m moment) bool { return h.due(m, p) })
}

// due reports whether the killer kills the program now. It counts the moments of
// Fairlead's resources only, since the Lease is written all the time.
func (h *crasher) due(m moment, p *program) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m.resource == "" || h.stopped {
		return false
	}
	if h.left--; h.left > 0 {
		return false
	}
	h.left = 1 + h.rng.IntN(2*crashEvery)
	switch what := h.rng.IntN(6); {
	case h.kills > 0 && (what == 0 || h.restarts == 0):
		select {
		case h.crash <- struct{}{}:
			h.restarts++
		default: // a crash is pending
		}
		return false
	case what < 3:
		h.kills++
		time.AfterFunc(time.Duration(h.rng.IntN(300))*time.Millisecond, p.kill)
		return false
	default:
		h.kills++
		return true
	}
}

// crashAPI kills the control plane and starts it again for each value in crash, until the
// test ends.
func (h *crasher) crashAPI(t *testing.T, c *cluster.Cluster) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-ctx.Done():
				return
			case <-h.crash:
				if err := h.restart(c); err != nil {
					t.Error(err)
					return
				}
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
}

func (h *crasher) restart(c *cluster.Cluster) error {
	h.up.Lock()
	defer h.up.Unlock()
	return c.Restart()
}

// end stops the crashes. It returns the number of killed controllers and of killed control
// planes.
func (h *crasher) end() (kills, restarts int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopped = true
	return h.kills, h.restarts
}
