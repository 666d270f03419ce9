package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fairlead.dev/fairlead/internal/controller"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/driver/native"
	"fairlead.dev/fairlead/internal/driver/native/ipclaim"
	"fairlead.dev/fairlead/internal/driver/native/upkeep"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/gc"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/audit"
	"fairlead.dev/fairlead/internal/ipam/block"
	"fairlead.dev/fairlead/internal/pod"
)

// leader is one controller process: the real store, driver, reconciler and collector on
// simulated caches and a simulated queue. It believes that it leads, or it stands by with
// the memory of its last term.
type leader struct {
	w      *simulation
	id     int
	ctx    context.Context //nolint:containedctx // It is the life of the process.
	cancel context.CancelFunc
	dead   atomic.Bool
	// term is done when the process no longer believes that it leads; resign ends it.
	term   context.Context //nolint:containedctx // as above
	resign context.CancelFunc

	store    *block.Store
	gc       *gc.Collector
	comparer *audit.Comparer
	pods     *controller.Attachments
	// pools are the driver's pools and reservations.
	pools *native.Pools
	// reconcilers by the kind of the objects that they reconcile.
	reconcilers map[string]reconcile.Reconciler
	// events map events of one kind to objects of another kind's reconciler.
	events []mapped
	feeds  map[string]toolscache.ResourceEventHandler

	// cache has the objects that the informers have shown; pos is how far they have read
	// the log of a kind.
	cache objectSet
	pos   map[string]int

	// reserved are the reservations that the informers have shown.
	reserved map[string]*ipam.Reservation

	// queue, running and failures are shared by all reconcilers. The key is the
	// reconciled object, which need not exist if it is a pod.
	queue       map[key]time.Time
	running     map[key]look
	failures    map[key]int
	passing     bool
	nextPass    time.Time
	comparing   bool
	nextCompare time.Time // zero if this term has compared
	// wrong is the error of its wall clock, began the true time of its start. stamps are
	// the times that its clock has shown, in milliseconds, with the true time.
	wrong  time.Duration
	began  time.Time
	stamps map[int64]time.Time
	// freedSeenAt is when its informers first showed it that addresses were free.
	freedSeenAt map[netip.Addr]freedSeen
	// read are the steps at which blocks were last read live since the last pass began.
	read map[string]int
}

// mapped are the events of one kind that enqueue objects of another.
type mapped struct {
	from, to string
	handler.EventHandler
}

// passEvery is how often a leader collects garbage.
const passEvery = time.Minute

// watched are the kinds for which a leader has informers.
var watched = []string{kindBlock, kindClaim, kindNetwork, kindNode, kindPod, kindPool, kindRecord, kindReserved}

func (w *simulation) newLeader() error {
	w.leaderCount++
	l := &leader{
		w: w, id: w.leaderCount,
		feeds: map[string]toolscache.ResourceEventHandler{},
		cache: objectSet{}, pos: map[string]int{}, pools: native.NewPools(), reserved: map[string]*ipam.Reservation{},
		queue: map[key]time.Time{}, running: map[key]look{}, failures: map[key]int{}, read: map[string]int{},
		nextPass: w.now, began: w.now, stamps: map[int64]time.Time{}, freedSeenAt: map[netip.Addr]freedSeen{},
	}
	if w.cfg.Break != RunByWallAhead && w.cfg.Break != RunByWallBehind {
		l.wrong = w.randomClockError()
	}
	ctx, cancel := context.WithCancel(log.IntoContext(context.Background(), logr.Discard()))
	l.ctx, l.cancel = ctx, cancel
	cached, live := conn{l: l}, conn{l: l, live: true}
	l.store = block.New(block.Kube{Writer: cached, Live: live}, block.Config{Now: l.clock, Run: l.run})
	if _, err := native.Feed(ctx, informers{l: l}, l.store, l.pools); err != nil {
		return err
	}
	synced := func() bool { return true }
	l.comparer = audit.NewComparer(audit.CompareConfig{Client: cached, Live: live, Store: l.store, Routed: l.pools.Routed, Withhold: l.pools.Withhold, Synced: synced})
	claims := &ipclaim.Keeper{Client: cached, Live: live, Pools: l.pools, Store: l.store, Synced: synced}
	reservations := &native.Reservations{Client: cached, Pools: l.pools, Store: l.store, Synced: synced}
	parts := l.driver(claims).Parts()
	parts.Run.Ready = l.compared
	drivers := driver.Table{native.Name: parts}
	metrics, err := controller.NewMetrics(prometheus.NewRegistry())
	if err != nil {
		return err
	}
	pods := controller.New(controller.Config{
		Client: cached, Live: live, Drivers: drivers, DefaultDriver: native.Name,
		Rules: pod.Rules{Sources: []pod.Source{w.pools.further}}, Nodes: labels.Everything(), NodeGrace: 30 * time.Second, Events: silent{}, Metrics: metrics,
	})
	l.pods = pods
	nodes := &upkeep.Nodes{Client: cached, Store: l.store, Served: labels.Everything()}
	l.reconcilers = map[string]reconcile.Reconciler{kindPod: pods, kindClaim: claims, kindReserved: reservations, kindNode: nodes}
	l.events = []mapped{
		{kindRecord, kindPod, pods.AttachmentEvents()},
		{kindBlock, kindClaim, claims.BlockEvents()},
		{kindBlock, kindReserved, reservations.BlockEvents()},
		{kindBlock, kindNode, nodes.BlockEvents()},
	}
	l.gc = gc.New(gc.Config{
		Client: cached, Live: live, Drivers: drivers, Interval: passEvery,
		Namespace: namespace, Synced: synced,
	})
	// A new process lists, and the list may come from a cache of the API server that is
	// behind.
	for _, kind := range watched {
		behind := w.rng.IntN(8)
		if (kind == kindRecord || kind == kindBlock) && len(w.lostByHand) > 0 {
			behind = 0 // see the package's comment
		}
		l.list(kind, max(0, len(w.api.log[kind])-behind))
	}
	w.leaders = append(w.leaders, l)
	l.begin()
	go func() { _ = l.store.Run(ctx) }() // it always returns nil the first time
	return nil
}

// leads reports whether the process believes that it leads.
func (l *leader) leads() bool { return l.term.Err() == nil }

// begin begins a term, like internal/leader and the program's main.
func (l *leader) begin() {
	l.term, l.resign = context.WithCancel(context.WithValue(l.ctx, termKey{}, true))
	l.pods.BeginTerm()
	for _, kind := range []string{kindRecord, kindBlock} {
		for len(l.w.lostByHand) > 0 && l.behind(kind) > 0 {
			l.deliver(kind) // see the package's comment
		}
	}
	l.nextCompare = time.Time{}
	if l.w.cfg.Break != StartUncompared {
		l.nextCompare = l.w.now
	}
	l.nextPass = l.w.now
}

// stepDown ends a term. Its calls in progress are given up, except those of the store,
// and may still have their effect. The process keeps its memory.
func (l *leader) stepDown() {
	l.w.note("leader %d steps down", l.id)
	l.w.stats.StepsDown++
	l.resign()
	l.comparer.End()
	l.w.giveUpCalls(l.term.Err(), func(c *call) bool { return c.by == l && c.ofTerm })
	l.w.untilIdle()
}

// compared reports whether addresses may be handed out.
func (l *leader) compared() bool {
	return l.w.cfg.Break == StartUncompared || l.comparer.Compared()
}

// driver returns the native driver, on a changed store if a part is broken on purpose.
func (l *leader) driver(claims *ipclaim.Keeper) *native.Driver {
	cfg := native.Config{Pools: l.w.pools.fallback, Claims: claims, Machines: native.Machines{Cache: conn{l: l}, Live: conn{l: l, live: true}}, Namespace: namespace}
	var s allocator = l.store
	switch l.w.cfg.Break {
	case FreeAnyHolder:
		s = freesAnyHolder{l.store}
	case UndoParts:
		s = undoesParts{l.store}
	case ConfirmUnread:
		s = confirmsUnread{l.store}
	case TakeFromHolder:
		s = takesFromHolder{l.store}
	case JoinAnyClaim:
		s = joinsAnyClaim{l.store}
	case TrustMirrors:
		s = trustsMirrors{l.store, l}
	default:
	}
	return native.New(cfg, l.pools, ordered{l.store, s, l})
}

// freesAnyHolder frees an address whatever its holder is.
type freesAnyHolder struct{ *block.Store }

// Free frees in the name of the holder.
func (c freesAnyHolder) Free(ctx context.Context, h ipam.Holder, domain string, addrs []netip.Addr) error {
	for l := range c.All() {
		if slices.Contains(addrs, l.Addr) {
			h = l.Holder
		}
	}
	return c.Store.Free(ctx, h, domain, addrs)
}

// undoesParts releases a pod's addresses if a take fails.
type undoesParts struct{ *block.Store }

// Take releases the other parts of a pod's request if a part cannot be taken.
func (h undoesParts) Take(ctx context.Context, p *ipam.Pool, r block.Request) ([]block.Lease, error) {
	leases, err := h.Store.Take(ctx, p, r)
	if errors.Is(err, fault.ErrExhausted) {
		for _, i := range []string{"eth0", "net1"} {
			holder := r.Holder
			holder.Interface = i
			err = errors.Join(err, h.Free(ctx, holder, p.Domain(), nil))
		}
	}
	return leases, err
}

// confirmsUnread confirms every address.
type confirmsUnread struct{ *block.Store }

// Confirm reads nothing.
func (confirmsUnread) Confirm(_ context.Context, _ ipam.Holder, _ string, addrs []netip.Addr) ([]netip.Addr, error) {
	return addrs, nil
}

// takesFromHolder takes the addresses of a claim from their holder.
type takesFromHolder struct{ *block.Store }

// Take frees the addresses that another pod has of the claim, and tries again.
func (i takesFromHolder) Take(ctx context.Context, p *ipam.Pool, r block.Request) ([]block.Lease, error) {
	leases, err := i.Store.Take(ctx, p, r)
	if r.Claim == "" || !errors.Is(err, fault.ErrConflict) {
		return leases, err
	}
	for _, l := range i.Claimed(r.Claim) {
		err = errors.Join(err, i.Free(ctx, l.Holder, l.Domain, []netip.Addr{l.Addr}))
	}
	return i.Store.Take(ctx, p, r)
}

// joinsAnyClaim lets every pod share the addresses of its claim.
type joinsAnyClaim struct{ *block.Store }

// Take takes beside every holder of the claim.
func (j joinsAnyClaim) Take(ctx context.Context, p *ipam.Pool, r block.Request) ([]block.Lease, error) {
	for _, l := range j.Claimed(r.Claim) {
		if l.Holder != (ipam.Holder{}) {
			r.Beside = append(slices.Clip(r.Beside), l.Holder)
		}
	}
	return j.Store.Take(ctx, p, r)
}

// trustsMirrors takes a pod for the pod whose UID its annotation names.
type trustsMirrors struct {
	*block.Store
	l *leader
}

// Take takes for the named pod.
func (b trustsMirrors) Take(ctx context.Context, p *ipam.Pool, r block.Request) ([]block.Lease, error) {
	return b.Store.Take(ctx, p, block.Request{Holder: b.mirrored(r.Holder), Addresses: r.Addresses, Claim: r.Claim, Now: r.Now})
}

// Free frees for the named pod.
func (b trustsMirrors) Free(ctx context.Context, h ipam.Holder, domain string, addrs []netip.Addr) error {
	return b.Store.Free(ctx, b.mirrored(h), domain, addrs)
}

func (b trustsMirrors) mirrored(h ipam.Holder) ipam.Holder {
	named := b.l.w.mirrors[types.UID(h.PodUID)]
	for _, o := range b.l.cache.list(kindPod, nil) {
		if o.GetUID() == named {
			h.PodUID, h.Pod = string(named), o.GetName()
		}
	}
	return h
}

// silent posts no events.
type silent struct{ events.EventRecorder }

// Eventf does nothing.
//
//nolint:revive // The signature is client-go's.
func (silent) Eventf(_, _ runtime.Object, _, _, _, _ string, _ ...any) {}

// queue receives the requests of event handlers.
type queue struct {
	workqueue.TypedRateLimitingInterface[reconcile.Request]
	l    *leader
	kind string
}

// Add enqueues at once.
func (q queue) Add(r reconcile.Request) { q.l.enqueue(key{q.kind, r.NamespacedName}, 0) }

// AddAfter enqueues for later.
func (q queue) AddAfter(r reconcile.Request, d time.Duration) {
	q.l.enqueue(key{q.kind, r.NamespacedName}, d)
}

func (l *leader) enqueue(k key, after time.Duration) {
	due := l.w.now.Add(after)
	if have, ok := l.queue[k]; !ok || due.Before(have) {
		l.queue[k] = due
	}
}

// ready returns the objects that can be reconciled now. If an allocation has two parts,
// only one allocation may be in progress at a time: otherwise the second parts of several
// allocations would follow on one answer of the API, in an order that the seed does not
// decide.
func (l *leader) ready() []key {
	var out []key
	if len(l.running) > 0 && l.w.pools.parts() {
		return nil
	}
	for k, due := range l.queue {
		if l.w.cfg.Break == OneStopsAll && len(l.failures) > 0 && l.failures[k] == 0 {
			continue
		}
		if l.w.cfg.Break == BlocksStay && k.kind == kindNode && l.w.api.objects.get(k) != nil {
			continue
		}
		if _, running := l.running[k]; !running && !due.After(l.w.now) {
			out = append(out, k)
		}
	}
	slices.SortFunc(out, func(a, b key) int {
		return cmp.Or(strings.Compare(a.kind, b.kind), strings.Compare(a.Name, b.Name))
	})
	return out
}

// reconcile runs the real reconciler until it is done or waits for the API.
func (l *leader) reconcile(k key) {
	delete(l.queue, k)
	l.running[k] = l.look(k)
	l.w.note("leader %d: reconcile %s", l.id, k)
	go func() {
		term := l.term
		result, err := l.reconcilers[k.kind].Reconcile(context.WithValue(term, taskKey{}, k), ctrl.Request{NamespacedName: k.NamespacedName})
		l.w.report(func() { l.reconciled(k, result, err, term.Err() != nil) }, fmt.Sprintf("%d %s", l.id, k))
	}()
}

func (l *leader) reconciled(k key, result ctrl.Result, err error, interrupted bool) {
	l.w.checkRefusal(l, k, err)
	delete(l.running, k)
	switch {
	case err != nil && interrupted:
		l.enqueue(k, 0)
	case err != nil:
		l.failures[k]++
		l.w.stats.Errors++
		l.w.note("leader %d: reconcile %s failed: %v", l.id, k, err)
		l.enqueue(k, min(50*time.Millisecond<<min(l.failures[k], 16), 30*time.Second))
	case result.RequeueAfter > 0:
		l.enqueue(k, result.RequeueAfter)
	default:
		delete(l.failures, k)
	}
}

// readSoFar returns the blocks that a create of a record may be based on, with the step
// at which each was read.
func (l *leader) readSoFar(c *call) map[string]int {
	if !l.passing || c.verb != "create" || c.key.kind != kindRecord {
		return nil
	}
	return maps.Clone(l.read)
}

// mustCompare reports whether the records have to be compared with the blocks now.
func (l *leader) mustCompare() bool {
	return !l.comparing && !l.nextCompare.IsZero() && !l.nextCompare.After(l.w.now)
}

// compare runs the real comparison once.
func (l *leader) compare() {
	l.comparing, l.nextCompare = true, time.Time{}
	l.w.note("leader %d: compare", l.id)
	go func() {
		term := l.term
		refused, err := l.comparer.Compare(term)
		l.w.report(func() {
			l.comparing = false
			l.w.note("leader %d: compared, %d refused, %v", l.id, refused, err)
			if refused > 0 { // as in Comparer.Run
				l.nextCompare = l.w.now.Add(audit.RefusedRetry)
			}
			switch {
			case err != nil || term.Err() != nil:
				l.nextCompare = l.w.now.Add(2 * quantum)
			default:
				for _, o := range l.cache.list(kindPod, nil) {
					l.enqueue(keyOf(o), 0) // some may have waited for this
				}
			}
		}, fmt.Sprintf("%d compare", l.id))
	}()
}

// pass runs the real garbage collector once.
func (l *leader) pass() {
	l.passing, l.nextPass = true, l.w.now.Add(passEvery)
	clear(l.read)
	l.w.note("leader %d: collect garbage", l.id)
	go func() {
		n, err := l.gc.Pass(l.term)
		l.w.report(func() {
			l.passing = false
			l.w.stats.Collected += n
			l.w.note("leader %d: collected %d, %v", l.id, n, err)
		}, fmt.Sprintf("%d gc", l.id))
	}()
}
