package sim

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/internal/pod"
)

const (
	namespace = "default"
	// quantum is the step of the clock. It is longer than any pause of the store, so that
	// every pause, even a random one, is over when the clock stands again: the order of
	// events depends on the seed alone.
	quantum = 2500 * time.Millisecond
)

// Config of a run.
type Config struct {
	// Seed of every decision.
	Seed uint64
	// Lives is how many pods are created.
	Lives int
	// Break is the part that is broken on purpose; empty for none.
	Break Break
	// Month simulates a month in which nodes come and go.
	Month bool
}

// Stats counts the events of a run, so that a test can check that many happened.
type Stats struct {
	Steps, Lives, Plugged, Errors, Collected                                         int
	Crashes, StepsDown, Terms, Reboots, Partitions, NodesGone, Restores, APIRestarts int
	Conflicts, Lost, Late, Refused                                                   int
	// Jumps are jumps of clocks.
	Jumps int
	// Deleted are records that were deleted by hand, Edited blocks that were edited, put
	// back or deleted by hand, Healed addresses that went back to their pods after it.
	Deleted, Edited, Healed int
	// Inherited are addresses that went from pod to pod by a claim, Ended those that a
	// claim kept no longer.
	Inherited, Ended int
	// Shared are the changes of addresses that two launchers of a machine have.
	Shared int
}

// Failure is a broken invariant.
type Failure struct {
	Seed      uint64
	Step      int
	Invariant string
	Detail    string
	// Last are the last events before it, oldest first.
	Last []string
}

// Error returns the failure with the seed that reproduces it.
func (f *Failure) Error() string {
	return fmt.Sprintf("seed %d, step %d: %s is broken: %s\nthe last events:\n  %s",
		f.Seed, f.Step, f.Invariant, f.Detail, strings.Join(f.Last, "\n  "))
}

// simulation is the state of one run. The scheduler, which is the goroutine of the test,
// does one thing at a time; all other goroutines are blocked meanwhile.
type simulation struct {
	cfg Config
	rng *rand.Rand
	now time.Time
	// apiClockError is the error of the API server's clock.
	apiClockError time.Duration
	looks         atomic.Int64
	calm          bool
	stats         Stats

	api         *apiServer
	pools       pools
	leaders     []*leader
	leaderCount int
	// instances counts the instances and migrations of machines.
	instances int
	machines  []*machine
	snapshot  objectSet
	// snapshotLosses are the losses by hand that the snapshot has.
	snapshotLosses map[netip.Addr]types.UID
	// names is how many names pods may have: a few more than the pool has addresses.
	names int
	// poison is the name of a pod whose record the API refuses, until it is cleared.
	poison string

	// rolesKnownAt is the step before which the API server knows no roles.
	rolesKnownAt int
	// late are calls that have their effect after their caller got a timeout.
	late []*call
	// mu guards the fields through which goroutines pass work to the scheduler.
	mu      sync.Mutex
	arrived []*call
	reports []report
	turns   []turn
	// parked are calls that wait for an answer.
	parked []*call
	// doing is the call that is having its effect now.
	doing *call

	truth
	trace  [80]line
	failed *Failure
}

// line is a line of the trace; it is formatted only when it is printed.
type line struct {
	step   int
	format string
	args   []any
}

// report is the result of a goroutine that is done, for the scheduler.
type report struct {
	order string
	f     func()
}

func newSimulation(cfg Config) (*simulation, error) {
	w := &simulation{cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 0x5eed)), now: time.Now()}
	w.apiClockError = w.randomClockError()
	w.api = newAPI(func() time.Time { return w.now.Add(w.apiClockError) })
	w.api.blind = cfg.Break == BlindUpdates
	s := shapes[cfg.Seed%uint64(len(shapes))]
	if cfg.Month {
		s = monthly
	}
	if err := w.makePools(s); err != nil {
		return nil, err
	}
	w.truth = newTruth()
	w.api.changed = w.changed
	if cfg.Seed%3 == 0 && !cfg.Month {
		w.poison = "web-1"
	}
	w.names = int(min(w.pools.usable()+3, 34))
	for i := range 3 {
		w.newMachine(fmt.Sprintf("node-%d", i))
	}
	w.snapshot = w.api.snapshot()
	return w, w.newLeader()
}

// note adds a line to the trace.
func (w *simulation) note(format string, args ...any) {
	copy(w.trace[:], w.trace[1:])
	w.trace[len(w.trace)-1] = line{w.stats.Steps, format, args}
}

// fail records the first broken invariant.
func (w *simulation) fail(invariant, format string, args ...any) {
	if w.failed != nil {
		return
	}
	w.failed = &Failure{Seed: w.cfg.Seed, Step: w.stats.Steps, Invariant: invariant, Detail: fmt.Sprintf(format, args...)}
	for _, l := range w.trace {
		if l.format != "" {
			w.failed.Last = append(w.failed.Last, fmt.Sprintf("%d ", l.step)+fmt.Sprintf(l.format, l.args...))
		}
	}
}

// must fails the run if a change by the model itself fails.
func (w *simulation) must(_ client.Object, err error) {
	if err != nil {
		w.fail("the model", "%v", err)
	}
}

// park is called by goroutines of leaders.
func (w *simulation) park(c *call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.arrived = append(w.arrived, c)
}

// report is called by goroutines of leaders.
func (w *simulation) report(f func(), order string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reports = append(w.reports, report{order, f})
}

// untilIdle lets every goroutine run until it waits for the scheduler, and handles their
// reports in an order that does not depend on theirs.
func (w *simulation) untilIdle() {
	for {
		synctest.Wait()
		if w.nextTurn() {
			continue
		}
		w.mu.Lock()
		for _, c := range w.arrived {
			c.sent, c.read = w.stats.Steps, c.by.readSoFar(c)
			if c.write() && c.key.kind == kindBlock {
				c.looks, c.reserved = maps.Clone(c.by.running), maps.Clone(c.by.reserved)
			}
		}
		reports := w.reports
		w.parked = append(w.parked, w.arrived...)
		w.reports, w.arrived = nil, nil
		w.mu.Unlock()
		slices.SortFunc(reports, func(a, b report) int { return strings.Compare(a.order, b.order) })
		for _, r := range reports {
			r.f()
		}
		if len(reports) == 0 {
			break
		}
	}
	if !slices.IsSortedFunc(w.parked, compareCalls) {
		slices.SortStableFunc(w.parked, compareCalls)
	}
}

// tick lets time pass.
func (w *simulation) tick() {
	<-time.After(quantum)
	w.untilIdle()
	w.mu.Lock()
	w.now = w.now.Add(quantum)
	w.mu.Unlock()
	w.stats.Steps++
}

// answer gives a parked call its outcome.
func (w *simulation) answer(i int, f outcome) {
	c := w.parked[i]
	w.parked = slices.Delete(w.parked, i, i+1)
	if w.refuses(c) {
		f = forbidden
	}
	var err error
	switch f {
	case forbidden:
		err = apierrors.NewForbidden(resource(c.key), c.key.Name, errors.New("no role allows it"))
	case lostBefore:
		w.stats.Lost++
		err = errTimeout
	case lostAfter:
		w.stats.Lost++
		_ = w.do(c)
		err = errTimeout
	case late:
		w.stats.Late++
		w.late = append(w.late, c)
		err = errTimeout
	case throttled:
		w.stats.Refused++
		err = apierrors.NewTooManyRequests("try again", 1)
	case failed:
		err = apierrors.NewInternalError(fmt.Errorf("leader of etcd changed"))
	default:
		if err = w.do(c); apierrors.IsConflict(err) {
			w.stats.Conflicts++
		}
	}
	w.note("%s: %s, %v", c, f, err)
	c.reply <- err
	w.untilIdle()
}

// do applies the effect of a call.
func (w *simulation) do(c *call) error {
	w.doing = c
	defer func() { w.doing = nil }()
	return c.effect()
}

// refuses reports whether a call writes the record of the poisoned pod.
func (w *simulation) refuses(c *call) bool {
	return w.poison != "" && c.key.kind == kindRecord && c.write() && strings.HasPrefix(c.key.Name, w.poison+"-")
}

// outcome returns a random outcome of a call; served if there are no faults.
func (w *simulation) outcome(c *call) outcome {
	if w.calm {
		return served
	}
	if w.stats.Steps < w.rolesKnownAt {
		return forbidden
	}
	switch n := w.rng.IntN(100); {
	case n < 4:
		return lostBefore
	case n < 8 && c.write():
		return lostAfter
	case n < 12 && c.write():
		return late
	case n < 15:
		return throttled
	case n < 18:
		return failed
	}
	return served
}

// crash ends a leader between two steps. Its calls in progress may still have their
// effect.
func (w *simulation) crash(l *leader) {
	w.note("leader %d crashes", l.id)
	l.dead.Store(true)
	l.cancel()
	w.giveUpCalls(l.ctx.Err(), func(c *call) bool { return c.by == l })
	w.leaders = slices.DeleteFunc(w.leaders, func(o *leader) bool { return o == l })
	w.untilIdle()
}

// giveUpCalls ends calls whose callers no longer wait. Each has its effect now, later, or
// never.
func (w *simulation) giveUpCalls(cause error, which func(*call) bool) {
	for i := 0; i < len(w.parked); {
		c := w.parked[i]
		if !which(c) {
			i++
			continue
		}
		w.parked = slices.Delete(w.parked, i, i+1)
		switch n := w.rng.IntN(3); {
		case w.refuses(c):
		case n == 0:
			_ = w.do(c)
		case n == 1:
			if c.write() {
				w.late = append(w.late, c)
			}
		}
		c.reply <- cause
	}
}

// shutdown ends every goroutine.
func (w *simulation) shutdown() {
	for len(w.leaders) > 0 {
		w.crash(w.leaders[0])
	}
}

// createPod creates a pod with an unused name on a random node.
func (w *simulation) createPod() {
	name := fmt.Sprintf("web-%d", w.rng.IntN(w.names))
	nodes := slices.DeleteFunc(w.api.list(kindNode), func(o client.Object) bool { return len(o.(*corev1.Node).Spec.Taints) > 0 })
	if len(nodes) == 0 {
		return
	}
	p := &corev1.Pod{}
	p.Namespace, p.Name = namespace, name
	p.Spec.NodeName = nodes[w.rng.IntN(len(nodes))].GetName()
	if w.cfg.Month && w.rng.IntN(4) == 0 {
		w.addUnknownNode(p)
	}
	p.Status.Phase = corev1.PodRunning
	if _, err := w.api.get(keyOf(p)); err == nil {
		return
	}
	asked := w.addRequests(p)
	w.addMirror(p)
	o, err := w.api.create(p)
	w.must(o, err)
	w.asked[o.GetUID()] = asked
	w.mirrors[o.GetUID()] = pod.CNIUID(p)
	w.stats.Lives++
	if m := w.machine(p.Spec.NodeName); m != nil {
		w.born[o.GetUID()] = m.boot
	} else {
		w.born[o.GetUID()] = 0 // its node does not exist
	}
	w.note("pod %s is created on %s", name, p.Spec.NodeName)
}

// deletePod deletes a random pod, with or without asking its node.
func (w *simulation) deletePod() {
	pods := w.api.list(kindPod)
	if len(pods) == 0 {
		return
	}
	p := pods[w.rng.IntN(len(pods))].(*corev1.Pod)
	w.kill(p, w.rng.IntN(5) == 0)
}

func (w *simulation) kill(p *corev1.Pod, force bool) {
	switch {
	case force:
		w.note("pod %s is deleted by force", p.Name)
		w.must(nil, w.api.remove(keyOf(p), nil))
	case p.DeletionTimestamp == nil:
		w.note("pod %s is being deleted", p.Name)
		w.api.markDeleted(p)
	}
}

// collect is Kubernetes' own garbage collection: it deletes pods whose node is gone, and
// records whose pod is gone.
func (w *simulation) collect() {
	for _, o := range w.api.list(kindPod) {
		if _, err := w.api.get(key{kindNode, types.NamespacedName{Name: o.(*corev1.Pod).Spec.NodeName}}); err != nil {
			w.kill(o.(*corev1.Pod), true)
		}
	}
	for _, o := range w.api.list(kindClaim) {
		for _, owner := range o.GetOwnerReferences() {
			if owner.Kind == pod.InstanceKind && !w.instanceLives(owner.UID) {
				w.note("claim %s is deleted: its machine has stopped", o.GetName())
				w.must(nil, w.api.remove(keyOf(o), nil))
			}
		}
	}
	for _, o := range w.api.list(kindNetwork) {
		if !w.owned(o) {
			w.must(nil, w.api.remove(keyOf(o), nil))
		}
	}
	for _, o := range w.api.list(kindRecord) {
		owners := o.GetOwnerReferences()
		if len(owners) == 0 || o.GetDeletionTimestamp() != nil {
			continue
		}
		p, err := w.api.get(key{kindPod, types.NamespacedName{Namespace: o.GetNamespace(), Name: owners[0].Name}})
		if err != nil || p.GetUID() != owners[0].UID {
			w.must(nil, w.api.remove(keyOf(o), nil))
		}
	}
}

// instanceLives reports whether an instance of a machine has a pod.
func (w *simulation) instanceLives(uid types.UID) bool {
	return slices.ContainsFunc(w.api.list(kindPod), func(o client.Object) bool { return w.asked[o.GetUID()].instance == string(uid) })
}

// restore puts etcd back to a backup. The operator first removes the taints that the
// backup brought back to running nodes, and then restarts all programs with caches
// (docs/operator/runbook.md).
func (w *simulation) restore() {
	w.note("etcd is restored to an older state")
	w.shutdown()
	w.late = nil
	w.api.restore(w.snapshot)
	for _, m := range w.machines {
		if m.up {
			m.untaint()
		}
	}
	w.reload()
	for _, m := range w.machines {
		m.forget()
		if _, err := w.api.get(m.key()); m.scrapped && err == nil {
			w.must(nil, w.api.remove(m.key(), nil)) // the backup brought it back
		}
	}
	w.stats.Restores++
}
