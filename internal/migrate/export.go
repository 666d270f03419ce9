package migrate

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/pod"
)

// Export is what has to be written for whereabouts to go on from where
// Fairlead is. It is empty when everything is there.
type Export struct {
	// Pools of whereabouts to create or to change, with all their entries.
	Pools []Pool
	// Reservations to create or to change.
	Reservations []Reservation
	// Delete are reservations of addresses that were given back since.
	Delete []Reservation
	// Given are the addresses that Fairlead has given to pods.
	Given    []Given
	Findings []Finding
}

// Given is an address with its holder.
type Given struct {
	Address
	Holder ipam.Holder
}

// Done says whether nothing is left to write.
func (e *Export) Done() bool {
	return len(e.Pools) == 0 && len(e.Reservations) == 0 && len(e.Delete) == 0
}

// Findings of a rollback.
const (
	// NoPool: the address lies in no range of whereabouts'. It is reserved where
	// the network has reservations.
	NoPool Kind = "NoPool"
	// NotWritten: whereabouts cannot read an entry for the address. It is
	// reserved where the network has reservations.
	NotWritten Kind = "NotWritten"
	// NoContainer: the container ID is not known, so whereabouts' DEL will not
	// find the entry. Its reconciler will.
	NoContainer Kind = "NoContainer"
)

// exporter has the state by what it is asked for.
type exporter struct {
	State
	spaces  map[string]string                   // network_name by domain
	records map[pod.Key]*v1alpha1.PodAttachment // by whose their addresses are
	pools   map[string]*Pool                    // by name, as they are to be
	was     map[string]Pool
	space   map[string]string // network_name by name of pool
	// namespace of what is made.
	namespace string
	// live knows which addresses running pods use.
	live *planner
	out  *Export
}

// MakeExport plans a rollback. An entry of whereabouts' is changed where
// Fairlead has given the address to another pod, and removed where it was given
// back and no running pod uses it, as all of them do once a rollback is done;
// what was never imported is left as it is. Namespace is where pools and
// reservations are made.
func MakeExport(s State, namespace string) (*Export, error) {
	live, err := newPlanner(s, false)
	if err != nil {
		return nil, err
	}
	e := &exporter{
		State: s, live: live, namespace: namespace,
		spaces:  map[string]string{},
		records: map[pod.Key]*v1alpha1.PodAttachment{},
		pools:   map[string]*Pool{}, was: map[string]Pool{}, space: map[string]string{},
		out: &Export{Findings: []Finding{}},
	}
	for i := range s.Records {
		e.records[pod.HolderOf(&s.Records[i])] = &s.Records[i]
	}
	for _, n := range s.Networks {
		e.spaces[n.Domain] = n.Space
		if n.Own != "" {
			e.spaces[n.Own] = n.Space
		}
	}
	for _, p := range s.Pools {
		e.was[p.Name] = p
		p.Allocations = maps.Clone(p.Allocations)
		e.pools[p.Name] = &p
		if space, ok := spaceOf(p, s.Slices); ok {
			e.spaces[s.DomainOf(space)], e.space[p.Name] = space, space
		}
	}
	slots, err := slotsOf(s.Blocks, e.spaces)
	if err != nil {
		return nil, err
	}
	e.exportPools(slots)
	e.exportReservations(slots)
	for _, name := range slices.Sorted(maps.Keys(e.pools)) {
		if was, ok := e.was[name]; !ok || !maps.Equal(was.Allocations, e.pools[name].Allocations) {
			e.out.Pools = append(e.out.Pools, *e.pools[name])
		}
	}
	return e.out, nil
}

// slotsOf are the slots of the domains that whereabouts had.
func slotsOf(blocks []v1alpha1.IPBlock, domains map[string]string) (map[Address]ipam.Slot, error) {
	out := map[Address]ipam.Slot{}
	for i := range blocks {
		if _, ok := domains[blocks[i].Spec.Domain]; !ok {
			continue
		}
		b, err := readBlock(&blocks[i])
		if err != nil {
			return nil, err
		}
		for s := range b.Slots() {
			out[Address{blocks[i].Spec.Domain, s.Addr}] = s
		}
	}
	return out, nil
}

// exportPools brings the entries of the pools to what the slots say.
func (e *exporter) exportPools(slots map[Address]ipam.Slot) {
	for name, pool := range e.pools {
		r, err := netip.ParsePrefix(pool.Range)
		space, known := e.space[name]
		if err != nil || !known {
			continue
		}
		for _, offset := range slices.Collect(maps.Keys(pool.Allocations)) {
			a, ok := atOffset(r.Addr(), offset)
			if !ok {
				continue
			}
			if e.over(space, a, pool.Allocations[offset], slots) {
				delete(pool.Allocations, offset)
			}
		}
	}
	for _, at := range slices.SortedFunc(maps.Keys(slots), compareAddresses) {
		slot := slots[at]
		if slot.State != ipam.Taken || !e.ours(at, slot) {
			continue
		}
		e.out.Given = append(e.out.Given, Given{at, slot.Holder})
		e.exportSlot(at, slot)
	}
}

// over says whether an entry does not hold any more: its address was given back, or to
// another pod. Networks may have a space in several domains.
func (e *exporter) over(space string, a netip.Addr, entry Allocation, slots map[Address]ipam.Slot) bool {
	over := false
	for domain := range e.domains(space) {
		at := Address{domain, a}
		slot, ok := slots[at]
		switch {
		case ok && slot.State == ipam.Taken && e.same(slot, entry):
			return false
		case ok && (slot.State == ipam.Taken || e.free(at, slot)):
			over = true
		}
	}
	return over
}

// domains are those that a space has.
func (e *exporter) domains(space string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for domain, of := range e.spaces {
			if of == space && !yield(domain) {
				return
			}
		}
	}
}

// of says whether an address is of a space.
func (e *exporter) of(at Address, space string) bool {
	s, ok := e.spaces[at.Domain]
	return ok && s == space
}

// takenIn says whether somebody has an address in any domain of a space.
func (e *exporter) takenIn(space string, a netip.Addr, slots map[Address]ipam.Slot) bool {
	for domain := range e.domains(space) {
		if slots[Address{domain, a}].State == ipam.Taken {
			return true
		}
	}
	return false
}

// free says whether an address was given back.
func (e *exporter) free(at Address, slot ipam.Slot) bool {
	return slot.State == ipam.Freed && len(e.live.users(at)) == 0
}

// recordOf is the record of a taken slot's holder, or nil.
func (e *exporter) recordOf(slot ipam.Slot) *v1alpha1.PodAttachment {
	return e.records[pod.Key{Namespace: slot.Holder.Namespace, Name: slot.Holder.Pod, UID: types.UID(slot.Holder.PodUID)}]
}

// ours says whether a taken slot is of a network of whereabouts': the domain
// may have others.
func (e *exporter) ours(at Address, slot ipam.Slot) bool {
	if record := e.recordOf(slot); record != nil {
		for _, i := range record.Spec.Interfaces {
			if i.Name == slot.Holder.Interface && i.Binding.AddressOnly == nil {
				return false
			}
		}
	}
	return e.rangeOf(at, slot) != netip.Prefix{} || e.recorded(at)
}

// recorded says whether a pool of whereabouts has an entry for the address.
func (e *exporter) recorded(at Address) bool {
	for name, pool := range e.was {
		r, err := netip.ParsePrefix(pool.Range)
		if space, ok := e.space[name]; err != nil || !ok || !e.of(at, space) {
			continue
		}
		if offset, ok := offsetOf(r.Addr(), at.Addr); ok && pool.Allocations[offset] != (Allocation{}) {
			return true
		}
	}
	return false
}

// same says whether an entry is of the slot's holder.
func (e *exporter) same(slot ipam.Slot, a Allocation) bool {
	return a == e.entry(slot, a)
}

// entry is what whereabouts has to know of a taken slot. The container ID that
// it has stays where the node has told no other.
func (e *exporter) entry(slot ipam.Slot, was Allocation) Allocation {
	out := Allocation{PodRef: slot.Holder.Namespace + "/" + slot.Holder.Pod, Interface: slot.Holder.Interface}
	if record := e.recordOf(slot); record != nil && record.Status.Sandbox != nil {
		out.ContainerID = record.Status.Sandbox.ID
	}
	if out.ContainerID == "" && was.PodRef == out.PodRef && was.Interface == out.Interface {
		out.ContainerID = was.ContainerID
	}
	return out
}

// rangeOf is the range that whereabouts would give the slot's address from: one
// of its pod's network, else any of the domain.
func (e *exporter) rangeOf(at Address, slot ipam.Slot) netip.Prefix {
	network := ""
	if record := e.recordOf(slot); record != nil {
		for _, i := range record.Spec.Interfaces {
			if i.Name == slot.Holder.Interface {
				network = i.Network
			}
		}
	}
	var found netip.Prefix
	for _, n := range e.Networks {
		for _, r := range n.Ranges {
			if n.in(at.Domain) && r.Contains(at.Addr) && (found == netip.Prefix{} || n.Name == network) {
				found = r
			}
		}
	}
	return found
}

// poolFor is the pool that has to have the address: that of a node's slice, of
// the range, or any other of the space that has it.
func (e *exporter) poolFor(at Address, slot ipam.Slot) *Pool {
	r := e.rangeOf(at, slot)
	name := PoolName(e.spaces[at.Domain], "", r)
	for _, slices := range e.Slices {
		if slices.Range != r.String() {
			continue
		}
		for node, part := range slices.Slices {
			if p, err := netip.ParsePrefix(part); err == nil && p.Contains(at.Addr) {
				r, name = p, PoolName(e.spaces[at.Domain], node, p)
			}
		}
	}
	if pool := e.pools[name]; pool != nil {
		return pool
	}
	if r.IsValid() {
		pool := &Pool{Namespace: e.namespace, Name: name, Range: r.String(), Allocations: map[string]Allocation{}}
		e.pools[name], e.space[name] = pool, e.spaces[at.Domain]
		return pool
	}
	for _, name := range slices.Sorted(maps.Keys(e.pools)) {
		r, err := netip.ParsePrefix(e.pools[name].Range)
		if space, ok := e.space[name]; ok && err == nil && e.of(at, space) && r.Contains(at.Addr) {
			return e.pools[name]
		}
	}
	return nil
}

func (e *exporter) note(kind Kind, at Address, format string, args ...any) {
	e.out.Findings = append(e.out.Findings, Finding{
		Kind: kind, Outcome: Reported, Domain: at.Domain, Address: at.Addr.String(), Text: fmt.Sprintf(format, args...),
	})
}

// exportSlot writes the entry of a pod's address.
func (e *exporter) exportSlot(at Address, slot ipam.Slot) {
	for name, pool := range e.pools { // it may be there already, in whichever pool
		r, err := netip.ParsePrefix(pool.Range)
		if space, ok := e.space[name]; err != nil || !ok || !e.of(at, space) {
			continue
		}
		if offset, ok := offsetOf(r.Addr(), at.Addr); ok && pool.Allocations[offset] != (Allocation{}) {
			if has := pool.Allocations[offset].PodRef; has != slot.Holder.Namespace+"/"+slot.Holder.Pod {
				e.note(NotWritten, at, "%s has it, and so has %s on a network of another namespace, which whereabouts cannot tell apart", slot.Holder, has)
			}
			return
		}
	}
	pool := e.poolFor(at, slot)
	if pool == nil {
		e.note(NoPool, at, "%s has it, and no range of whereabouts has", slot.Holder)
		return
	}
	r, _ := netip.ParsePrefix(pool.Range) // it was read before
	offset, ok := offsetOf(r.Addr(), at.Addr)
	if !ok {
		e.note(NotWritten, at, "%s has it, and whereabouts cannot read its offset in %s", slot.Holder, pool.Range)
		return
	}
	entry := e.entry(slot, e.was[pool.Name].Allocations[offset])
	if entry.ContainerID == "" {
		e.note(NoContainer, at, "the container ID of %s is not known", slot.Holder)
	}
	pool.Allocations[offset] = entry
}

// exportReservations brings the reservations to what the slots say.
func (e *exporter) exportReservations(slots map[Address]ipam.Slot) {
	overlapping := map[string]bool{}
	for _, n := range e.Networks {
		overlapping[n.Domain] = overlapping[n.Domain] || n.Overlapping
		overlapping[n.Own] = overlapping[n.Own] || n.Overlapping
	}
	there := map[string]Reservation{}
	for _, r := range e.Reservations {
		there[r.Name] = r
	}
	for _, at := range slices.SortedFunc(maps.Keys(slots), compareAddresses) {
		slot, name := slots[at], ReservationName(e.spaces[at.Domain], at.Addr)
		has, ok := there[name]
		switch {
		case ok && e.free(at, slot) && !e.takenIn(e.spaces[at.Domain], at.Addr, slots):
			e.out.Delete = append(e.out.Delete, has)
		case slot.State == ipam.Taken && e.ours(at, slot) && (ok || overlapping[at.Domain]):
			want := Reservation{
				Namespace: cmp.Or(has.Namespace, e.namespace), Name: name,
				PodRef: slot.Holder.Namespace + "/" + slot.Holder.Pod, Interface: slot.Holder.Interface,
			}
			if want != has {
				e.out.Reservations = append(e.out.Reservations, want)
			}
		}
	}
}
