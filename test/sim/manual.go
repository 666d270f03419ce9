package sim

import (
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
)

// This file simulates changes of blocks by hand, and checks their consequences.

// editByHand deletes a block in use, edits some of its slots away, or puts it back to an
// older state, while no leader runs: a policy of the API server refuses it otherwise, and a
// page for operators has the way round it. A record names every removed
// address, because for a pod that is still obtaining its network only the block knows the
// address.
func (w *simulation) editByHand() {
	if w.pools.asks {
		return // only the blocks know the addresses that claims keep
	}
	blocks := slices.DeleteFunc(w.api.list(kindBlock), func(o client.Object) bool { return !w.allRecorded(o.(*v1alpha1.IPBlock)) })
	if len(blocks) == 0 {
		return
	}
	b := blocks[w.rng.IntN(len(blocks))].(*v1alpha1.IPBlock)
	w.shutdown()
	for len(w.late) > 0 {
		w.deliverLate()
	}
	if o, err := w.api.get(keyOf(b)); err != nil || !w.allRecorded(o.(*v1alpha1.IPBlock)) {
		return
	} else {
		b = o.(*v1alpha1.IPBlock)
	}
	w.stats.Edited++
	w.byHand = true
	defer func() { w.byHand = false }()
	edited := b.DeepCopy()
	switch older := w.olderState(b); {
	case w.rng.IntN(3) == 0:
		w.note("block %s is deleted by hand", b.Name)
		w.must(nil, w.api.remove(keyOf(b), nil))
		return
	case older != nil && w.rng.IntN(2) == 0:
		w.note("block %s is put back by hand to version %s", b.Name, older.ResourceVersion)
		edited.Spec = older.Spec
	default:
		w.note("block %s is edited by hand", b.Name)
		edited.Spec.Slots = slices.DeleteFunc(edited.Spec.Slots, func(text string) bool {
			return strings.Contains(text, " A ") && w.rng.IntN(2) == 0
		})
	}
	w.must(w.api.update(edited))
}

// allRecorded reports whether a block has taken slots, and a record of the holder that is
// not being released names each of them.
func (w *simulation) allRecorded(b *v1alpha1.IPBlock) bool {
	n := 0
	for s := range ipam.DecodeBlock(netip.MustParsePrefix(b.Spec.CIDR), b.Spec.Node, b.Spec.Slots).Slots() {
		if s.State != ipam.Taken {
			continue
		}
		if n++; !w.holdsByRecord(types.UID(s.Holder.PodUID), s.Addr) {
			return false
		}
	}
	return n > 0
}

// holdsByRecord reports whether a record of a pod names an address and may not be
// released.
func (w *simulation) holdsByRecord(uid types.UID, a netip.Addr) bool {
	return slices.ContainsFunc(w.records[uid], func(r *v1alpha1.PodAttachment) bool {
		return slices.Contains(addressesOf(r), a) && !w.proven(r)
	})
}

// olderState returns a random earlier state of a block; nil if there is none.
func (w *simulation) olderState(b *v1alpha1.IPBlock) *v1alpha1.IPBlock {
	var all []*v1alpha1.IPBlock
	for _, e := range w.api.log[kindBlock] {
		if o := e.obj.(*v1alpha1.IPBlock); o.UID == b.UID && o.ResourceVersion != b.ResourceVersion && !e.deleted {
			all = append(all, o)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[max(0, len(all)-1-w.rng.IntN(12))]
}

// lossChanged notes the loss of an address by hand, and follows the address until its pod
// has it again: no other pod may get it. It reports whether the usual checks do not
// apply.
func (w *simulation) lossChanged(a netip.Addr, was, now ipam.Slot) bool {
	if w.byHand {
		if uid := types.UID(was.Holder.PodUID); was.State == ipam.Taken && !isOf(now, uid) && w.lostByHand[a] == "" {
			w.lostByHand[a] = uid
		}
		return true
	}
	uid, ok := w.lostByHand[a]
	switch {
	case !ok:
		return false
	case isOf(now, uid):
		w.stats.Healed++
		delete(w.lostByHand, a)
	case !w.holdsByRecord(uid, a) && !w.plugs(uid, a):
		delete(w.lostByHand, a) // its pod has released it, or is gone
		return false
	case now.State == ipam.Taken && !isOf(was, types.UID(now.Holder.PodUID)) && w.mayUse(types.UID(now.Holder.PodUID), a):
		w.fail("I1", "%s is handed out to %s, and pod %s has it: a block was changed by hand", a, now.Holder, uid)
	}
	return true
}

// mayUse reports whether a pod that takes an address may ever use it: the pod exists, or
// a machine has the address plugged for it. A leader that has not seen yet that a pod is
// gone may take for it an address that the other leader has freed; no other pod gets that
// address then.
func (w *simulation) mayUse(uid types.UID, a netip.Addr) bool {
	return w.plugs(uid, a) || slices.ContainsFunc(w.api.list(kindPod), func(o client.Object) bool { return o.GetUID() == uid })
}

// plugs reports whether a machine has an address plugged for a pod.
func (w *simulation) plugs(uid types.UID, a netip.Addr) bool {
	for _, m := range w.machines {
		for _, s := range m.plugged {
			if s.holder == uid && !s.forgotten && slices.Contains(s.addresses, a) {
				return true
			}
		}
	}
	return false
}

// checkLosses checks at rest that each address that a record names is its pod's again.
func (w *simulation) checkLosses() {
	for a, uid := range w.lostByHand {
		if w.holdsByRecord(uid, a) {
			w.fail("I2", "%s was lost by hand, pod %s has it, and the block has %c %s", a, uid, w.slots[a].State, w.slots[a].Holder)
		}
	}
	clear(w.lostByHand)
}
