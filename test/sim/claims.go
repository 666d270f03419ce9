package sim

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block"
	"fairlead.dev/fairlead/internal/pod"
)

// This file checks claims and reservations.

const (
	// claimGrace is how long an address is kept for a claim that does not exist.
	claimGrace = 5 * time.Second
	// defaultHold is how long an address is kept for a claim without holdTime.
	defaultHold = 24 * time.Hour
)

// claim is the history of a claim.
type claim struct {
	exists bool
	// born is when it was last created.
	born time.Time
	// holds and wants are the hold times and addresses of all specs that it ever had.
	holds []time.Duration
	wants []netip.Addr
	// slots are the addresses that the blocks record for it.
	slots map[netip.Addr]bool
	// doubledAt is when it last had two addresses of a family.
	doubledAt time.Time
}

func (w *simulation) claim(key string) *claim {
	if w.claims[key] == nil {
		w.claims[key] = &claim{slots: map[netip.Addr]bool{}}
	}
	return w.claims[key]
}

// claimChanged updates the history of a claim.
func (w *simulation) claimChanged(old, obj client.Object) {
	if obj == nil {
		w.claim(client.ObjectKeyFromObject(old).String()).exists = false
		return
	}
	w.claimIs(obj.(*v1alpha1.IPClaim))
}

func (w *simulation) claimIs(o *v1alpha1.IPClaim) {
	c := w.claim(client.ObjectKeyFromObject(o).String())
	if !c.exists {
		c.exists, c.born = true, w.now
	}
	hold := defaultHold
	if o.Spec.HoldTime != nil {
		hold = o.Spec.HoldTime.Duration
	}
	if !slices.Contains(c.holds, hold) {
		c.holds = append(c.holds, hold)
	}
	for _, text := range o.Spec.Addresses {
		if a := netip.MustParseAddr(text); !slices.Contains(c.wants, a) {
			c.wants = append(c.wants, a)
		}
	}
}

// reloadClaims updates all claims after a restore.
func (w *simulation) reloadClaims() {
	now := map[string]bool{}
	for _, o := range w.api.list(kindClaim) {
		now[client.ObjectKeyFromObject(o).String()] = true
		w.claimIs(o.(*v1alpha1.IPClaim))
	}
	for key, c := range w.claims {
		c.exists = now[key]
		clear(c.slots)
	}
}

// claimOfSlotChanged checks a change of the claim for which an address is kept.
func (w *simulation) claimOfSlotChanged(a netip.Addr, was, now ipam.Slot) {
	if was.Claim != "" && was.Claim != now.Claim {
		delete(w.claim(was.Claim).slots, a)
		switch {
		case was.State == ipam.Held:
			w.checkClaimEnd(a, was.Claim, w.since(was))
		case now.State == ipam.Freed:
			w.checkClaimEnd(a, was.Claim, w.since(now))
		default:
			w.fail("the claim", "%s of claim %s becomes %c of %s, claim %q", a, was.Claim, now.State, now.Holder, now.Claim)
		}
	}
	if now.Claim != "" {
		c := w.claim(now.Claim)
		c.slots[a] = true
		for o := range c.slots {
			if o != a && o.Is4() == a.Is4() {
				c.doubledAt = w.now
			}
		}
	}
}

// checkClaimEnd checks that there is a reason to keep an address no longer: the claim did
// not exist, it was held for a hold time of the claim, or the claim had or wanted another
// address.
func (w *simulation) checkClaimEnd(a netip.Addr, key string, since time.Time) {
	w.stats.Ended++
	c := w.claim(key)
	if !c.exists || !c.born.Before(since.Add(claimGrace-quantum)) || !c.doubledAt.Before(since) {
		return
	}
	for _, hold := range c.holds {
		if hold > 0 && !since.Add(hold).After(w.now.Add(quantum)) {
			return
		}
	}
	for _, want := range c.wants {
		if want != a && want.Is4() == a.Is4() {
			return
		}
	}
	w.fail("the claim", "%s has been kept for claim %s since %s, and now it is not, without a reason", a, key, since)
}

// look is the knowledge of a leader when it began to reconcile an object.
type look struct {
	// pod is the UID of the reconciled pod; empty if there was none.
	pod types.UID
	// reserved are the reservations.
	reserved map[string]*ipam.Reservation
	// has are the leases of the pod's claims.
	has map[string][]block.Lease
}

// look returns the leader's present knowledge.
func (l *leader) look(k key) look {
	out := look{}
	if !l.w.pools.asks || k.kind != kindPod {
		return out
	}
	out.reserved = maps.Clone(l.reserved)
	if o := l.cache.get(k); o != nil {
		out.pod, out.has = o.GetUID(), map[string][]block.Lease{}
		for _, c := range l.w.claimsOf(l.w.asked[o.GetUID()]) {
			out.has[c] = l.store.Claimed(c)
		}
	}
	return out
}

// learn notes a reservation that informers show; of an invalid reservation only the valid
// ranges.
func (l *leader) learn(e event) {
	o, ok := e.obj.(*v1alpha1.IPReservation)
	switch {
	case !ok:
	case e.deleted:
		delete(l.reserved, o.Name)
	default:
		r := reservation(o)
		if was := l.reserved[o.Name]; was == nil || !reflect.DeepEqual(was, r) {
			l.reserved[o.Name] = r
		}
	}
}

// counts returns the counts of a pool by the leader's knowledge, including reservations.
func (l *leader) counts(p *ipam.Pool) ipam.Counts { return l.store.Counts(l.pools.Without(p)) }

// checkKnown checks a taken address by the knowledge of the leader that wrote it: the
// address is not reserved, its claim is a claim of the pod, and the claim had no other
// address.
func (w *simulation) checkKnown(a netip.Addr, was, now ipam.Slot) {
	if !w.pools.asks {
		return
	}
	// The claim that keeps the address of a launcher whose machine has migrated is its own.
	hold := now.Holder.Namespace + "/" + pod.ClaimOn(pod.AttachmentName(now.Holder.Pod, types.UID(now.Holder.PodUID)), now.Holder.Interface)
	if claims := w.claimsOf(w.asked[types.UID(now.Holder.PodUID)]); now.Claim != "" && now.Claim != hold && !slices.Contains(claims, now.Claim) {
		w.fail("the claim", "%s is given to %s for claim %s, and his are %v", a, now.Holder, now.Claim, claims)
	}
	if w.doing == nil {
		return
	}
	if w.had[a] == nil {
		w.had[a] = map[string]int{}
	}
	w.had[a][now.Holder.PodUID] = w.doing.by.id
	knew, ok := w.doing.looks[key{kindPod, types.NamespacedName{Namespace: now.Holder.Namespace, Name: now.Holder.Pod}}]
	if !ok || knew.pod != types.UID(now.Holder.PodUID) {
		return // its leader no longer waits for the call
	}
	for name, r := range knew.reserved {
		if w.doing.reserved[name] == r && r.Contains(a) {
			w.fail("I6", "%s is handed out to %s, and leader %d knew that it is reserved", a, now.Holder, w.doing.by.id)
		}
	}
	if c := w.claims[now.Claim]; c == nil || was.Claim == now.Claim || slices.Contains(c.wants, a) || slices.Contains(w.asked[knew.pod].addresses, a) {
		return // the claim moves, also to another pool
	}
	reserved := func(a netip.Addr) bool {
		for _, known := range []map[string]*ipam.Reservation{knew.reserved, w.doing.reserved} {
			for _, r := range known {
				if r.Contains(a) {
					return true
				}
			}
		}
		return false
	}
	for _, l := range knew.has[now.Claim] {
		if s := w.slots[l.Addr]; l.Addr != a && l.Addr.Is4() == a.Is4() && s.Claim == now.Claim && s.Since.Equal(l.Since) && !reserved(l.Addr) && w.pools.both(a, l.Addr) {
			w.fail("the claim", "claim %s has %s, %c of %s, which leader %d knew, and gets %s too, for %s", now.Claim, l.Addr, s.State, s.Holder, w.doing.by.id, a, now.Holder)
		}
	}
}

// differsFromRequest describes the first difference between a record and its pod's
// request; empty for none.
func (w *simulation) differsFromRequest(r *v1alpha1.PodAttachment) string {
	a := w.asked[r.HolderUID()]
	for _, i := range r.Spec.Interfaces {
		if want := a.claimOn(i.Name, w.pools.sticky[i.Pool]); i.Claim != want {
			return fmt.Sprintf("has claim %q of interface %s in pool %s, not %q", i.Claim, i.Name, i.Pool, want)
		}
		var has []netip.Addr
		for _, cidr := range i.Addresses {
			addr := netip.MustParsePrefix(cidr).Addr()
			if has = append(has, addr); !slices.Contains(w.claimsOn(r, i, addr), w.slots[addr].Claim) {
				return fmt.Sprintf("has %s for claim %q, and the block has %q", addr, i.Claim, w.slots[addr].Claim)
			}
		}
		for _, want := range a.addresses {
			if i.Default && !slices.Contains(has, want) {
				return fmt.Sprintf("has %v, and the pod requests %s", has, want)
			}
		}
	}
	return ""
}

// claimsOn returns the keys of the claims for which a block may keep an address that a record
// names. Beside the record's own these are the claim of the machine's stop, and the claim of
// another pool that covers the address: see the package's comment about two leaders.
func (w *simulation) claimsOn(r *v1alpha1.PodAttachment, i v1alpha1.Interface, addr netip.Addr) []string {
	out := []string{i.Claim, untilStopped(r, i.Name)}
	for _, p := range w.pools.all {
		if i.Claim == "" && p.Covers(addr) {
			out = append(out, w.asked[r.HolderUID()].claimOn(i.Name, w.pools.sticky[p.Name()]))
		}
	}
	return out
}

// untilStopped returns the key of the claim that keeps an address of a launcher without a
// claim until its machine stops.
func untilStopped(r *v1alpha1.PodAttachment, iface string) string {
	return namespace + "/" + r.Name + "." + iface
}

// checkRefusal checks a conflict that is reported for a pod: it names a pod that existed,
// and this leader has given no address to the refused pod.
func (w *simulation) checkRefusal(l *leader, k key, err error) {
	var taken *ipam.TakenError
	if !errors.Is(err, fault.ErrConflict) || !errors.As(err, &taken) {
		return
	}
	uid := string(l.running[k].pod)
	if h := taken.Holder; h != (ipam.Holder{}) && (h.PodUID == uid || w.born[types.UID(h.PodUID)] == 0) {
		w.fail("I1", "pod %s (uid %s) is refused because %s has %s", k, uid, h, taken.Addr)
	}
	for a, s := range w.slots {
		if s.State == ipam.Taken && s.Holder.PodUID == uid && w.had[a][uid] == l.id && !w.pools.parts() {
			w.fail("I3", "pod %s is refused, as %s, and has %s", k, taken, a)
		}
	}
}

// waits reports whether a pod has a reason to be without addresses although there is
// room: another pod has the address that it requests or that its claim has, or no pool
// gives that address.
func (w *simulation) waits(p *corev1.Pod) bool {
	a := w.asked[p.UID]
	wanted := a.addresses
	for _, key := range w.claimsOf(a) {
		for addr := range w.claim(key).slots {
			s := w.slots[addr]
			if s.State == ipam.Taken && s.Holder.PodUID != string(p.UID) {
				return true
			}
			if slices.ContainsFunc(a.addresses, func(o netip.Addr) bool { return o.Is4() == addr.Is4() && o != addr }) {
				return true
			}
		}
		if o := w.api.objects.get(claimKey(key)); o != nil {
			for _, text := range o.(*v1alpha1.IPClaim).Spec.Addresses {
				wanted = append(wanted, netip.MustParseAddr(text))
			}
		}
	}
	for _, addr := range wanted {
		s := w.slots[addr]
		if s.State == ipam.Taken && s.Holder.PodUID != string(p.UID) || s.State == ipam.Held || !w.pools.allow(addr) || w.reserved(addr) {
			return true
		}
	}
	return false
}

func claimKey(k string) key {
	return key{kindClaim, types.NamespacedName{Namespace: namespace, Name: k[len(namespace)+1:]}}
}

// reserved reports whether a reservation has an address.
func (w *simulation) reserved(a netip.Addr) bool {
	return slices.ContainsFunc(w.api.list(kindReserved), func(o client.Object) bool { return reservation(o).Contains(a) })
}

func reservation(o client.Object) *ipam.Reservation {
	s := o.(*v1alpha1.IPReservation).Spec
	r, _ := ipam.ParseReservation(s.Domain, s.Ranges)
	return r
}

// checkSettled checks at rest that the leaders' counts and the status of claims and
// reservations are right.
func (w *simulation) checkSettled() {
	if !w.pools.asks || w.failed != nil {
		return
	}
	for _, l := range w.leaders {
		for _, p := range w.pools.all {
			if have, want := l.counts(p), w.count(p); have != want {
				w.fail("I7", "leader %d counts %s in pool %s, and there is %s", l.id, have, p.Name(), want)
			}
		}
	}
	for _, o := range w.api.list(kindReserved) {
		var in []string
		for _, a := range w.pools.covered {
			if w.slots[a].State == ipam.Taken && reservation(o).Contains(a) {
				in = append(in, a.String())
			}
		}
		r := o.(*v1alpha1.IPReservation)
		whole := len(r.Spec.Ranges) == 1
		if !slices.Equal(in, r.Status.InUse) || meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionReady) != whole {
			w.fail("the status", "reservation %s has status %+v, and pods have %v of it", r.Name, r.Status, in)
		}
	}
	for _, o := range w.api.list(kindClaim) {
		var has []string
		of, late := "", 0
		for _, a := range slices.SortedFunc(maps.Keys(w.claim(client.ObjectKeyFromObject(o).String()).slots), netip.Addr.Compare) {
			s := w.slots[a]
			if n := len(has); n > 0 && netip.MustParseAddr(has[n-1]).Is4() == a.Is4() {
				late++
				continue
			}
			// One family may be the pod's while the other is still kept, for example if
			// that address was reserved meanwhile.
			has, of = append(has, a.String()), cmp.Or(of, s.Holder.Pod)
		}
		s := o.(*v1alpha1.IPClaim).Status
		if !slices.Equal(has, s.Addresses) || s.Pod != of || (s.HeldSince != nil) != (len(has) > 0 && of == "") {
			w.fail("the status", "claim %s has status %+v, and has %v, which pod %q has", o.GetName(), s, has, of)
		}
		if late > 0 && of == "" {
			w.fail("the claim", "claim %s keeps %d addresses more than it needs", o.GetName(), late)
		}
	}
}

// count returns the true counts of a pool.
func (w *simulation) count(p *ipam.Pool) ipam.Counts {
	var c ipam.Counts
	for _, a := range w.pools.covered {
		if !p.Allows(a) {
			continue
		}
		c.Usable++
		switch s := w.slots[a]; {
		case s.State == ipam.Taken:
			c.Allocated++
		case w.reserved(a):
			c.Reserved++
		case s.State == ipam.Held:
			c.Held++
		case s.State == ipam.Freed && w.now.Sub(w.since(s)) < p.Cooldown():
			c.Cooling++
		default:
			c.Free++
		}
	}
	return c
}

// checkNothingKept checks I2 when all claims and reservations are gone too.
func (w *simulation) checkNothingKept() {
	for a, s := range w.slots {
		if s.State != ipam.Freed {
			w.fail("I2", "all claims are gone, and %s is still %c, for claim %q", a, s.State, s.Claim)
		}
	}
	for _, o := range w.api.list(kindClaim) {
		w.fail("I2", "all claims were deleted, and %s is there", o.GetName())
	}
	w.checkSettled()
}
