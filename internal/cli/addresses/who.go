package addresses

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli/kube"
	"fairlead.dev/fairlead/internal/cli/output"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block"
	"fairlead.dev/fairlead/internal/pod"
)

// addressState is the state of an address.
type addressState string

const (
	addressFree      addressState = "Free"
	addressAllocated addressState = "Allocated"
	addressCooling   addressState = "Cooling"
	addressHeld      addressState = "Held"     // kept for a claim
	addressReserved  addressState = "Reserved" // by an IPReservation
	addressWithheld  addressState = "Withheld" // excluded, a gateway, or an edge
	addressDamaged   addressState = "Damaged"  // a record cannot be parsed
	addressOutside   addressState = "Outside"  // of every pool
	addressUnknown   addressState = "Unknown"  // the history does not reach back that far
)

// whoView is the output of `who -o json`.
type whoView struct {
	Address string `json:"address"`
	// At is the requested time; absent for now.
	At *time.Time `json:"at,omitempty"`
	// Domains that know the address, by name.
	Domains []whoDomain `json:"domains"`
	// UnreadPools have an unparsable spec, and may contain the address.
	UnreadPools []string `json:"unreadPools"`
}

// whoDomain is the state of an address in one domain.
type whoDomain struct {
	Domain string       `json:"domain"`
	State  addressState `json:"state"`
	// Holder has the address, or had it at the requested time.
	Holder *holderView `json:"holder,omitempty"`
	// Second is the other launcher of a virtual machine that migrates.
	Second *holderView `json:"second,omitempty"`
	// Former holders that the block remembers, the newest first; if a time was requested,
	// only holders before that time.
	Former []*holderView `json:"former"`
	// Claim is the claim for which the address is, or will be, kept: namespace/name.
	Claim string `json:"claim,omitempty"`
	// Since and Until are the times at which the state began and ended, or will end.
	Since *time.Time `json:"since,omitempty"`
	Until *time.Time `json:"until,omitempty"`
	// Pools whose ranges contain the address.
	Pools []whoPool `json:"pools"`
	// Reservations that withhold it, by name.
	Reservations []string `json:"reservations"`
	// Records are the PodAttachments that name it, as namespace/name.
	Records []string `json:"records"`
	// Note is a remark for the user.
	Note string `json:"note,omitempty"`
}

// whoPool is a pool whose ranges contain the address.
type whoPool struct {
	Name string `json:"name"`
	// Withheld is the reason why the pool never hands the address out.
	Withheld string `json:"withheld,omitempty"`
}

// holderView is a pod that has, or had, an address.
type holderView struct {
	Namespace string     `json:"namespace"`
	Pod       string     `json:"pod"`
	UID       string     `json:"uid"`
	Interface string     `json:"interface"`
	Node      string     `json:"node"`
	Since     *time.Time `json:"since,omitempty"`
	Until     *time.Time `json:"until,omitempty"` // absent for the present holder
}

func holderOf(h ipam.Holder, since, until time.Time) *holderView {
	return &holderView{
		Namespace: h.Namespace, Pod: h.Pod, UID: h.PodUID, Interface: h.Interface, Node: h.Node,
		Since: output.Timestamp(since), Until: output.Timestamp(until),
	}
}

// question is the query of `who`.
type question struct {
	addr   netip.Addr
	domain string    // empty for every domain that knows the address
	at     time.Time // zero for now
}

// buildWho answers a question from pools, reservations, claims, blocks and
// PodAttachments.
func buildWho(q question, snap kube.Snapshot) whoView {
	v := whoView{Address: q.addr.String(), At: output.Timestamp(q.at), Domains: []whoDomain{}}
	domains := findings{}
	if q.domain != "" {
		domains.about(q.domain)
	}
	v.UnreadPools = domains.addPools(q.addr, snap.Pools)
	domains.addRecords(q.addr, snap.Attachments)
	domains.addBlocks(q.addr, snap.Blocks)
	reservations := block.Reservations(snap.Reservations)
	for domain, e := range domains {
		if q.domain != "" && q.domain != domain {
			continue
		}
		for i, r := range reservations {
			if r.Domain() == domain && r.Contains(q.addr) {
				e.reservations = append(e.reservations, snap.Reservations[i].Name)
			}
		}
		e.claims = snap.Claims
		v.Domains = append(v.Domains, e.answer(q, domain, snap.Now))
	}
	slices.SortFunc(v.Domains, func(a, b whoDomain) int { return cmp.Compare(a.Domain, b.Domain) })
	return v
}

// findings is the evidence about an address, by domain.
type findings map[string]*evidence

func (f findings) about(domain string) *evidence {
	if f[domain] == nil {
		f[domain] = &evidence{}
	}
	return f[domain]
}

// addPools adds the pools whose ranges contain the address. It returns the names of pools
// that cannot be parsed.
func (f findings) addPools(addr netip.Addr, pools []v1alpha1.IPPool) []string {
	var unread []string
	for i := range pools {
		p, err := block.PoolOf(&pools[i])
		switch {
		case err != nil:
			unread = append(unread, pools[i].Name)
		case p.Covers(addr):
			e := f.about(p.Domain())
			e.pools = append(e.pools, p)
		}
	}
	slices.Sort(unread)
	return output.List(unread)
}

// addBlocks adds the blocks that have a record of the address, and the blocks of domains
// that are known to have it.
func (f findings) addBlocks(addr netip.Addr, blocks []v1alpha1.IPBlock) {
	for i := range blocks {
		b, err := block.Decode(&blocks[i])
		if err != nil || b.Prefix() != ipam.BlockOf(addr) {
			continue
		}
		if _, recorded := b.Slot(addr); recorded || f[blocks[i].Spec.Domain] != nil {
			f.about(blocks[i].Spec.Domain).block = b
		}
	}
}

func (f findings) addRecords(addr netip.Addr, attachments []v1alpha1.PodAttachment) {
	for i := range attachments {
		for _, iface := range attachments[i].Spec.Interfaces {
			if iface.Domain != "" && slices.ContainsFunc(iface.Addresses, func(cidr string) bool { return addressOf(cidr) == addr }) {
				e := f.about(iface.Domain)
				e.records = append(e.records, &attachments[i])
			}
		}
	}
}

// addressOf returns the address of a CIDR; the zero Addr if it cannot be parsed.
func addressOf(cidr string) netip.Addr {
	p, _ := netip.ParsePrefix(cidr)
	return p.Addr()
}

// evidence holds the objects that concern an address in one domain.
type evidence struct {
	pools        []*ipam.Pool
	block        *ipam.Block // nil if there is none
	reservations []string
	records      []*v1alpha1.PodAttachment
	claims       []v1alpha1.IPClaim // all
}

func (e *evidence) answer(q question, domain string, now time.Time) whoDomain {
	v := whoDomain{Domain: domain, Former: []*holderView{}, Pools: []whoPool{}}
	for _, p := range e.pools {
		v.Pools = append(v.Pools, whoPool{Name: p.Name(), Withheld: p.Withheld(q.addr)})
	}
	slices.SortFunc(v.Pools, func(a, b whoPool) int { return cmp.Compare(a.Name, b.Name) })
	for _, r := range e.records {
		v.Records = append(v.Records, r.Namespace+"/"+r.Name)
	}
	slices.Sort(v.Records)
	slices.Sort(e.reservations)
	v.Records, v.Reservations = output.List(v.Records), output.List(e.reservations)
	var slot ipam.Slot
	var history []ipam.Past
	recorded := false
	if e.block != nil {
		slot, recorded = e.block.Slot(q.addr)
		history = e.block.History(q.addr)
	}
	for _, past := range history {
		if q.at.IsZero() || !q.at.Before(past.Until) {
			v.Former = append(v.Former, holderOf(past.Holder, past.Since, past.Until))
		}
	}
	switch {
	case q.at.IsZero():
		e.present(&v, q.addr, slot, recorded, now)
	case !recorded || slot.State == ipam.Damaged:
		v.State, v.Note = addressUnknown, "no block remembers a holder of the address"
	case q.at.Before(slot.Since):
		e.former(&v, q.at, slot, history)
	default:
		e.sinceLastChange(&v, q.at, slot)
	}
	return v
}

// present sets the state of the address now.
func (e *evidence) present(v *whoDomain, addr netip.Addr, slot ipam.Slot, recorded bool, now time.Time) {
	v.Since = output.Timestamp(slot.Since)
	handsOut := slices.ContainsFunc(e.pools, func(p *ipam.Pool) bool { return p.Allows(addr) })
	cooling := e.cooldown(addr, slot, now)
	switch {
	case recorded && slot.State == ipam.Taken:
		v.State, v.Holder, v.Claim = addressAllocated, holderOf(slot.Holder, slot.Since, time.Time{}), slot.Claim
		if slot.Second != (ipam.Holder{}) {
			v.Second = holderOf(slot.Second, slot.Joined, time.Time{})
		}
	case recorded && slot.State == ipam.Damaged, e.block != nil && !recorded && !e.block.Fresh(addr):
		v.State, v.Note = addressDamaged, "a record of block "+e.block.Prefix().String()+" cannot be read: see fairlead ipam audit"
	case recorded && slot.State == ipam.Held:
		v.State, v.Claim, v.Until = addressHeld, slot.Claim, e.heldUntil(slot)
	case len(e.reservations) > 0:
		v.State = addressReserved
	case recorded && slot.State == ipam.Freed && cooling > 0:
		v.State, v.Until = addressCooling, output.Timestamp(slot.Since.Add(cooling))
	case len(e.pools) == 0:
		v.State = addressOutside
	case !handsOut:
		v.State = addressWithheld
	default:
		v.State = addressFree
	}
	if slices.ContainsFunc(e.records, func(r *v1alpha1.PodAttachment) bool {
		of := pod.HolderOf(r)
		names := func(h ipam.Holder) bool {
			return h.PodUID == string(of.UID) && h.Namespace == of.Namespace && h.Pod == of.Name
		}
		return r.DeletionTimestamp == nil && (slot.State != ipam.Taken || !names(slot.Holder) && !names(slot.Second))
	}) {
		v.Note = "a PodAttachment names the address and the block does not agree: see fairlead ipam audit"
	}
}

// heldUntil returns the time at which an address stops being held; nil if its claim has
// no hold time or does not exist.
func (e *evidence) heldUntil(slot ipam.Slot) *time.Time {
	for i := range e.claims {
		c := &e.claims[i]
		if c.Namespace+"/"+c.Name == slot.Claim && c.Spec.HoldTime != nil && c.Spec.HoldTime.Duration > 0 {
			return output.Timestamp(slot.Since.Add(c.Spec.HoldTime.Duration))
		}
	}
	return nil
}

// cooldown returns the longest cooldown of the pools in which the address is cooling; 0
// if there is none.
func (e *evidence) cooldown(addr netip.Addr, slot ipam.Slot, now time.Time) time.Duration {
	var longest time.Duration
	for _, p := range e.pools {
		if slot.State == ipam.Freed && e.block.Cooling(p, addr, ipam.Moment{Wall: now}) {
			longest = max(longest, p.Cooldown())
		}
	}
	return longest
}

// sinceLastChange sets the state of the address at a time after the last change of its
// slot.
func (e *evidence) sinceLastChange(v *whoDomain, at time.Time, slot ipam.Slot) {
	v.Claim, v.Since = slot.Claim, output.Timestamp(slot.Since)
	switch slot.State {
	case ipam.Taken:
		v.State, v.Holder = addressAllocated, holderOf(slot.Holder, slot.Since, time.Time{})
	case ipam.Held:
		v.State = addressHeld
	default:
		v.State = e.freedState(at, slot.Since)
	}
}

// former sets the state of the address at a time before the last change of its slot, from
// the holdings that the block remembers.
func (e *evidence) former(v *whoDomain, at time.Time, slot ipam.Slot, history []ipam.Past) {
	next := slot.Since // start of the state that followed the holding
	for _, past := range history {
		switch {
		case !at.Before(past.Until):
			v.State, v.Since, v.Until = e.freedState(at, past.Until), output.Timestamp(past.Until), output.Timestamp(next)
			v.Note = "no pod had it then; whether it was held for a claim is not remembered"
			return
		case !at.Before(past.Since):
			v.State, v.Since, v.Until = addressAllocated, output.Timestamp(past.Since), output.Timestamp(past.Until)
			v.Holder = holderOf(past.Holder, past.Since, past.Until)
			return
		}
		next = past.Since
	}
	v.State = addressUnknown
	v.Note = "the history of the address does not reach back that far: it begins at " + next.UTC().Format(time.RFC3339)
}

// freedState returns the state at a time of an address that was freed earlier.
func (e *evidence) freedState(at, freed time.Time) addressState {
	for _, p := range e.pools {
		if at.Before(freed.Add(p.Cooldown())) {
			return addressCooling
		}
	}
	return addressFree
}

// whoText returns a paragraph per domain.
func whoText(v whoView, now time.Time) string {
	var b strings.Builder
	if len(v.Domains) == 0 {
		fmt.Fprintf(&b, "No pool has %s in its ranges, and no block or PodAttachment knows it.\n", v.Address)
	}
	for i, d := range v.Domains {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(d.text(v, now))
	}
	for _, name := range v.UnreadPools {
		fmt.Fprintf(&b, "\nPool %s cannot be read and may have the address: see fairlead pools %s\n", name, name)
	}
	return b.String()
}

func (d whoDomain) text(v whoView, now time.Time) string {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "  %-12s%s\n", name, fmt.Sprintf(format, args...))
	}
	if v.At == nil {
		fmt.Fprintf(&b, "%s in domain %s is %s\n", v.Address, d.Domain, d.State.words())
	} else {
		fmt.Fprintf(&b, "%s in domain %s, at %s: %s\n", v.Address, d.Domain, v.At.Format(time.RFC3339), d.State.words())
	}
	if d.Holder != nil {
		line("holder", "%s", d.Holder)
	}
	if d.Second != nil {
		line("and", "%s, to which its virtual machine migrates", d.Second)
	}
	if d.Claim != "" {
		line("claim", "%s", d.Claim)
	}
	if d.Since != nil {
		line("since", "%s (%s ago)", d.Since.Format(time.RFC3339), output.Age(d.Since, now))
	}
	if d.Until != nil {
		line("until", "%s", d.Until.Format(time.RFC3339))
	}
	for _, h := range d.Former {
		line("before", "%s, from %s to %s", h, h.Since.Format(time.RFC3339), h.Until.Format(time.RFC3339))
	}
	for _, p := range d.Pools {
		if p.Withheld != "" {
			line("pool", "%s, which never hands it out: %s", p.Name, p.Withheld)
		} else {
			line("pool", "%s", p.Name)
		}
	}
	for _, r := range d.Reservations {
		line("reserved by", "IPReservation %s", r)
	}
	for _, r := range d.Records {
		line("record", "PodAttachment %s", r)
	}
	if d.Note != "" {
		line("note", "%s", d.Note)
	}
	return b.String()
}

// String names a holder for people.
func (h *holderView) String() string {
	return fmt.Sprintf("pod %s/%s, interface %s, on node %s (uid %s)", h.Namespace, h.Pod, h.Interface, h.Node, h.UID)
}

// words returns a state as the end of a sentence that begins with the address.
func (s addressState) words() string {
	switch s {
	case addressHeld:
		return "held for a claim"
	case addressWithheld:
		return "never handed out"
	case addressDamaged:
		return "withheld: its record is damaged"
	case addressOutside:
		return "outside every pool"
	default:
		return strings.ToLower(string(s))
	}
}
