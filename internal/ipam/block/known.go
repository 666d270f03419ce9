package block

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
)

// tenant is a namespace in a domain.
type tenant struct{ namespace, domain string }

// known is what the store knows of the blocks: the state of each, and indexes of the addresses
// in them. Store.mu guards it.
type known struct {
	// wall is the wall clock, run a clock that never jumps. begin is when the process began,
	// as the wall clock showed at New.
	wall  func() time.Time
	run   func() time.Duration
	begin time.Time

	blocks map[string]*entry
	// byNode has the blocks that are routed to a node: node name, block name.
	byNode map[string]map[string]*entry
	// leases are the taken addresses of the known blocks, by holder.
	leases map[holderKey][]Lease
	// claims are the taken and held addresses of the known blocks that have a claim, by
	// its key.
	claims map[string][]Lease
	// tenants has the addresses that count for the quota of a namespace. The value is
	// the claim that the address is held for; empty if the address is taken.
	tenants map[tenant]map[netip.Addr]string
	// doubts has the block whose last write may have given an address to a holder,
	// although the holder's call failed.
	doubts map[holderKey]*entry
	// cooldowns is the longest cooldown of a domain's pools that the store has seen.
	cooldowns map[string]time.Duration
	// formerNodes has the node that a block was routed to until a moment ago, by block
	// name.
	formerNodes map[string]formerNode
	// buried has the UIDs of blocks that this store deleted and whose deletion the
	// informer may not have shown yet, by block name.
	buried map[string]types.UID
	// pending is the newest state of a busy block that the informer brought.
	pending map[*entry]pendingState
}

// pendingState is a state of an object that the store has not taken over yet, with the
// block decoded from it.
type pendingState struct {
	obj   *v1alpha1.IPBlock
	block *ipam.Block
}

// noteFormerNode records that a block is no longer routed to a node.
func (k *known) noteFormerNode(block, node string) {
	now := k.run()
	for name, d := range k.formerNodes {
		if now-d.at >= rerouteDelay {
			delete(k.formerNodes, name)
		}
	}
	if node != "" {
		k.formerNodes[block] = formerNode{node, now}
	}
}

// mayRoute reports whether a vacant block may be routed to a node now.
func (k *known) mayRoute(block, node string) bool {
	d, ok := k.formerNodes[block]
	return !ok || d.node == node || k.run()-d.at >= rerouteDelay
}

// idleFor returns how long this process has seen the block idle. A negative duration
// means that the block becomes idle after as long, if no address is taken meanwhile. It
// returns false if an address is taken, held, withheld or damaged.
func (k *known) idleFor(e *entry) (time.Duration, bool) {
	from, ok := e.next.IdleFrom(k.cooldown(e.domain))
	return k.run() - from, ok
}

// spare returns the unused blocks that a node need not keep. In each family and domain
// those are all if another block is in use, and all but the first otherwise.
func (k *known) spare(node string) []*entry {
	type part struct {
		domain string
		family ipam.Family
	}
	var unused []*entry
	kept := map[part]bool{}
	of := func(e *entry) part { return part{e.domain, ipam.FamilyOf(e.prefix.Addr())} }
	for _, e := range k.byNode[node] {
		if e.obj == nil || e.foreign {
			continue
		}
		if _, ok := k.idleFor(e); ok && k.droppable(e) {
			unused = append(unused, e)
		} else {
			kept[of(e)] = true
		}
	}
	slices.SortFunc(unused, func(a, b *entry) int { return cmp.Compare(a.name, b.name) })
	return slices.DeleteFunc(unused, func(e *entry) bool {
		first := !kept[of(e)]
		kept[of(e)] = true
		return first
	})
}

// droppable reports whether the block exists and no address of it is being taken.
func (k *known) droppable(e *entry) bool {
	return e.obj != nil && !e.foreign && !e.taking()
}

// add creates the entry of an unknown block. The caller decides whether the block must
// be read first.
func (k *known) add(domain string, prefix netip.Prefix, node string) *entry {
	e := &entry{
		name: ipam.BlockName(domain, prefix), domain: domain, prefix: prefix,
		kick: make(chan struct{}, 1),
	}
	e.base = k.fresh(prefix, node)
	e.next = e.base
	k.blocks[e.name] = e
	k.setNode(e, node)
	return e
}

// setNode records which node the block is routed to.
func (k *known) setNode(e *entry, node string) {
	if m := k.byNode[e.node]; m != nil {
		delete(m, e.name)
		if len(m) == 0 {
			delete(k.byNode, e.node)
		}
	}
	e.node = node
	if node == "" {
		return
	}
	if k.byNode[node] == nil {
		k.byNode[node] = map[string]*entry{}
	}
	k.byNode[node][e.name] = e
}

// learn adopts a state that the API has.
func (k *known) learn(e *entry, obj *v1alpha1.IPBlock) {
	k.takeOver(e, obj, k.read(e, obj))
}

// read decodes a state of the block and adds when this process saw its addresses become
// free or held. It compares with the last state that the process knew, also if the
// informer brought this state while the block was busy.
func (k *known) read(e *entry, obj *v1alpha1.IPBlock) *ipam.Block {
	before := e.base
	switch u := k.pending[e]; {
	case u.obj != nil && !newer(u.obj, obj):
		before = u.block
	case e.obj == nil && before.Used() == 0:
		before = nil // base was only assumed: the block was unknown
	}
	var slots []string
	if _, ok := prefixOf(obj); ok {
		slots = obj.Spec.Slots
	}
	b := ipam.DecodeBlock(e.prefix, obj.Spec.Node, slots)
	b.Watch(before, k.now())
	return b
}

func (k *known) takeOver(e *entry, obj *v1alpha1.IPBlock, b *ipam.Block) {
	_, ok := prefixOf(obj)
	e.foreign = !ok || obj.DeletionTimestamp != nil
	delete(k.buried, e.name)
	k.setNode(e, obj.Spec.Node)
	k.rebase(e, obj, b)
	e.rebuild(k.now())
}

// rebase sets the known state and updates the indexes.
func (k *known) rebase(e *entry, obj *v1alpha1.IPBlock, base *ipam.Block) {
	old := e.base
	e.obj, e.base = obj, base
	for slot := range old.Slots() {
		if now, _ := base.Slot(slot.Addr); now != slot {
			k.unindex(e, slot)
		}
	}
	for slot := range base.Slots() {
		if was, _ := old.Slot(slot.Addr); was != slot {
			k.index(e, slot)
		}
	}
}

// index adds a slot to the indexes.
func (k *known) index(e *entry, slot ipam.Slot) {
	for _, l := range k.leasesOf(e, slot) {
		if l.Holder != (ipam.Holder{}) {
			key := keyOf(l.Holder)
			k.leases[key] = append(k.leases[key], l)
		}
		if l.Claim != "" {
			k.claims[l.Claim] = append(k.claims[l.Claim], l)
		}
	}
	if t, claim, ok := e.tenant(slot); ok {
		if k.tenants[t] == nil {
			k.tenants[t] = map[netip.Addr]string{}
		}
		k.tenants[t][slot.Addr] = claim
	}
}

// unindex removes a slot from the indexes.
func (k *known) unindex(e *entry, slot ipam.Slot) {
	for _, l := range k.leasesOf(e, slot) {
		without(k.leases, keyOf(l.Holder), l)
		without(k.claims, l.Claim, l)
	}
	if t, _, ok := e.tenant(slot); ok {
		if delete(k.tenants[t], slot.Addr); len(k.tenants[t]) == 0 {
			delete(k.tenants, t)
		}
	}
}

// leasesOf returns the leases of a slot: one for each holder; one without a holder for any
// slot that has none. The first holder of a shared slot has the address for longest, also if
// the wall clock of the controller that let the second one join was behind.
func (k *known) leasesOf(e *entry, slot ipam.Slot) []Lease {
	l := k.lease(e, slot)
	if slot.Second == (ipam.Holder{}) {
		return []Lease{l}
	}
	second := l
	second.Holder = slot.Second
	if slot.Joined.After(slot.Since) {
		second.Since = slot.Joined
	}
	return []Lease{l, second}
}

func (k *known) lease(e *entry, slot ipam.Slot) Lease {
	return Lease{
		Holder: slot.Holder, Domain: e.domain, Addr: slot.Addr, Block: e.name, Since: slot.Since, Claim: slot.Claim,
		Seen: k.begin.Add(e.base.Since(slot.Ordinal)),
	}
}

// objectGone handles the disappearance of the object. If addresses of it are taken, it
// was deleted by mistake: the entry keeps its last state, so that the addresses are not
// handed out again, and the next change writes it again.
func (k *known) objectGone(e *entry) {
	base := e.base
	if base.Used() == 0 {
		base = k.fresh(e.prefix, e.node)
	}
	k.rebase(e, nil, base)
	e.foreign = false
	e.rebuild(k.now())
}

// forgetEmpty removes the entry if it has no information and no work.
func (k *known) forgetEmpty(e *entry) {
	if !e.busy && e.obj == nil && e.base.Used() == 0 && len(e.doubts) == 0 {
		k.setNode(e, "")
		delete(k.blocks, e.name)
	}
}

// blocksOf counts the blocks that a node has of a pool in one family, including those
// under construction.
func (k *known) blocksOf(p *ipam.Pool, node string, f ipam.Family) int {
	n := 0
	for _, e := range k.byNode[node] {
		if e.domain == p.Domain() && ipam.FamilyOf(e.prefix.Addr()) == f && !e.vacant() && p.UsableIn(e.prefix) > 0 {
			n++
		}
	}
	return n
}

// lookup returns the entry of a block. It assumes that an unknown block does not exist.
func (k *known) lookup(domain string, prefix netip.Prefix, node string) *entry {
	if e := k.blocks[ipam.BlockName(domain, prefix)]; e != nil {
		return k.claim(e, node)
	}
	return k.add(domain, prefix, node)
}

// claim routes a vacant block to a node; to none, for a shared block, if node is empty.
func (k *known) claim(e *entry, node string) *entry {
	if e.vacant() && e.node != node {
		k.setNode(e, node)
		e.base = k.fresh(e.prefix, node)
		e.rebuild(k.now())
	}
	return e
}

// noteCooldown records the longest cooldown of a domain: blocks of the domain must not
// be deleted earlier.
func (k *known) noteCooldown(p *ipam.Pool) {
	k.cooldowns[p.Domain()] = max(k.cooldowns[p.Domain()], p.Cooldown())
}

func (k *known) cooldown(domain string) time.Duration {
	return max(k.cooldowns[domain], ipam.DefaultCooldown)
}

// now returns the current moment by both clocks.
func (k *known) now() ipam.Moment {
	return ipam.Moment{Wall: k.wall(), Run: k.run()}
}

// fresh returns a block without records: as far as the store knows, none of its
// addresses was ever used.
func (k *known) fresh(prefix netip.Prefix, node string) *ipam.Block {
	b := ipam.NewBlock(prefix, node)
	b.Watch(nil, k.now())
	return b
}

// holdings calls each with the addresses that an operation is for, and their blocks; the zero
// address stands for all that the holder has in the block. An unknown block is read first: it
// may exist.
func (k *known) holdings(h ipam.Holder, domain string, addrs []netip.Addr, each func(*entry, netip.Addr)) {
	for _, a := range addrs {
		if !a.IsValid() {
			continue
		}
		prefix := ipam.BlockOf(a)
		e := k.blocks[ipam.BlockName(domain, prefix)]
		if e == nil {
			e = k.add(domain, prefix, "")
			e.doubtful = true
		}
		each(e, a)
	}
	if len(addrs) > 0 {
		return
	}
	for _, l := range k.leases[keyOf(h)] {
		if l.Domain == domain {
			each(k.blocks[l.Block], l.Addr)
		}
	}
	if e := k.doubts[keyOf(h)]; e != nil && e.domain == domain {
		each(e, netip.Addr{})
	}
}

// counts returns the counts of some families of a pool: those of the state in the API, or
// those expected after all operations under way.
func (k *known) counts(p *ipam.Pool, expected bool, families ...ipam.Family) ipam.Counts {
	var sum ipam.Counts
	sum.Usable, sum.Reserved = p.Size(families...)
	now := k.now()
	for _, e := range k.blocks {
		if e.domain != p.Domain() || !slices.Contains(families, ipam.FamilyOf(e.prefix.Addr())) {
			continue
		}
		b := e.base
		if expected {
			b = e.next
		}
		c := b.Counts(p, now)
		if e.foreign || p.PerNode() != (e.node != "") {
			// The pool may not hand out addresses of this block.
			c.Reserved += c.Free
		}
		sum.Allocated += c.Allocated
		sum.Cooling += c.Cooling
		sum.Held += c.Held
		sum.Reserved += c.Reserved - p.ReservedIn(e.prefix)
	}
	sum.Free = sum.Usable - sum.Allocated - sum.Cooling - sum.Held - sum.Reserved
	return sum
}

// tenant returns the namespace whose quota the slot counts for, that of its holder or of the
// claim that it is held for, and this claim. ok is false if it counts for none.
func (e *entry) tenant(slot ipam.Slot) (t tenant, claim string, ok bool) {
	switch slot.State {
	case ipam.Taken:
		return tenant{slot.Holder.Namespace, e.domain}, "", true
	case ipam.Held:
		namespace, _, ok := strings.Cut(slot.Claim, "/")
		return tenant{namespace, e.domain}, slot.Claim, ok
	default:
		return tenant{}, "", false
	}
}

// without removes a lease from an index. Two holders of an address have a lease each.
func without[K comparable](index map[K][]Lease, k K, l Lease) {
	left := slices.DeleteFunc(index[k], func(o Lease) bool { return o.Block == l.Block && o.Addr == l.Addr && o.Holder.Same(l.Holder) })
	if len(left) == 0 {
		delete(index, k)
		return
	}
	index[k] = left
}

// prefixOf returns the prefix of an object; false if its name, domain and CIDR
// disagree.
func prefixOf(obj *v1alpha1.IPBlock) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(obj.Spec.CIDR)
	ok := err == nil && ipam.BlockOf(p.Addr()) == p && ipam.BlockName(obj.Spec.Domain, p) == obj.Name
	return p, ok
}

// newer reports whether a is a later state than b.
func newer(a, b *v1alpha1.IPBlock) bool {
	c, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err == nil && c > 0
}
