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

// truth is the state that the checks compare with. It is derived from the API's changes
// and from the machines, never from a leader.
type truth struct {
	// dirty is set when anything has changed since the last check.
	dirty bool
	// slots are the slots of all blocks; blocks are the addresses that each block has
	// had.
	slots  map[netip.Addr]ipam.Slot
	blocks map[string][]netip.Addr
	// unplugged is when an address was last in use.
	unplugged map[netip.Addr]time.Time
	// freed is the step at which an address of a pod was last freed.
	freed map[had]freed
	// born are all pods that ever existed, with the boot number of their node at the
	// time.
	born map[types.UID]int
	// records by the UID of their holder.
	records map[types.UID][]*v1alpha1.PodAttachment
	// mirrors are the UIDs by which CNI asks for pods, of all pods that ever existed.
	mirrors map[types.UID]types.UID
	// became is the time at which the slot of an address last changed.
	became map[netip.Addr]time.Time
	// stamps are the true times at which slots got their state; made are the true times
	// at which objects were created.
	stamps map[stamp]time.Time
	made   map[types.UID]time.Time
	// asked are the requests of all pods that ever existed.
	asked map[types.UID]asked
	// claims are all claims that ever existed, by key.
	claims map[string]*claim
	// had is the leader that gave an address to a pod, by the pod's UID.
	had map[netip.Addr]map[string]int
	// last is the UID of the pod from which an address was last freed.
	last map[netip.Addr]types.UID
	// lostByHand are the addresses that were edited out of a block by hand, with the UID
	// of their holder.
	lostByHand map[netip.Addr]types.UID
	// byHand is true while a block is being changed by hand.
	byHand bool
}

// had is an address that a pod had.
type had struct {
	uid  types.UID
	addr netip.Addr
}

// freed is the block and the step of a free.
type freed struct {
	block string
	step  int
}

func newTruth() truth {
	return truth{
		slots: map[netip.Addr]ipam.Slot{}, blocks: map[string][]netip.Addr{}, unplugged: map[netip.Addr]time.Time{}, freed: map[had]freed{},
		born: map[types.UID]int{}, mirrors: map[types.UID]types.UID{}, records: map[types.UID][]*v1alpha1.PodAttachment{},
		became: map[netip.Addr]time.Time{}, stamps: map[stamp]time.Time{}, made: map[types.UID]time.Time{},
		asked: map[types.UID]asked{}, claims: map[string]*claim{}, had: map[netip.Addr]map[string]int{}, last: map[netip.Addr]types.UID{}, lostByHand: map[netip.Addr]types.UID{},
	}
}

// changed updates the truth with a change of the API, and checks the change.
func (w *simulation) changed(old, obj client.Object) {
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

func (w *simulation) blockChanged(name string, obj client.Object) {
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
		if w.lossChanged(a, was, now) {
			if w.slots[a] = now; now.State == 0 {
				delete(w.slots, a)
			} else {
				left = append(left, a)
			}
			continue
		}
		w.holdersChanged(a, was, now, name)
		w.claimOfSlotChanged(a, was, now)
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

// holdersChanged checks every holder that an address loses or gets.
func (w *simulation) holdersChanged(a netip.Addr, was, now ipam.Slot, block string) {
	for h := range was.Holders() {
		if !now.Has(h) {
			alone := was
			alone.Holder = h
			w.freeing(a, alone, block)
		}
	}
	for h := range now.Holders() {
		if was.Has(h) {
			continue
		}
		alone := now
		alone.Holder = h
		w.taking(a, was, alone)
	}
	if one, two := types.UID(now.Holder.PodUID), types.UID(now.Second.PodUID); two != "" {
		w.stats.Shared++
		if now.Claim == "" || !w.mayShare(one, two) {
			w.fail("I1", "%s is shared by %s (%+v) and %s (%+v)", a, now.Holder, w.asked[one], now.Second, w.asked[two])
		}
	}
}

// taking checks a slot that becomes taken.
func (w *simulation) taking(a netip.Addr, was, now ipam.Slot) {
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
	if was.State == ipam.Taken && was.Claim != "" && was.Claim == now.Claim && w.mayShare(types.UID(was.Holder.PodUID), types.UID(now.Holder.PodUID)) {
		return // the machine has the address already
	}
	w.checkKnown(a, was, now)
	if was.State == ipam.Held && was.Claim == now.Claim {
		w.stats.Inherited++
		return // no cooldown is needed: the claim is the same, so its neighbours know it
	}
	if w.last[a] == types.UID(now.Holder.PodUID) {
		return // no other pod had it: a leader mistook another leader's release for a loss
	}
	named := func(r *v1alpha1.PodAttachment) bool { return slices.Contains(addressesOf(r), a) }
	if slices.ContainsFunc(w.records[types.UID(now.Holder.PodUID)], named) {
		return // its record, of a backup, named it before: any delay could give it to another pod
	}
	rested := w.now.Sub(w.unplugged[a])
	if was.State == ipam.Freed {
		rested = min(rested, w.now.Sub(w.since(was)))
	}
	if rested < ipam.MinCooldown {
		w.fail("the cooldown", "%s has rested %s, and %s gets it: at least %s is promised", a, rested, now.Holder, ipam.MinCooldown)
	}
}

// freeing checks that a free is allowed: no machine has the address plugged, and each
// record that names it has the node's Detached or a proof.
func (w *simulation) freeing(a netip.Addr, was ipam.Slot, block string) {
	uid := types.UID(was.Holder.PodUID)
	w.freed[had{uid, a}], w.last[a] = freed{block, w.stats.Steps}, uid
	for _, m := range w.machines {
		if s := m.of(uid); s != nil && !s.forgotten && slices.Contains(s.addresses, a) {
			w.fail("I4", "%s is freed while %s has it plugged for %s", a, m.name, s.pod)
		}
	}
	for _, r := range w.records[uid] {
		if slices.Contains(addressesOf(r), a) && !w.proven(r) {
			w.fail("I4", "%s is freed while record %s names it, and there is neither Detached nor a proof", a, r.Name)
		}
	}
}

// proven reports whether a record may be released: it is Detached, or its node is off,
// has booted since, or its Node was deleted.
func (w *simulation) proven(r *v1alpha1.PodAttachment) bool {
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

func (w *simulation) machine(name string) *machine {
	i := slices.IndexFunc(w.machines, func(m *machine) bool { return m.name == name })
	if i < 0 {
		return nil // no machine ever had the name
	}
	return w.machines[i]
}

func (w *simulation) recordChanged(old, obj client.Object) {
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
	if why := cmp.Or(w.pools.incomplete(r), w.differsFromRequest(r)); why != "" && w.podRuns(r) {
		w.fail("I3", "record %s %s", r.Name, why)
	}
	if len(r.OwnerReferences) == 0 {
		w.checkOrphanRecord(r)
	}
}

// checkOrphanRecord checks a record that the collector writes for the addresses of a pod
// that is gone: the pod still has them, otherwise another pod may get an address that the
// record names. It ignores addresses that are freed while the create is in progress, or
// after the collector has read the block, because the collector cannot see that.
func (w *simulation) checkOrphanRecord(r *v1alpha1.PodAttachment) {
	for _, a := range addressesOf(r) {
		if f, ok := w.freed[had{r.HolderUID(), a}]; ok && w.doing != nil && (f.step >= w.doing.sent || w.doing.readBefore(f)) {
			continue
		}
		if slot := w.slots[a]; !isOf(slot, r.HolderUID()) {
			w.fail("I2", "record %s of a pod that is gone is written and names %s, and the block has %c %s", r.Name, a, slot.State, slot.Holder)
		}
	}
}

// readBefore reports whether the collector that makes this call, or its leader's store
// meanwhile, had read the block before the address was freed.
func (c *call) readBefore(f freed) bool {
	read, ok := c.read[f.block]
	return ok && f.step > read
}

// isOf reports whether a pod is a holder of a slot.
func isOf(slot ipam.Slot, uid types.UID) bool {
	for h := range slot.Holders() {
		if h.PodUID == string(uid) {
			return true
		}
	}
	return false
}

// podRuns reports whether a record's pod exists and may run.
func (w *simulation) podRuns(r *v1alpha1.PodAttachment) bool {
	o := w.api.objects.get(key{kindPod, types.NamespacedName{Namespace: r.Namespace, Name: r.Spec.PodName}})
	return o != nil && o.GetUID() == r.HolderUID() && pod.Holds(o.(*corev1.Pod))
}

// check checks the invariants that must hold after every step.
func (w *simulation) check() {
	if !w.dirty {
		return
	}
	w.dirty = false
	// I1: an address that is plugged, or that the record of a living pod names, has this
	// pod as a holder in the block. holdersChanged checks that it is the only one, or that the
	// two are launchers of one machine.
	for _, m := range w.machines {
		for _, s := range m.plugged {
			for _, a := range s.addresses {
				if slot := w.slots[a]; !s.forgotten && w.lostByHand[a] != s.holder && !isOf(slot, s.holder) {
					w.fail("I1", "%s has %s plugged for %s, and the block has %c %s", m.name, a, s.pod, slot.State, slot.Holder)
				}
			}
		}
	}
	for uid, list := range w.records {
		for _, r := range list {
			if r.DeletionTimestamp != nil || !w.podRuns(r) {
				continue
			}
			for _, a := range addressesOf(r) {
				if slot := w.slots[a]; w.lostByHand[a] != uid && !isOf(slot, uid) {
					w.fail("I1", "record %s of a pod that lives names %s, and the block has %c %s", r.Name, a, slot.State, slot.Holder)
				}
			}
		}
	}
}

// checkCounts checks I7 for each leader. A leader's knowledge may be old, but its counts
// must add up.
func (w *simulation) checkCounts() {
	for _, l := range w.leaders {
		for _, p := range w.pools.all {
			c := l.counts(p)
			if sum := c.Free + c.Allocated + c.Cooling + c.Held + c.Reserved; sum != c.Usable || c.Free > c.Usable {
				w.fail("I7", "leader %d counts %s in pool %s, which adds up to %d", l.id, c, p.Name(), sum)
			}
		}
	}
}

// reload takes the restored state as the truth. A sandbox that the backup does not have
// is marked as forgotten, and is not checked.
func (w *simulation) reload() {
	before := w.truth
	w.truth = newTruth()
	w.born, w.mirrors, w.asked, w.claims, w.had, w.dirty = before.born, before.mirrors, before.asked, before.claims, before.had, true
	w.stamps, w.made = before.stamps, before.made
	maps.Copy(w.lostByHand, w.snapshotLosses)
	w.reloadClaims()
	for _, o := range w.api.list(kindBlock) {
		b := o.(*v1alpha1.IPBlock)
		for s := range ipam.DecodeBlock(netip.MustParsePrefix(b.Spec.CIDR), b.Spec.Node, b.Spec.Slots).Slots() {
			w.slots[s.Addr] = s
			w.claimOfSlotChanged(s.Addr, ipam.Slot{}, s)
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
