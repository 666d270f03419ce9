package sim

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/pod"
)

// asked are the requests and the kind of a pod.
type asked struct {
	name string
	// stateful is true for a pod of a StatefulSet. machine is the virtual machine that a
	// pod runs, claim the claim in its annotation; empty for none.
	stateful       bool
	machine, claim string
	// instance is the UID of the machine's instance, migration that of the migration
	// whose target the pod is; both empty for none. node is the pod's node.
	instance, migration, node string
	// addresses are those that it requests on the default network.
	addresses []netip.Addr
}

// claimOn returns the key of the claim that the pod has on an interface in a sticky pool,
// by the rules of docs/user/keeping-an-address.md; empty for none.
func (a asked) claimOn(iface string, sticky v1alpha1.Sticky) string {
	name := ""
	switch {
	case a.claim != "" && iface == "eth0":
		name = a.claim
	case sticky == v1alpha1.StickyStatefulSet && a.stateful:
		name = a.name
	case sticky == v1alpha1.StickyVirtualMachine:
		name = a.machine
	}
	if name == "" {
		return ""
	}
	if iface != "eth0" {
		name += "." + iface
	}
	return namespace + "/" + name
}

// claimsOf returns the keys of all claims that a pod may have.
func (w *simulation) claimsOf(a asked) []string {
	var out []string
	for pool, sticky := range w.pools.sticky {
		iface := "eth0"
		if pool == w.pools.second {
			iface = "net1"
		}
		if c := a.claimOn(iface, sticky); c != "" {
			out = append(out, c)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// addRequests adds random requests to a pod.
func (w *simulation) addRequests(p *corev1.Pod) asked {
	a := asked{name: p.Name}
	if !w.pools.asks {
		return a
	}
	p.Annotations = map[string]string{}
	switch n := w.rng.IntN(100); {
	case n < 40:
		a.stateful = true
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "web", UID: "web", Controller: new(true)}}
	case n < 65:
		a.machine = fmt.Sprintf("vm-%d", w.rng.IntN(4))
		w.addLauncher(p, &a)
	case n < 85:
		a.claim = fmt.Sprintf("db-%d", w.rng.IntN(3))
		p.Annotations[v1alpha1.AnnotationClaim] = a.claim
	}
	if w.rng.IntN(6) == 0 {
		a.addresses = w.randomAddresses()
		p.Annotations[v1alpha1.AnnotationAddresses] = join(a.addresses)
	}
	return a
}

// addLauncher makes a pod a launcher of its machine: most often the target of a live
// migration if the machine runs, otherwise the first of its next instance. Some pods only
// imitate a launcher of the instance.
func (w *simulation) addLauncher(p *corev1.Pod, a *asked) {
	a.node = p.Spec.NodeName
	running := ""
	for _, o := range w.api.list(kindPod) {
		if b := w.asked[o.GetUID()]; b.machine == a.machine && b.instance != "" {
			running = b.instance
		}
	}
	n := w.rng.IntN(100)
	if a.instance = running; running == "" || n < 10 {
		w.instances++
		a.instance = fmt.Sprintf("%s-instance-%d", a.machine, w.instances)
	} else if n < 90 {
		w.instances++
		a.migration = fmt.Sprintf("migration-%d", w.instances)
	}
	p.Labels = map[string]string{"kubevirt.io": "virt-launcher", pod.LabelInstance: a.instance}
	if a.migration != "" {
		p.Labels["kubevirt.io/migrationJobUID"] = a.migration
	}
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "kubevirt.io/v1", Kind: pod.InstanceKind, Name: a.machine, UID: types.UID(a.instance), Controller: new(true)}}
	if n >= 97 {
		delete(p.Labels, "kubevirt.io")
		a.instance = ""
	}
}

// readMachine answers a live read of a machine or of its instance. Every machine exists, and
// every instance that has a pod.
func (w *simulation) readMachine(o *metav1.PartialObjectMetadata, k types.NamespacedName) error {
	o.Namespace, o.Name, o.UID = k.Namespace, k.Name, types.UID(k.Name)
	if o.Kind != pod.InstanceKind {
		return nil
	}
	for _, p := range w.api.list(kindPod) {
		if a := w.asked[p.GetUID()]; a.machine == k.Name && a.instance != "" {
			o.UID = types.UID(a.instance)
			return nil
		}
	}
	return apierrors.NewNotFound(schema.GroupResource{Resource: o.Kind}, k.Name)
}

// mayShare reports whether two pods may have one address: they are launchers of one
// instance on two nodes, and one of them is the target of a migration.
func (w *simulation) mayShare(a, b types.UID) bool {
	x, y := w.asked[a], w.asked[b]
	return x.instance != "" && x.instance == y.instance && x.machine == y.machine && x.node != y.node && x.migration != y.migration
}

// staticUID is the prefix of the UIDs by which CNI asks for static pods. noUID is not a
// UID, so no record can name it.
const (
	staticUID = "static-"
	noUID     = "A_0:"
)

// addMirror makes some pods mirrors: of a static pod, which the kubelet creates again
// while its sandbox lives, or a pod of a user with another pod's UID or an invalid one in
// its annotation.
func (w *simulation) addMirror(p *corev1.Pod) {
	mirrored := ""
	switch n := w.rng.IntN(100); {
	case n < 8:
		mirrored = staticUID + p.Name
	case n < 18:
		if all := w.api.list(kindPod); len(all) > 0 {
			mirrored = string(all[w.rng.IntN(len(all))].GetUID())
		}
	case n < 20:
		mirrored = noUID
	}
	if mirrored == "" {
		return
	}
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	p.Annotations[corev1.MirrorPodAnnotationKey] = mirrored
}

// randomAddresses returns an address of the default network's pools, or one of each
// family.
func (w *simulation) randomAddresses() []netip.Addr {
	var out []netip.Addr
	for range 1 + w.rng.IntN(2) {
		a := w.pools.covered[w.rng.IntN(len(w.pools.covered))]
		second := w.pools.second != "" && w.pools.pool(w.pools.second).Covers(a)
		if !second && !slices.ContainsFunc(out, func(o netip.Addr) bool { return o.Is4() == a.Is4() }) {
			out = append(out, a)
		}
	}
	return out
}

func join(addresses []netip.Addr) string {
	texts := make([]string, len(addresses))
	for i, a := range addresses {
		texts[i] = a.String()
	}
	return strings.Join(texts, ",")
}

// changeClaims changes a claim or a reservation, as people do.
func (w *simulation) changeClaims() {
	switch {
	case !w.pools.asks:
	case w.rng.IntN(2) == 0:
		w.changeClaim()
	default:
		w.changeReservation()
	}
}

// changeClaim writes, changes or deletes a claim, also a claim that Fairlead made for a pod.
func (w *simulation) changeClaim() {
	names := []string{fmt.Sprintf("web-%d", w.rng.IntN(w.names)), fmt.Sprintf("vm-%d", w.rng.IntN(4)), fmt.Sprintf("db-%d", w.rng.IntN(3))}
	name := names[w.rng.IntN(len(names))]
	if w.pools.second != "" && w.rng.IntN(3) == 0 {
		name += ".net1"
	}
	if all := w.api.list(kindClaim); len(all) > 0 && w.rng.IntN(2) == 0 {
		name = all[w.rng.IntN(len(all))].GetName()
	}
	k := key{kindClaim, types.NamespacedName{Namespace: namespace, Name: name}}
	o, err := w.api.get(k)
	switch {
	case err != nil:
		c := &v1alpha1.IPClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Generation: 1}, Spec: w.claimSpec()}
		w.note("claim %s is written: %v", name, c.Spec)
		w.must(w.api.create(c))
	case w.rng.IntN(3) == 0:
		w.note("claim %s is deleted", name)
		w.must(nil, w.api.remove(k, nil))
	default:
		c := o.(*v1alpha1.IPClaim).DeepCopy()
		c.Spec = w.claimSpec()
		c.Generation++
		w.note("claim %s is changed: %v", name, c.Spec)
		w.must(w.api.update(c))
	}
}

func (w *simulation) claimSpec() v1alpha1.IPClaimSpec {
	var s v1alpha1.IPClaimSpec
	if w.rng.IntN(3) == 0 {
		for _, a := range w.randomAddresses() {
			s.Addresses = append(s.Addresses, a.String())
		}
	}
	if hold := []time.Duration{-1, 0, 10 * time.Second, time.Minute, time.Minute}[w.rng.IntN(5)]; hold >= 0 {
		s.HoldTime = &metav1.Duration{Duration: hold}
	}
	return s
}

// changeReservation writes, changes or deletes a reservation.
func (w *simulation) changeReservation() {
	k := key{kindReserved, types.NamespacedName{Name: fmt.Sprintf("reserved-%d", w.rng.IntN(3))}}
	o, err := w.api.get(k)
	switch {
	case err != nil:
		r := &v1alpha1.IPReservation{ObjectMeta: metav1.ObjectMeta{Name: k.Name, Generation: 1}, Spec: w.reservationSpec()}
		w.note("%s is written: %v", k, r.Spec.Ranges)
		w.must(w.api.create(r))
	case w.rng.IntN(2) == 0:
		w.note("%s is deleted", k)
		w.must(nil, w.api.remove(k, nil))
	default:
		r := o.(*v1alpha1.IPReservation).DeepCopy()
		r.Spec = w.reservationSpec()
		r.Generation++
		w.note("%s is changed: %v", k, r.Spec.Ranges)
		w.must(w.api.update(r))
	}
}

// reservationSpec returns a spec with a few neighbouring addresses, at times with an
// invalid range beside them.
func (w *simulation) reservationSpec() v1alpha1.IPReservationSpec {
	first := w.pools.covered[w.rng.IntN(len(w.pools.covered))]
	last := first
	for range w.rng.IntN(4) {
		if next := last.Next(); slices.Contains(w.pools.covered, next) {
			last = next
		}
	}
	s := v1alpha1.IPReservationSpec{Ranges: []string{first.String()}}
	if first != last {
		s.Ranges[0] += "-" + last.String()
	}
	if w.rng.IntN(8) == 0 {
		s.Ranges = append(s.Ranges, "10.1.0.300")
	}
	return s
}

// deleteClaims deletes all claims and reservations.
func (w *simulation) deleteClaims() {
	for _, kind := range []string{kindClaim, kindReserved} {
		for _, o := range w.api.list(kind) {
			w.note("%s is deleted", keyOf(o))
			w.must(nil, w.api.remove(keyOf(o), nil))
		}
	}
}
