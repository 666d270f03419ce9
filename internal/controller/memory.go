package controller

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/controller/proof"
	"fairlead.dev/fairlead/internal/pod"
)

// memory has all that this process remembers between two reconciles, in a table by pod and
// a table by record. A lost entry costs a repeated write or a longer wait, never
// correctness. All durations are measured by this process's own clock, from when this
// process saw something: the times in objects come from the clocks of API servers, kubelets
// and other leaders, which may be wrong and jump.
type memory struct {
	// reading is true until all records have been read that existed at the start.
	reading atomic.Bool

	mu sync.RWMutex
	// pods that have no network yet, as far as the cache shows.
	pods map[types.NamespacedName]podEntry
	// records that are being released, by UID. Entries are kept only for records that the
	// cache has: the last event of any other record may be past, and nothing would remove
	// its entry.
	records map[types.UID]recordEntry

	// names are the names of the records in the cache, by pod. A cache index would take ten
	// times the memory: it has two sets for each pod, and nearly every pod has one record.
	// names may lag behind the cache, but never behind a record's own event.
	names map[types.NamespacedName][]string
	// outages are the nodes that this process sees unreachable, by name.
	outages map[string]proof.Outage
}

// podEntry has the notes about a pod without a network.
type podEntry struct {
	created creation
	// waits is nil if the pod does not wait.
	waits *waiter
	// nodeless is when the pod's Node was first missing from the cache; zero if it is not.
	nodeless time.Time
}

// creation is the create of the record for one UID of a pod. It is noted before the
// write, since the event of the write may arrive before the reply. It lasts until the
// cache shows the record or the pod is gone.
type creation struct {
	pod types.UID
	at  time.Time
}

// showDeadline is how long a record that was written may be missing from the cache. The
// cache never shows a record that is deleted again while the watch is broken.
const showDeadline = 30 * time.Second

// waiter is a pod that could not get its network yet.
type waiter struct {
	pod pod.Identity
	// interfaces that the pod asks for and may have obtained
	interfaces []string
	// since is when this process first saw the pod wait.
	since time.Time
}

// recordEntry has the notes about a record.
type recordEntry struct {
	mark mark
	loss proof.LostNode
}

// mark is how far this process got with the release of a record and since when the
// release waits. The cache may not show that progress yet. A stage is set before its write
// and reset if the write fails, since the event may come before the reply.
type mark struct {
	stage      stage
	waitsSince time.Time // when the release first waited for another program
	// deletionSeen is when this process first saw the record's deletion timestamp.
	deletionSeen time.Time
	pulse        proof.Pulse // of the node since then
}

// stage is how far this process has got with the release of a record. A release goes
// through the stages in their order.
type stage int

const (
	untouched        stage = iota
	deletionAsked          // the record's deletion is asked for
	givenBack              // its interfaces are given back
	finalizerDropped       // nothing keeps the record any more
)

func newMemory() *memory {
	return &memory{
		pods: map[types.NamespacedName]podEntry{}, records: map[types.UID]recordEntry{},
		names: map[types.NamespacedName][]string{}, outages: map[string]proof.Outage{},
	}
}

// beginTerm forgets the writes and the waiting times of a former term, and the losses that
// no record shows.
func (m *memory) beginTerm() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, e := range m.pods {
		e.created = creation{}
		m.putPod(key, e)
	}
	for uid, e := range m.records {
		e.mark = mark{}
		e.loss = e.loss.Shown()
		m.putRecord(uid, e)
	}
}

// changePod changes the entry of a pod. An empty entry is removed.
func (m *memory) changePod(key types.NamespacedName, change func(*podEntry)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.pods[key]
	change(&e)
	m.putPod(key, e)
}

// putPod sets the entry of a pod, or removes it if it is empty. The lock is held.
func (m *memory) putPod(key types.NamespacedName, e podEntry) {
	_, had := m.pods[key]
	switch {
	case e != podEntry{}:
		m.pods[key] = e
	case had && len(m.pods) == 1:
		m.pods = map[types.NamespacedName]podEntry{} // Go never shrinks a map
	default:
		delete(m.pods, key)
	}
}

// beginCreation notes the creation of a pod's record; the caller writes the record next.
func (m *memory) beginCreation(key types.NamespacedName, uid types.UID) {
	m.changePod(key, func(e *podEntry) { e.created = creation{uid, time.Now()} })
}

// endCreation forgets a creation: its write failed, or the cache shows its record.
func (m *memory) endCreation(key types.NamespacedName, uid types.UID) {
	m.changePod(key, func(e *podEntry) {
		if e.created.pod == uid {
			e.created = creation{}
		}
	})
}

// onlyCreationOf forgets a creation for any other UID of the pod; an empty UID stands for
// no pod.
func (m *memory) onlyCreationOf(key types.NamespacedName, uid types.UID) {
	m.changePod(key, func(e *podEntry) {
		if e.created.pod != uid {
			e.created = creation{}
		}
	})
}

// creationLeft returns how long the record of a pod may still be missing from the cache; 0
// or less if no creation is pending for that UID.
func (m *memory) creationLeft(key types.NamespacedName, uid types.UID) time.Duration {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if has := m.pods[key].created; has.pod == uid {
		return time.Until(has.at.Add(showDeadline))
	}
	return 0
}

// overdue forgets the creations that are older than showDeadline and returns their pods.
func (m *memory) overdue() (out []reconcile.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, e := range m.pods {
		if e.created != (creation{}) && time.Since(e.created.at) >= showDeadline {
			e.created = creation{}
			m.putPod(key, e)
			out = append(out, reconcile.Request{NamespacedName: key})
		}
	}
	return out
}

// wait notes that a pod waits, and for which interfaces. The wait of a pod that waits
// already goes on.
func (m *memory) wait(p *corev1.Pod, interfaces []string) {
	m.changePod(client.ObjectKeyFromObject(p), func(e *podEntry) {
		w := &waiter{pod.IdentityOf(p), interfaces, time.Now()}
		if e.waits != nil && e.waits.pod == w.pod {
			w.since = e.waits.since
		}
		e.waits = w
	})
}

// endWait notes that a pod does not wait any more, and reports whether it did.
func (m *memory) endWait(key types.NamespacedName) (waited bool) {
	m.changePod(key, func(e *podEntry) { waited, e.waits = e.waits != nil, nil })
	return waited
}

// waiterOf returns the waiting pod of a name; nil if there is none.
func (m *memory) waiterOf(key types.NamespacedName) *waiter {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.pods[key].waits
}

// waiting returns the pods that wait.
func (m *memory) waiting() []reconcile.Request {
	m.mu.RLock()
	defer m.mu.RUnlock()
	out := make([]reconcile.Request, 0, len(m.pods))
	for key, e := range m.pods {
		if e.waits != nil {
			out = append(out, reconcile.Request{NamespacedName: key})
		}
	}
	return out
}

// longestWait returns how long the pod has waited that has waited longest, 0 if none waits.
func (m *memory) longestWait(now time.Time) (out time.Duration) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, e := range m.pods {
		if e.waits != nil {
			out = max(out, now.Sub(e.waits.since))
		}
	}
	return out
}

// withoutNode returns for how long the Node of a pod has been missing from the cache.
func (m *memory) withoutNode(key types.NamespacedName) (d time.Duration) {
	now := time.Now()
	m.changePod(key, func(e *podEntry) {
		if e.nodeless.IsZero() {
			e.nodeless = now
		}
		d = now.Sub(e.nodeless)
	})
	return d
}

// hasNode forgets that the Node of a pod was missing.
func (m *memory) hasNode(key types.NamespacedName) {
	m.changePod(key, func(e *podEntry) { e.nodeless = time.Time{} })
}

// shown notes that the cache has a record: first its name, since a writer that finds no
// name waits for the end of the creation.
func (m *memory) shown(record *v1alpha1.PodAttachment) {
	key := podOf(record)
	m.mu.Lock()
	if !slices.Contains(m.names[key], record.Name) {
		m.names[key] = append(slices.Clip(m.names[key]), record.Name)
	}
	m.mu.Unlock()
	m.endCreation(key, record.OwnUID())
}

// gone forgets a record that the cache does not have any more.
func (m *memory) gone(record *v1alpha1.PodAttachment) {
	key := podOf(record)
	m.mu.Lock()
	m.names[key] = slices.DeleteFunc(slices.Clone(m.names[key]), func(name string) bool { return name == record.Name })
	if len(m.names[key]) == 0 {
		delete(m.names, key)
	}
	delete(m.records, record.UID)
	m.mu.Unlock()
	m.endCreation(key, record.OwnUID())
}

// namesOf returns the names of a pod's records; the slice is never changed afterwards.
func (m *memory) namesOf(pod types.NamespacedName) []string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.names[pod]
}

// putRecord sets the entry of a record; an empty entry is removed. The lock is held.
func (m *memory) putRecord(uid types.UID, e recordEntry) {
	if e != (recordEntry{}) {
		m.records[uid] = e
	} else {
		delete(m.records, uid)
	}
}

func (m *memory) forgetRecord(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.records, uid)
}

func (m *memory) markOf(uid types.UID) mark {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.records[uid].mark
}

// changeMark changes the mark of a record and returns it. A caller that adds something
// must check afterwards that the cache has the record (Releaser.remember).
func (m *memory) changeMark(uid types.UID, change func(*mark)) mark {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.records[uid]
	change(&e.mark)
	m.putRecord(uid, e)
	return e.mark
}

// longestRelease returns how long the release has waited that has waited longest, 0 if
// there is none.
func (m *memory) longestRelease(now time.Time) (out time.Duration) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, e := range m.records {
		if e.mark.stage != finalizerDropped && !e.mark.waitsSince.IsZero() {
			out = max(out, now.Sub(e.mark.waitsSince))
		}
	}
	return out
}

// changeLoss changes the loss of a record's Node.
func (m *memory) changeLoss(uid types.UID, change func(proof.LostNode) proof.LostNode) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.records[uid]
	e.loss = change(e.loss)
	m.putRecord(uid, e)
}

// lossOf returns the loss of a record's Node; zero if it is not known to be lost.
func (m *memory) lossOf(uid types.UID) proof.LostNode {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.records[uid].loss
}

// forgetLosses forgets all losses.
func (m *memory) forgetLosses() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid, e := range m.records {
		e.loss = proof.LostNode{}
		m.putRecord(uid, e)
	}
}

// unreachableSince returns when this process first saw the present outage of a node; zero
// if the node is reachable.
func (m *memory) unreachableSince(node *corev1.Node, now time.Time) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	o := m.outages[node.Name].Next(node, now)
	if o == (proof.Outage{}) {
		delete(m.outages, node.Name)
	} else {
		m.outages[node.Name] = o
	}
	return o.Seen
}

func (m *memory) forgetNode(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.outages, name)
}

func podOf(record *v1alpha1.PodAttachment) types.NamespacedName {
	return types.NamespacedName{Namespace: record.Namespace, Name: record.Spec.PodName}
}
