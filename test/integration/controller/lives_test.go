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
	// livesPerWave is how many pods begin to live at once.
	livesPerWave = 150
	// usualLives is how many live in all, unless FAIRLEAD_LIVES says otherwise.
	usualLives = 300
	// havocEvery is after about how many moments, two in each write, something
	// happens to the controllers. Each time costs seconds, until another one leads.
	havocEvery = 200
)

// TestFiveThousandLives lets pods live in waves, on several nodes and with far
// fewer addresses than pods, while two controllers are killed with SIGKILL at
// random, and so is the control plane, API server and etcd, which is started again.
// Each pod has an address of both families, and one in ten those of a claim. At no
// time are two pods plugged with one address, do two records name one, or a record
// an address that its slot does not while the pod lives, no record goes while its
// pod is plugged, and a claim's addresses stay the same. Afterwards nothing is
// recorded and nothing taken.
//
// Usually 300 pods live; FAIRLEAD_LIVES=5000 makes it as many as its name says.
// FAIRLEAD_SEED repeats the choices of a run, not what the machine makes of them.
func TestFiveThousandLives(t *testing.T) {
	if os.Getenv("FAIRLEAD_TEST_KUBECONFIG") != "" {
		t.Skip("kills the control plane, which is not ours")
	}
	c := cluster.Exclusive(t)
	lives, seed := fromEnvironment(t, "FAIRLEAD_LIVES", usualLives), fromEnvironment(t, "FAIRLEAD_SEED", time.Now().UnixNano())
	t.Logf("FAIRLEAD_LIVES=%d FAIRLEAD_SEED=%d", lives, seed)
	l := &livesRun{
		world: &world{c: c, domain: "lives"}, t: t,
		rng: rand.New(rand.NewPCG(uint64(seed), 0)), havoc: newHavoc(uint64(seed)),
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
	l.kubelets = startKubelets(t, l.world)
	var programs []*program
	for range 2 {
		k := newKiller(t, c)
		p := supervise(t, k.kubeconfig(t))
		p.apiCrashes = true
		programs = append(programs, p)
		l.havoc.befall(k, p)
	}
	l.havoc.breakAPI(t, c)
	l.keep(t, time.Second, func(ctx context.Context) { l.look(ctx) })

	for wave := 0; lives > 0; wave++ {
		n := min(lives, livesPerWave)
		l.wave(wave, n)
		lives -= n
	}
	l.progress("all records to go", func(ctx context.Context) (int, error) {
		records, err := l.records(ctx)
		return len(records), err
	})
	kills, restarts := l.havoc.end()
	// What a controller took and could not write down any more the next one finds
	// when it begins to lead.
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

type livesRun struct {
	*world
	t        *testing.T
	rng      *rand.Rand
	nodes    []string
	kubelets *kubelets
	havoc    *havoc
}

// wave is the life of n pods. Some are deleted before they have a network, some
// finish, some have the name of a pod of the wave before and its claim.
func (l *livesRun) wave(wave int, n int64) {
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

// pod makes a pod while there is an API server that does not go away.
func (l *livesRun) pod(name, node string, asks func(*corev1.Pod)) *corev1.Pod {
	l.havoc.up.RLock()
	defer l.havoc.up.RUnlock()
	return l.c.Pod(name, node, asks)
}

// progress waits until nothing is left. It fails when for long nothing becomes
// less.
func (l *livesRun) progress(what string, left func(ctx context.Context) (int, error)) {
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

// kubelets play the nodes: they plug most pods whose record they see, and say
// Detached when they have unplugged them.
type kubelets struct {
	*world
	cache cache.Cache
	queue workqueue.TypedRateLimitingInterface[types.NamespacedName]

	mu      sync.Mutex
	plugged map[types.NamespacedName][]string // records by name: the addresses
	holders map[string]types.NamespacedName   // and the other way
	count   int
	used    map[string]bool
	claims  map[string]string // by key: the addresses
}

func startKubelets(t *testing.T, w *world) *kubelets {
	t.Helper()
	records, err := cache.New(w.c.REST, cache.Options{
		Scheme: w.c.Client.Scheme(), DefaultNamespaces: map[string]cache.Config{w.c.Namespace: {}},
	})
	if err != nil {
		t.Fatal(err)
	}
	k := &kubelets{
		world: w, cache: records,
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

// sync does what a node does about one record.
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
		return k.write(ctx, r, v1alpha1.Sandbox{State: v1alpha1.SandboxDetached})
	case r.DeletionTimestamp != nil || r.Status.Sandbox != nil || r.UID[0] == '0':
		return nil // those with this UID no runtime ever asks for
	}
	k.plug(key, r)
	return k.write(ctx, r, v1alpha1.Sandbox{ID: string(r.UID), State: v1alpha1.SandboxAttached})
}

func (k *kubelets) plug(key types.NamespacedName, r *v1alpha1.PodAttachment) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.plugged[key] != nil {
		return // its status could not be written
	}
	addresses := addressesOf(r)
	// One without an owner is of a pod that is gone, with what it had got so far.
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

// missing is how many pods have no record yet.
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

// summary is how often a pod was plugged, with how many addresses in all, and for
// how many claims.
func (k *kubelets) summary() (plugged, addresses, claims int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.count, len(k.used), len(k.claims)
}

// havoc befalls controllers after a random number of their writes: one is killed,
// before or after the write or a moment later, or the control plane is.
type havoc struct {
	crash chan struct{} // of the control plane
	up    sync.RWMutex  // held to read by who needs the API server

	mu              sync.Mutex
	rng             *rand.Rand
	left            int // moments until the next
	kills, restarts int
	over            bool
}

func newHavoc(seed uint64) *havoc {
	h := &havoc{rng: rand.New(rand.NewPCG(seed, 1)), crash: make(chan struct{}, 1)}
	h.left = 1 + h.rng.IntN(livesPerWave/3) // early enough for few pods
	return h
}

// befall makes it happen to a program behind a killer too.
func (h *havoc) befall(k *killer, p *program) {
	k.aim(p, func(m moment) bool { return h.due(m, p) })
}

// due counts writes of resources that are ours: the Lease is written all the
// time.
func (h *havoc) due(m moment, p *program) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m.resource == "" || h.over {
		return false
	}
	if h.left--; h.left > 0 {
		return false
	}
	h.left = 1 + h.rng.IntN(2*havocEvery)
	switch what := h.rng.IntN(6); {
	case h.kills > 0 && (what == 0 || h.restarts == 0):
		select {
		case h.crash <- struct{}{}:
			h.restarts++
		default: // it is about to
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

// breakAPI kills the control plane whenever it is due and starts it again, until
// the test ends.
func (h *havoc) breakAPI(t *testing.T, c *cluster.Cluster) {
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

func (h *havoc) restart(c *cluster.Cluster) error {
	h.up.Lock()
	defer h.up.Unlock()
	return c.Restart()
}

// end ends it, and returns how often it struck.
func (h *havoc) end() (kills, restarts int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
	return h.kills, h.restarts
}
