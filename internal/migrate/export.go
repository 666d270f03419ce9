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

// Export lists the objects to write so that whereabouts continues from the state of
// Fairlead. It is empty if they are all written.
type Export struct {
	// Pools of whereabouts to create or update, with all their entries.
	Pools []Pool
	// Reservations to create or update.
	Reservations []Reservation
	// Delete lists reservations of addresses that have been released since the migration.
	Delete []Reservation
	// Given lists the addresses that Fairlead has given to pods.
	Given    []Given
	Findings []Finding
}

// Given is an address with its holder.
type Given struct {
	Address
	Holder ipam.Holder
}

// Done reports whether nothing is left to write.
func (e *Export) Done() bool {
	return len(e.Pools) == 0 && len(e.Reservations) == 0 && len(e.Delete) == 0
}

// Findings of a rollback.
const (
	// NoPool: no range of whereabouts contains the address. It is reserved if the network
	// has reservations.
	NoPool Kind = "NoPool"
	// NotWritten: whereabouts could not read an entry for the address. It is reserved if
	// the network has reservations.
	NotWritten Kind = "NotWritten"
	// NoContainer: the container ID is unknown, so whereabouts' DEL will not find the
	// entry. Its reconciler will.
	NoContainer Kind = "NoContainer"
)

// exporter holds the state, indexed for MakeExport.
type exporter struct {
	State
	spaces  map[string]string                   // network_name by domain
	records map[pod.Key]*v1alpha1.PodAttachment // by the holder of their addresses
	pools   map[string]*Pool                    // by name, with the new entries
	was     map[string]Pool
	space   map[string]string // network_name by name of pool
	// namespace of new objects.
	namespace string
	// live has the addresses that running pods use.
	live *planner
	out  *Export
}

// MakeExport plans a rollback. It changes an entry of whereabouts if Fairlead has given
// the address to another pod. It removes an entry if the address was released and no
// running pod uses it: all addresses are released once a rollback is done. It leaves
// entries that were never imported. New pools and reservations are created in namespace.
// An error means that a block or pool of Fairlead cannot be parsed.
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

// slotsOf returns the slots of the domains that stand for networks of whereabouts.
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

// exportPools updates the entries of the pools from the slots.
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
			if e.outdated(space, a, pool.Allocations[offset], slots) {
				delete(pool.Allocations, offset)
			}
		}
	}
	for _, at := range slices.SortedFunc(maps.Keys(slots), compareAddresses) {
		slot := slots[at]
		if slot.State != ipam.Taken || !e.ofWhereabouts(at, slot) {
			continue
		}
		e.out.Given = append(e.out.Given, Given{at, slot.Holder})
		e.exportSlot(at, slot)
	}
}

// outdated reports whether the address of an entry was released or given to another pod.
// Several domains may stand for one space.
func (e *exporter) outdated(space string, a netip.Addr, entry Allocation, slots map[Address]ipam.Slot) bool {
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

// domains yields the domains that stand for a space.
func (e *exporter) domains(space string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for domain, of := range e.spaces {
			if of == space && !yield(domain) {
				return
			}
		}
	}
}

// inSpace reports whether an address is of a space.
func (e *exporter) inSpace(at Address, space string) bool {
	s, ok := e.spaces[at.Domain]
	return ok && s == space
}

// takenIn reports whether an address is taken in any domain of a space.
func (e *exporter) takenIn(space string, a netip.Addr, slots map[Address]ipam.Slot) bool {
	for domain := range e.domains(space) {
		if slots[Address{domain, a}].State == ipam.Taken {
			return true
		}
	}
	return false
}

// free reports whether an address was released and no running pod uses it.
func (e *exporter) free(at Address, slot ipam.Slot) bool {
	return slot.State == ipam.Freed && len(e.live.users(at)) == 0
}

// recordOf returns the record of a taken slot's holder, or nil.
func (e *exporter) recordOf(slot ipam.Slot) *v1alpha1.PodAttachment {
	return e.records[pod.Key{Namespace: slot.Holder.Namespace, Name: slot.Holder.Pod, UID: types.UID(slot.Holder.PodUID)}]
}

// ofWhereabouts reports whether a taken slot is of a network of whereabouts. The domain
// may also have other networks.
func (e *exporter) ofWhereabouts(at Address, slot ipam.Slot) bool {
	if record := e.recordOf(slot); record != nil {
		for _, i := range record.Spec.Interfaces {
			if i.Name == slot.Holder.Interface && i.Binding.AddressOnly == nil {
				return false
			}
		}
	}
	return e.rangeOf(at, slot) != netip.Prefix{} || e.recorded(at)
}

// recorded reports whether a pool of whereabouts had an entry for the address.
func (e *exporter) recorded(at Address) bool {
	for name, pool := range e.was {
		r, err := netip.ParsePrefix(pool.Range)
		if space, ok := e.space[name]; err != nil || !ok || !e.inSpace(at, space) {
			continue
		}
		if offset, ok := offsetOf(r.Addr(), at.Addr); ok && pool.Allocations[offset] != (Allocation{}) {
			return true
		}
	}
	return false
}

// same reports whether an entry is of the slot's holder.
func (e *exporter) same(slot ipam.Slot, a Allocation) bool {
	return a == e.entry(slot, a)
}

// entry returns whereabouts' entry for a taken slot. It keeps the container ID of the
// previous entry if the node has not reported one.
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

// rangeOf returns the range from which whereabouts would give the slot's address: a range
// of the pod's network, otherwise any range of the domain, otherwise the zero Prefix.
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

// poolFor returns the pool for the address: the pool of a node's slice, otherwise of the
// range, otherwise any pool of the space that contains it; nil if there is none.
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
		if space, ok := e.space[name]; ok && err == nil && e.inSpace(at, space) && r.Contains(at.Addr) {
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
	for name, pool := range e.pools { // any of the pools may already have it
		r, err := netip.ParsePrefix(pool.Range)
		if space, ok := e.space[name]; err != nil || !ok || !e.inSpace(at, space) {
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
	r, _ := netip.ParsePrefix(pool.Range) // parsed before
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

// exportReservations updates the reservations from the slots.
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
		case slot.State == ipam.Taken && e.ofWhereabouts(at, slot) && (ok || overlapping[at.Domain]):
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
