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

// This file is about people who change blocks by hand, and what must come of it.

// handEdit deletes a block in use, edits some of its slots away, or puts it back to an
// older state; every other time the leaders crash with it. Whatever it changes is named by
// a record: of a pod that is still obtaining its network nobody knows what the block knew.
func (w *world) handEdit() {
	if w.pools.asks {
		return // what claims keep is known to the blocks alone
	}
	blocks := slices.DeleteFunc(w.api.list(kindBlock), func(o client.Object) bool { return !w.allRecorded(o.(*v1alpha1.IPBlock)) })
	if len(blocks) == 0 {
		return
	}
	b := blocks[w.rng.IntN(len(blocks))].(*v1alpha1.IPBlock)
	if w.rng.IntN(2) == 0 {
		w.shutdown()
		for len(w.late) > 0 {
			w.arrive()
		}
		if o, err := w.api.get(keyOf(b)); err != nil || !w.allRecorded(o.(*v1alpha1.IPBlock)) {
			return
		} else {
			b = o.(*v1alpha1.IPBlock)
		}
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

// allRecorded says whether every taken slot of a block is named by a record of its holder
// that nobody is giving back, and there is one.
func (w *world) allRecorded(b *v1alpha1.IPBlock) bool {
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

// holdsByRecord says whether a record of a pod names an address, and nothing has shown
// that it may be given back.
func (w *world) holdsByRecord(uid types.UID, a netip.Addr) bool {
	return slices.ContainsFunc(w.records[uid], func(r *v1alpha1.PodAttachment) bool {
		return slices.Contains(addressesOf(r), a) && !w.evident(r)
	})
}

// olderState is some state that the block had before; nil for none.
func (w *world) olderState(b *v1alpha1.IPBlock) *v1alpha1.IPBlock {
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

// wounded notes what a hand does to an address, and what becomes of it until its pod has it
// again: nobody else may get it. It says whether the usual checks do not apply.
func (w *world) wounded(a netip.Addr, was, now ipam.Slot) bool {
	if w.byHand {
		if uid := types.UID(was.Holder.PodUID); was.State == ipam.Taken && !isOf(now, uid) && w.wounds[a] == "" {
			w.wounds[a] = uid
		}
		return true
	}
	uid, ok := w.wounds[a]
	switch {
	case !ok:
		return false
	case isOf(now, uid):
		w.stats.Healed++
		delete(w.wounds, a)
	case !w.holdsByRecord(uid, a) && !w.plugs(uid, a):
		delete(w.wounds, a) // its pod has given it back, or is gone
		return false
	case now.State == ipam.Taken && !isOf(was, types.UID(now.Holder.PodUID)) && w.mayUse(types.UID(now.Holder.PodUID), a):
		w.fail("I1", "%s is handed out to %s, and pod %s has it: a block was changed by hand", a, now.Holder, uid)
	}
	return true
}

// mayUse says whether a pod that an address is taken for may ever use it: it is there, or
// some machine has the address plugged for it. A leader that has not heard yet that a pod
// is gone may take for it what the other leader has freed; nobody else gets it then.
func (w *world) mayUse(uid types.UID, a netip.Addr) bool {
	return w.plugs(uid, a) || slices.ContainsFunc(w.api.list(kindPod), func(o client.Object) bool { return o.GetUID() == uid })
}

// plugs says whether some machine has an address plugged for a pod.
func (w *world) plugs(uid types.UID, a netip.Addr) bool {
	for _, m := range w.machines {
		for _, s := range m.plugged {
			if s.holder == uid && !s.forgotten && slices.Contains(s.addresses, a) {
				return true
			}
		}
	}
	return false
}

// checkWounds is for a world at rest: what living records name is their pods' again.
func (w *world) checkWounds() {
	for a, uid := range w.wounds {
		if w.holdsByRecord(uid, a) {
			w.fail("I2", "%s was lost by hand, pod %s has it, and the block says %c %s", a, uid, w.slots[a].State, w.slots[a].Holder)
		}
	}
	clear(w.wounds)
}
