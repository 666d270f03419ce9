package sim

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/controller/proof"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/pod"
)

// truth is what the checks know: it comes from the API's changes and from the
// machines, never from a leader.
type truth struct {
	// dirty is set when something has changed since the last check.
	dirty bool
	// slots are what the blocks say, blocks which of them each has said.
	slots  map[netip.Addr]ipam.Slot
	blocks map[string][]netip.Addr
	// unplugged is when an address was last in use.
	unplugged map[netip.Addr]time.Time
	// freed is when an address was last freed that a pod had.
	freed map[had]freed
	// born are the pods that ever were, with the boot of their node then.
	born map[types.UID]int
	// records by the pod they are of.
	records map[types.UID][]*v1alpha1.PodAttachment
	// mirrors are the UIDs that the annotations of pods that ever were name.
	mirrors map[types.UID]types.UID
	// became is when addresses became what the blocks say of them.
	became map[netip.Addr]time.Time
	// stamps are when slots became what they were, in truth, and made is when objects were.
	stamps map[stamp]time.Time
	made   map[types.UID]time.Time
	// asked is what the pods that ever were asked for.
	asked map[types.UID]asked
	// claims that ever were, by key.
	claims map[string]*claim
	// had says which leader gave an address to a pod.
	had map[netip.Addr]map[string]int
	// last is the pod that an address was last freed of.
	last map[netip.Addr]types.UID
	// wounds are the addresses that a block has lost by somebody's hand, with who has them.
	wounds map[netip.Addr]types.UID
	// byHand is true while somebody changes a block by hand.
	byHand bool
}

// had is an address that was a pod's.
type had struct {
	uid  types.UID
	addr netip.Addr
}

// freed says in which block and at which step.
type freed struct {
	block string
	step  int
}

func newTruth() truth {
	return truth{
		slots: map[netip.Addr]ipam.Slot{}, blocks: map[string][]netip.Addr{}, unplugged: map[netip.Addr]time.Time{}, freed: map[had]freed{},
		born: map[types.UID]int{}, mirrors: map[types.UID]types.UID{}, records: map[types.UID][]*v1alpha1.PodAttachment{},
		became: map[netip.Addr]time.Time{}, stamps: map[stamp]time.Time{}, made: map[types.UID]time.Time{},
		asked: map[types.UID]asked{}, claims: map[string]*claim{}, had: map[netip.Addr]map[string]int{}, last: map[netip.Addr]types.UID{}, wounds: map[netip.Addr]types.UID{},
	}
}

// changed looks at every change of the API.
func (w *world) changed(old, obj client.Object) {
	o := obj
	if o == nil {
		o = old
	}
	w.dirty = true
	if old == nil {
		w.made[o.GetUID()] = w.now
	}
	switch o.(type) {
	case *v1alpha1.IPBlock:
		w.checkBound(old, obj)
		w.blockChanged(o.GetName(), obj)
	case *v1alpha1.PodAttachment:
		w.recordChanged(old, obj)
	case *v1alpha1.IPClaim:
		w.claimChanged(old, obj)
	}
}

func (w *world) blockChanged(name string, obj client.Object) {
	fresh := map[netip.Addr]ipam.Slot{}
	if b, ok := obj.(*v1alpha1.IPBlock); ok && b != nil {
		for s := range ipam.DecodeBlock(netip.MustParsePrefix(b.Spec.CIDR), b.Spec.Node, b.Spec.Slots).Slots() {
			fresh[s.Addr] = s
		}
	}
	addrs := w.blocks[name]
	for a := range fresh {
		if _, ok := w.slots[a]; !ok {
			addrs = append(addrs, a)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	var left []netip.Addr
	for _, a := range addrs {
		was, now := w.slots[a], fresh[a]
		w.stamped(now)
		if was != now {
			w.became[a] = w.now
		}
		if w.wounded(a, was, now) {
			if w.slots[a] = now; now.State == 0 {
				delete(w.slots, a)
			} else {
				left = append(left, a)
			}
			continue
		}
		if was.State == ipam.Taken && (now.State != ipam.Taken || !now.Holder.Same(was.Holder)) {
			w.freeing(a, was, name)
		}
		if now.State == ipam.Taken && (was.State != ipam.Taken || !now.Holder.Same(was.Holder)) {
			w.taking(a, was, now)
		}
		w.keepChanged(a, was, now)
		if now.State == ipam.Damaged {
			w.fail("I2", "the record of %s in block %s cannot be read", a, name)
		}
		if now.State == 0 {
			delete(w.slots, a)
			continue
		}
		if was.Generation > now.Generation {
			w.fail("I4", "the generation of %s went from %d to %d", a, was.Generation, now.Generation)
		}
		w.slots[a] = now
		left = append(left, a)
	}
	w.blocks[name] = left
}

// taking checks a slot that somebody takes.
func (w *world) taking(a netip.Addr, was, now ipam.Slot) {
	if !w.pools.allow(a) {
		w.fail("I6", "%s is handed out, which no pool allows", a)
	}
	if _, ok := w.born[types.UID(now.Holder.PodUID)]; !ok {
		w.fail("I2", "%s is taken by %s, which never was", a, now.Holder)
	}
	if w.mirrors[types.UID(now.Holder.PodUID)] == noUID {
		w.fail("I3", "%s is taken by %s, whose record cannot be written", a, now.Holder)
	}
	if w.machine(now.Holder.Node) == nil {
		w.fail("I2", "%s is taken by %s, whose node never was", a, now.Holder)
	}
	w.knownTo(a, was, now)
	if was.State == ipam.Held && was.Claim == now.Claim {
		w.stats.Inherited++
		return // it need not rest: whoever comes is whom its neighbours know
	}
	if w.last[a] == types.UID(now.Holder.PodUID) {
		return // nobody else had it: a leader has taken another's release for a loss
	}
	rested := w.now.Sub(w.unplugged[a])
	if was.State == ipam.Freed {
		rested = min(rested, w.now.Sub(w.since(was)))
	}
	if rested < ipam.MinCooldown {
		w.fail("the cooldown", "%s has rested %s, and %s gets it: at least %s is promised", a, rested, now.Holder, ipam.MinCooldown)
	}
}

// freeing checks that there is evidence: nobody has the address plugged, and
// the record that names it, if any, has the node's word or a proof.
func (w *world) freeing(a netip.Addr, was ipam.Slot, block string) {
	uid := types.UID(was.Holder.PodUID)
	w.freed[had{uid, a}], w.last[a] = freed{block, w.stats.Steps}, uid
	for _, m := range w.machines {
		if s := m.of(uid); s != nil && !s.forgotten && slices.Contains(s.addresses, a) {
			w.fail("I4", "%s is freed while %s has it plugged for %s", a, m.name, s.pod)
		}
	}
	for _, r := range w.records[uid] {
		if slices.Contains(addressesOf(r), a) && !w.evident(r) {
			w.fail("I4", "%s is freed while record %s names it, and neither word nor proof has come", a, r.Name)
		}
	}
}

// evident says that a record's node has said its word, or was lost since: it
// is off, it has booted, or its Node was deleted.
func (w *world) evident(r *v1alpha1.PodAttachment) bool {
	if proof.Detached(r) {
		return true
	}
	if r.DeletionTimestamp == nil {
		return false
	}
	m := w.machine(r.Spec.NodeName)
	n, err := w.api.get(m.key())
	return !m.up || m.boot > w.born[r.HolderUID()] || err != nil || w.made[n.GetUID()].After(w.made[r.UID])
}

func (w *world) machine(name string) *machine {
	i := slices.IndexFunc(w.machines, func(m *machine) bool { return m.name == name })
	if i < 0 {
		return nil // no machine ever had the name
	}
	return w.machines[i]
}

func (w *world) recordChanged(old, obj client.Object) {
	r, _ := obj.(*v1alpha1.PodAttachment)
	if r == nil {
		r = old.(*v1alpha1.PodAttachment)
		w.records[r.HolderUID()] = slices.DeleteFunc(w.records[r.HolderUID()], func(o *v1alpha1.PodAttachment) bool { return o.UID == r.UID })
		if len(w.records[r.HolderUID()]) == 0 {
			delete(w.records, r.HolderUID())
		}
		return
	}
	list := w.records[r.HolderUID()]
	if i := slices.IndexFunc(list, func(o *v1alpha1.PodAttachment) bool { return o.UID == r.UID }); i >= 0 {
		list[i] = r
		return
	}
	w.records[r.HolderUID()] = append(list, r)
	if why := cmp.Or(w.pools.incomplete(r), w.unlike(r)); why != "" && w.lives(r) {
		w.fail("I3", "record %s %s", r.Name, why)
	}
	if len(r.OwnerReferences) == 0 {
		w.writtenDown(r)
	}
}

// writtenDown checks a record that the collector makes of what a pod left: the
// pod still has it, or somebody else may get it while the record names it. What is
// freed while the create is under way, or after the collector has read the block for
// it, nobody can have seen.
func (w *world) writtenDown(r *v1alpha1.PodAttachment) {
	for _, a := range addressesOf(r) {
		if f, ok := w.freed[had{r.HolderUID(), a}]; ok && w.doing != nil && (f.step >= w.doing.sent || w.doing.readBefore(f)) {
			continue
		}
		if slot := w.slots[a]; !isOf(slot, r.HolderUID()) {
			w.fail("I2", "record %s of a pod that is gone is written down and names %s, and the block says %c %s", r.Name, a, slot.State, slot.Holder)
		}
	}
}

// readBefore says that the collector whose call this is, or its leader's store
// meanwhile, had read a block before an address in it was freed.
func (c *call) readBefore(f freed) bool {
	read, ok := c.read[f.block]
	return ok && f.step > read
}

// isOf says that a slot is taken by a pod.
func isOf(slot ipam.Slot, uid types.UID) bool {
	return slot.State == ipam.Taken && slot.Holder.PodUID == string(uid)
}

// lives says that a record's pod is there and may run.
func (w *world) lives(r *v1alpha1.PodAttachment) bool {
	o := w.api.objects.get(key{kindPod, types.NamespacedName{Namespace: r.Namespace, Name: r.Spec.PodName}})
	return o != nil && o.GetUID() == r.HolderUID() && pod.Holds(o.(*corev1.Pod))
}

// check is what must hold after every step.
func (w *world) check() {
	if !w.dirty {
		return
	}
	w.dirty = false
	// I1: whoever has an address plugged, or may plug it because his record
	// says so, is the one whom the block names. A block names one.
	for _, m := range w.machines {
		for _, s := range m.plugged {
			for _, a := range s.addresses {
				if slot := w.slots[a]; !s.forgotten && w.wounds[a] != s.holder && !isOf(slot, s.holder) {
					w.fail("I1", "%s has %s plugged for %s, and the block says %c %s", m.name, a, s.pod, slot.State, slot.Holder)
				}
			}
		}
	}
	for uid, list := range w.records {
		for _, r := range list {
			if r.DeletionTimestamp != nil || !w.lives(r) {
				continue
			}
			for _, a := range addressesOf(r) {
				if slot := w.slots[a]; w.wounds[a] != uid && !isOf(slot, uid) {
					w.fail("I1", "record %s of a pod that lives names %s, and the block says %c %s", r.Name, a, slot.State, slot.Holder)
				}
			}
		}
	}
}

// checkCounts is I7 as each leader sees it. What a leader knows may be old; it
// must add up all the same.
func (w *world) checkCounts() {
	for _, l := range w.leaders {
		for _, p := range w.pools.all {
			c := l.counts(p)
			if sum := c.Free + c.Allocated + c.Cooling + c.Held + c.Reserved; sum != c.Usable || c.Free > c.Usable {
				w.fail("I7", "leader %d counts %s in pool %s, which adds up to %d", l.id, c, p.Name(), sum)
			}
		}
	}
}

// recall takes in the state after a restore: from now on it is the truth. Of
// sandboxes that the backup knows nothing of nobody claims anything.
func (w *world) recall() {
	before := w.truth
	w.truth = newTruth()
	w.born, w.mirrors, w.asked, w.claims, w.had, w.dirty = before.born, before.mirrors, before.asked, before.claims, before.had, true
	w.stamps, w.made = before.stamps, before.made
	maps.Copy(w.wounds, w.scars)
	w.recallClaims()
	for _, o := range w.api.list(kindBlock) {
		b := o.(*v1alpha1.IPBlock)
		for s := range ipam.DecodeBlock(netip.MustParsePrefix(b.Spec.CIDR), b.Spec.Node, b.Spec.Slots).Slots() {
			w.slots[s.Addr] = s
			w.keepChanged(s.Addr, ipam.Slot{}, s)
			w.blocks[b.Name] = append(w.blocks[b.Name], s.Addr)
		}
	}
	for _, o := range w.api.list(kindRecord) {
		r := o.(*v1alpha1.PodAttachment)
		w.records[r.HolderUID()] = append(w.records[r.HolderUID()], r)
	}
	for _, m := range w.machines {
		for _, s := range m.plugged {
			for _, a := range s.addresses {
				if !isOf(w.slots[a], s.holder) {
					s.forgotten = true
				}
			}
		}
	}
}
