package sim

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/controller/proof"
	"fairlead.dev/fairlead/internal/pod"
)

// machine is a node with its kubelet and its daemon, as far as addresses depend on them.
// Its plugged sandboxes are the truth about addresses in use.
type machine struct {
	w    *simulation
	name string
	boot int
	// wrong is the error of its wall clock; heartbeatAt is the true time of its kubelet's
	// last report.
	wrong       time.Duration
	heartbeatAt time.Time
	// scrapped machines never come back.
	scrapped bool
	// up is power, reachable is the network to the API.
	up, reachable bool
	// relist is set if the daemons have no state and have to list from the API.
	relist bool
	// records and pods of this node, as its watches showed them; pos is how far these
	// have read each log.
	records map[types.UID]*v1alpha1.PodAttachment
	pods    map[types.UID]*corev1.Pod
	pos     map[string]int
	// plugged are its sandboxes, by the kubelet's identity of their pods.
	plugged map[known]*sandbox
}

// known is the identity by which a kubelet knows a pod and CNI asks for it: for a static
// pod the UID in its manifest, which outlives its mirrors.
type known struct {
	name string
	uid  types.UID
}

func identityOf(p *corev1.Pod) known { return known{p.Name, pod.CNIUID(p)} }

// static reports whether a pod comes from a manifest on the node.
func (k known) static() bool { return strings.HasPrefix(string(k.uid), staticUID) }

// of returns the sandbox with the addresses of a pod, by the pod's own UID, or nil.
func (m *machine) of(uid types.UID) *sandbox {
	for _, s := range m.plugged {
		if s.holder == uid {
			return s
		}
	}
	return nil
}

func (m *machine) sandboxes() []known {
	return slices.SortedFunc(maps.Keys(m.plugged), func(a, b known) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.uid, b.uid))
	})
}

// sandbox is a plugged sandbox: its addresses are in use.
type sandbox struct {
	pod string
	// holder is the own UID of the pod in the record by which it was plugged.
	holder    types.UID
	addresses []netip.Addr
	// forgotten is true if a restored backup does not have the sandbox.
	forgotten bool
	since     time.Time
}

func (w *simulation) newMachine(name string) {
	m := &machine{w: w, name: name, boot: 1, up: true, reachable: true, relist: true, plugged: map[known]*sandbox{}, wrong: w.randomClockError()}
	w.machines = append(w.machines, m)
	m.register()
}

func (m *machine) bootID() string { return fmt.Sprintf("%s-boot-%d", m.name, m.boot) }

func (m *machine) key() key { return key{kindNode, types.NamespacedName{Name: m.name}} }

// register creates the Node object, if there is none.
func (m *machine) register() {
	n := &corev1.Node{}
	n.Name = m.name
	n.Status.NodeInfo.BootID = m.bootID()
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
	_, _ = m.w.api.create(n) // it may exist
}

// tick runs some of the machine's tasks.
func (m *machine) tick() {
	if !m.up {
		return
	}
	if m.reachable {
		m.register()
		if m.relist || m.w.calm || m.w.rng.IntN(3) > 0 {
			m.heartbeat()
		}
		m.watch()
	}
	// A daemon that never had an answer of the API plugs nothing.
	if m.relist {
		return
	}
	for _, f := range []func(){m.add, m.del, m.report, m.reportEnd} {
		if m.w.rng.IntN(3) > 0 {
			f()
		}
	}
}

// watch reads some of the new events.
func (m *machine) watch() {
	if m.relist {
		m.relist = false
		m.records, m.pods = map[types.UID]*v1alpha1.PodAttachment{}, map[types.UID]*corev1.Pod{}
		m.pos = map[string]int{kindRecord: len(m.w.api.log[kindRecord]), kindPod: len(m.w.api.log[kindPod])}
		for _, kind := range []string{kindRecord, kindPod} {
			for _, o := range m.w.api.list(kind) {
				m.observe(event{obj: o})
			}
		}
		return
	}
	for _, kind := range []string{kindRecord, kindPod} {
		todo := m.w.api.log[kind][m.pos[kind]:]
		if !m.w.calm && len(todo) > 0 {
			todo = todo[:m.w.rng.IntN(len(todo)+1)]
		}
		for _, e := range todo {
			m.observe(e)
		}
		m.pos[kind] += len(todo)
	}
}

func (m *machine) observe(e event) {
	switch o := e.obj.(type) {
	case *v1alpha1.PodAttachment:
		if o.Spec.NodeName != m.name {
			return
		}
		if m.records[o.UID] = o; e.deleted {
			delete(m.records, o.UID)
		}
	case *corev1.Pod:
		if o.Spec.NodeName != m.name {
			return
		}
		if m.pods[o.UID] = o; e.deleted {
			delete(m.pods, o.UID)
		}
	}
}

// add is CNI ADD of the pods that have their record.
func (m *machine) add() {
	for _, uid := range slices.Sorted(maps.Keys(m.pods)) {
		p := m.pods[uid]
		k := identityOf(p)
		if m.plugged[k] != nil || !pod.Wants(p) {
			continue
		}
		if r := m.lookup(k); r != nil {
			m.plugged[k] = &sandbox{pod: p.Name, holder: r.HolderUID(), addresses: addressesOf(r), since: m.clock()}
			m.w.dirty = true
			m.w.stats.Plugged++
			m.w.note("%s: plug %s %v", m.name, p.Name, m.plugged[k].addresses)
			if r.Status.Sandbox != nil {
				m.report()
			}
		}
	}
}

// lookup returns the newest record by which a pod can be plugged, or nil.
func (m *machine) lookup(k known) *v1alpha1.PodAttachment {
	var found *v1alpha1.PodAttachment
	for _, uid := range slices.Sorted(maps.Keys(m.records)) {
		r := m.records[uid]
		if r.Spec.PodName == k.name && r.Spec.PodUID == k.uid && r.DeletionTimestamp == nil && m.mayPlug(r) &&
			(found == nil || found.CreationTimestamp.Before(&r.CreationTimestamp)) {
			found = r
		}
	}
	return found
}

// mayPlug reports whether a record may be plugged. A pod that outlived a boot stays
// unplugged until the node can record that it plugs the pod again, as in the real daemon
// (internal/node, markRebooted).
func (m *machine) mayPlug(r *v1alpha1.PodAttachment) bool {
	s := r.Status.Sandbox
	return s == nil || s.BootID == m.bootID() || m.reachable
}

func addressesOf(r *v1alpha1.PodAttachment) []netip.Addr {
	var out []netip.Addr
	for _, i := range r.Spec.Interfaces {
		for _, cidr := range i.Addresses {
			out = append(out, netip.MustParsePrefix(cidr).Addr())
		}
	}
	return out
}

// del is CNI DEL of pods that are gone, terminating or finished. The sandbox of a static
// pod usually outlives its mirror.
func (m *machine) del() {
	wanted := map[known]bool{}
	for _, p := range m.pods {
		wanted[identityOf(p)] = wanted[identityOf(p)] || pod.Wants(p)
	}
	for _, k := range m.sandboxes() {
		if !wanted[k] && (m.w.calm || m.w.rng.IntN(3) > 0 && (!k.static() || m.w.rng.IntN(20) == 0)) {
			m.w.note("%s: unplug %s %v", m.name, m.plugged[k].pod, m.plugged[k].addresses)
			m.unplug(k)
		}
	}
}

func (m *machine) unplug(k known) {
	if s := m.plugged[k]; !s.forgotten {
		for _, a := range s.addresses {
			m.w.unplugged[a] = m.w.now
		}
	}
	delete(m.plugged, k)
	m.w.dirty = true
}

// report writes the status of the node's records: Attached for a plugged sandbox,
// Detached for a record that is being deleted and has no sandbox.
func (m *machine) report() {
	if !m.reachable {
		return
	}
	for _, uid := range slices.Sorted(maps.Keys(m.records)) {
		r := m.records[uid]
		sandbox, has := r.Status.Sandbox, m.of(r.HolderUID())
		plugged := has != nil
		word := v1alpha1.Sandbox{ID: "sandbox", BootID: m.bootID(), State: v1alpha1.SandboxAttached}
		switch {
		case plugged && sandbox != nil && sandbox.BootID == word.BootID:
			continue
		case plugged:
			at := metav1.NewMicroTime(has.since)
			word.AttachedAt = &at
		case r.DeletionTimestamp == nil || proof.Detached(r):
			continue
		default:
			word.State = v1alpha1.SandboxDetached
		}
		said := r.DeepCopy()
		said.Status.Sandbox = &word
		if _, err := m.w.api.update(said); err == nil {
			m.w.note("%s: reports %s for %s", m.name, word.State, r.Name)
		}
	}
}

// heartbeat is the kubelet's status of the Node, which is the first write of a kubelet.
func (m *machine) heartbeat() {
	o, err := m.w.api.get(m.key())
	if err != nil {
		return
	}
	n := o.(*corev1.Node)
	ready := n.Status.Conditions[0]
	if !m.relist && ready.Status == corev1.ConditionTrue && m.w.now.Sub(m.heartbeatAt) < heartbeatEvery {
		return
	}
	n = n.DeepCopy()
	n.Status.NodeInfo.BootID = m.bootID()
	n.Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(m.clock())
	m.heartbeatAt = m.w.now
	m.w.setReady(n, corev1.ConditionTrue)
}

const (
	// heartbeatEvery is how often a kubelet reports.
	heartbeatEvery = 10 * time.Second
	// silence is after how long without a report Kubernetes marks a node as unreachable.
	silence = 40 * time.Second
)

// markSilentNodes models Kubernetes' node lifecycle controller.
func (w *simulation) markSilentNodes() {
	for _, o := range w.api.list(kindNode) {
		n := o.(*corev1.Node)
		ready := n.Status.Conditions[0]
		if ready.Status == corev1.ConditionTrue && w.now.Sub(w.machine(n.Name).heartbeatAt) > silence {
			w.setReady(n.DeepCopy(), corev1.ConditionUnknown)
		}
	}
}

func (w *simulation) setReady(n *corev1.Node, s corev1.ConditionStatus) {
	if n.Status.Conditions[0].Status != s {
		n.Status.Conditions[0].Status = s
		n.Status.Conditions[0].LastTransitionTime = metav1.NewTime(w.now)
	}
	w.must(w.api.update(n))
}

// reportEnd removes a terminating pod whose sandbox is gone, as the kubelet does, and
// lets some pods finish.
func (m *machine) reportEnd() {
	if !m.reachable {
		return
	}
	for _, uid := range slices.Sorted(maps.Keys(m.pods)) {
		p := m.pods[uid]
		o, err := m.w.api.get(keyOf(p))
		if err != nil || o.GetUID() != uid {
			continue
		}
		now := o.(*corev1.Pod)
		switch {
		case p.DeletionTimestamp != nil && (m.plugged[identityOf(p)] == nil || identityOf(p).static()):
			m.w.note("%s: pod %s is gone", m.name, p.Name)
			m.w.must(nil, m.w.api.remove(keyOf(p), nil))
		case !m.w.calm && m.plugged[identityOf(p)] != nil && pod.Wants(now) && m.w.rng.IntN(200) == 0:
			now = now.DeepCopy()
			now.Status.Phase = corev1.PodSucceeded
			m.w.note("%s: pod %s has finished", m.name, p.Name)
			m.w.must(m.w.api.update(now))
		}
	}
}

// off cuts the power: nothing is plugged any more.
func (m *machine) off() {
	m.up = false
	for _, k := range m.sandboxes() {
		m.unplug(k)
	}
	m.forget()
}

// on boots the machine. An operator removes the taint of its Node first.
func (m *machine) on() {
	if m.scrapped {
		return
	}
	m.untaint()
	m.up = true
	m.boot++
	m.forget()
}

// untaint removes the taints of the Node.
func (m *machine) untaint() {
	if o, err := m.w.api.get(m.key()); err == nil && len(o.(*corev1.Node).Spec.Taints) > 0 {
		n := o.(*corev1.Node).DeepCopy()
		n.Spec.Taints = nil
		m.w.must(m.w.api.update(n))
	}
}

// forget restarts the daemons, which then know only the plugged sandboxes.
func (m *machine) forget() { m.relist, m.records, m.pods = true, nil, nil }
