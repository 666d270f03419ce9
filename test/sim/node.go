package sim

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/controller"
	"fairlead.dev/fairlead/internal/pod"
)

// machine is a node with its kubelet and its daemon: a model of what matters
// to addresses. What is plugged is physical, and the truth.
type machine struct {
	w    *world
	name string
	boot int
	// up is power, reachable is the network to the API.
	up, reachable bool
	// relist is set when the daemons know nothing and have to ask the API.
	relist bool
	// seen are the records and pods of this node as its watches showed them.
	records map[types.UID]*v1alpha1.PodAttachment
	pods    map[types.UID]*corev1.Pod
	pos     map[string]int
	plugged map[types.UID]*sandbox
}

// sandbox is plugged: its addresses are in use.
type sandbox struct {
	pod       string
	addresses []netip.Addr
	// forgotten sandboxes are those that a restored backup knows nothing of.
	forgotten bool
	since     time.Time
}

func (w *world) newMachine(name string) *machine {
	m := &machine{w: w, name: name, boot: 1, up: true, reachable: true, relist: true, plugged: map[types.UID]*sandbox{}}
	w.machines = append(w.machines, m)
	m.register()
	return m
}

func (m *machine) bootID() string { return fmt.Sprintf("%s-boot-%d", m.name, m.boot) }

func (m *machine) key() key { return key{kindNode, types.NamespacedName{Name: m.name}} }

// register makes the Node object, if there is none.
func (m *machine) register() {
	n := &corev1.Node{}
	n.Name = m.name
	n.Status.NodeInfo.BootID = m.bootID()
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
	_, _ = m.w.api.create(n) // it may be there
}

// tick lets the machine do some of what it has to do, in some order.
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
	// A daemon that has never heard from the API plugs nothing.
	if m.relist {
		return
	}
	for _, f := range []func(){m.add, m.del, m.say, m.end} {
		if m.w.rng.IntN(3) > 0 {
			f()
		}
	}
}

// watch reads some of what happened.
func (m *machine) watch() {
	if m.relist {
		m.relist = false
		m.records, m.pods = map[types.UID]*v1alpha1.PodAttachment{}, map[types.UID]*corev1.Pod{}
		m.pos = map[string]int{kindRecord: len(m.w.api.log[kindRecord]), kindPod: len(m.w.api.log[kindPod])}
		for _, kind := range []string{kindRecord, kindPod} {
			for _, o := range m.w.api.list(kind) {
				m.see(event{obj: o})
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
			m.see(e)
		}
		m.pos[kind] += len(todo)
	}
}

func (m *machine) see(e event) {
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

// add is CNI ADD of pods that have their record.
func (m *machine) add() {
	for _, uid := range slices.Sorted(maps.Keys(m.pods)) {
		p := m.pods[uid]
		if m.plugged[uid] != nil || !pod.Wants(p) {
			continue
		}
		for _, r := range m.records {
			if r.Spec.PodUID == uid && r.DeletionTimestamp == nil && m.mayPlug(r) {
				m.plugged[uid] = &sandbox{pod: p.Name, addresses: addressesOf(r), since: m.w.now}
				m.w.dirty = true
				m.w.stats.Plugged++
				m.w.note("%s: plug %s %v", m.name, p.Name, m.plugged[uid].addresses)
				if r.Status.Sandbox != nil {
					m.say()
				}
			}
		}
	}
}

// mayPlug keeps a pod that outlived a boot unplugged while the node cannot say
// that it is plugged again, as its daemon does (internal/node, vouch).
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

// del is CNI DEL: of pods that are gone, going or finished.
func (m *machine) del() {
	for _, uid := range slices.Sorted(maps.Keys(m.plugged)) {
		if p := m.pods[uid]; (p == nil || !pod.Wants(p)) && (m.w.calm || m.w.rng.IntN(3) > 0) {
			m.w.note("%s: unplug %s %v", m.name, m.plugged[uid].pod, m.plugged[uid].addresses)
			m.unplug(uid)
		}
	}
}

func (m *machine) unplug(uid types.UID) {
	if s := m.plugged[uid]; !s.forgotten {
		for _, a := range s.addresses {
			m.w.unplugged[a] = m.w.now
		}
	}
	delete(m.plugged, uid)
	m.w.dirty = true
}

// say writes the node's word: Attached of what is plugged, Detached of what is
// being deleted and is not.
func (m *machine) say() {
	if !m.reachable {
		return
	}
	for _, uid := range slices.Sorted(maps.Keys(m.records)) {
		r := m.records[uid]
		sandbox, plugged := r.Status.Sandbox, m.plugged[r.Spec.PodUID] != nil
		word := v1alpha1.Sandbox{ID: "sandbox", BootID: m.bootID(), State: v1alpha1.SandboxAttached}
		switch {
		case plugged && sandbox != nil && sandbox.BootID == word.BootID:
			continue
		case plugged:
			at := metav1.NewMicroTime(m.plugged[r.Spec.PodUID].since)
			word.AttachedAt = &at
		case r.DeletionTimestamp == nil || controller.Detached(r):
			continue
		default:
			word.State = v1alpha1.SandboxDetached
		}
		said := r.DeepCopy()
		said.Status.Sandbox = &word
		if _, err := m.w.api.update(said); err == nil {
			m.w.note("%s: says %s of %s", m.name, word.State, r.Name)
		}
	}
}

// heartbeat is kubelet's status of the Node. It is the first thing that a
// kubelet does.
func (m *machine) heartbeat() {
	o, err := m.w.api.get(m.key())
	if err != nil {
		return
	}
	n := o.(*corev1.Node)
	ready := n.Status.Conditions[0]
	if !m.relist && ready.Status == corev1.ConditionTrue && m.w.now.Sub(ready.LastHeartbeatTime.Time) < heartbeatEvery {
		return
	}
	n = n.DeepCopy()
	n.Status.NodeInfo.BootID = m.bootID()
	n.Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(m.w.now)
	m.w.setReady(n, corev1.ConditionTrue)
}

const (
	// heartbeatEvery is how often a kubelet reports.
	heartbeatEvery = 10 * time.Second
	// silence is how long until Kubernetes calls a node unreachable.
	silence = 40 * time.Second
)

// judge is what Kubernetes' node lifecycle controller says of silent nodes.
func (w *world) judge() {
	for _, o := range w.api.list(kindNode) {
		n := o.(*corev1.Node)
		ready := n.Status.Conditions[0]
		if ready.Status == corev1.ConditionTrue && w.now.Sub(ready.LastHeartbeatTime.Time) > silence {
			w.setReady(n.DeepCopy(), corev1.ConditionUnknown)
		}
	}
}

func (w *world) setReady(n *corev1.Node, s corev1.ConditionStatus) {
	if n.Status.Conditions[0].Status != s {
		n.Status.Conditions[0].Status = s
		n.Status.Conditions[0].LastTransitionTime = metav1.NewTime(w.now)
	}
	w.must(w.api.update(n))
}

// end is kubelet's last word on a pod whose sandbox is gone, and on one whose
// containers have ended.
func (m *machine) end() {
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
		case p.DeletionTimestamp != nil && m.plugged[uid] == nil:
			m.w.note("%s: pod %s is gone", m.name, p.Name)
			m.w.must(nil, m.w.api.remove(keyOf(p), nil))
		case !m.w.calm && m.plugged[uid] != nil && pod.Wants(now) && m.w.rng.IntN(200) == 0:
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
	for uid := range m.plugged {
		m.unplug(uid)
	}
	m.forget()
}

// on boots it. Whoever has tainted its Node takes the taint away before.
func (m *machine) on() {
	m.untaint()
	m.up = true
	m.boot++
	m.forget()
}

// untaint takes a taint off its Node.
func (m *machine) untaint() {
	if o, err := m.w.api.get(m.key()); err == nil && len(o.(*corev1.Node).Spec.Taints) > 0 {
		n := o.(*corev1.Node).DeepCopy()
		n.Spec.Taints = nil
		m.w.must(m.w.api.update(n))
	}
}

// forget restarts the daemons: they know what is plugged, and nothing else.
func (m *machine) forget() { m.relist, m.records, m.pods = true, nil, nil }
