package pool

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// maxSlots is the number of ports of one PortPool, maxObjects that of PortPools of one key.
const (
	maxSlots   = 64
	maxObjects = 8
)

type (
	// Port is a port in the cloud.
	Port = v1alpha1.PortPoolPort
	// Holder is the interface of a pod that has a port. All but Network and Default is its
	// identity.
	Holder = v1alpha1.PortPoolPod

	slot  = v1alpha1.PortPoolSlot
	state = v1alpha1.PortState
)

const (
	ready   = v1alpha1.PortReady
	cooling = v1alpha1.PortCooling
	stale   = v1alpha1.PortStale
	used    = v1alpha1.PortUsed
	leaving = v1alpha1.PortLeaving
)

// identity of a holder.
type identity struct {
	uid                       types.UID
	namespace, pod, ifaceName string
}

func identityOf(h Holder) identity { return identity{h.UID, h.Namespace, h.Name, h.Interface} }

// heldBy returns the index of the slot of a holder; -1 if it has none.
func heldBy(slots []slot, h Holder) int {
	return slices.IndexFunc(slots, func(s slot) bool { return s.Pod != nil && identityOf(*s.Pod) == identityOf(h) })
}

// in returns the index of the first slot in a state; -1 if there is none.
func in(slots []slot, s state) int {
	return slices.IndexFunc(slots, func(have slot) bool { return have.State == s })
}

// countOf returns the number of slots in each state.
func countOf(slots []slot) map[state]int {
	out := map[state]int{}
	for _, s := range slots {
		out[s.State]++
	}
	return out
}

// move gives a slot another state, without a pod, and puts it behind all others.
func move(slots []slot, n int, to state) []slot {
	s := slots[n]
	s.State, s.Pod = to, nil
	return append(slices.Delete(slots, n, n+1), s)
}

// newSlot returns a port in a state, or as that of the pod whose record names it.
func newSlot(n int, port Port, as state, recorded map[string]Holder) slot {
	s := slot{Slot: int32(n), State: as, PortPoolPort: port} //nolint:gosec // below maxSlots
	if h, ok := recorded[port.ID]; ok {
		s.State, s.Pod = used, &h
	}
	return s
}

// Held is a port that a pod has.
type Held struct {
	Port
	Holder
	Key     Key
	Network v1alpha1.PortPoolNetwork
}

// held returns the port of a slot, on the network of its PortPool.
func (k Key) held(s slot, network *v1alpha1.PortPoolNetwork) Held {
	out := Held{Port: s.PortPoolPort, Key: k}
	if s.Pod != nil {
		out.Holder = *s.Pod
	}
	if network != nil {
		out.Network = *network
	}
	return out
}

// group are the PortPools of a key at one moment, in the order of their numbers.
type group []entry

// count returns the number of slots in each state.
func (g group) count() map[state]int {
	out := map[state]int{}
	for _, e := range g {
		for s, n := range countOf(e.slots()) {
			out[s] += n
		}
	}
	return out
}

// desired returns the number of ready ports that people ask for; -1 if they do not.
func (g group) desired(k Key) int {
	if o := g.named(k, k.name(0)).object; o != nil && o.Spec.Desired != nil {
		return int(*o.Spec.Desired)
	}
	return -1
}

// unused reports whether there are ports that no pod has, or may be when a write is done:
// those that leave or rest make room for others, or serve the next pod.
func (g group) unused() bool {
	return slices.ContainsFunc(g, func(e entry) bool {
		return e.pending > 0 || slices.ContainsFunc(e.slots(), func(s slot) bool { return s.State != used })
	})
}

// isEmpty reports whether there is no port in any state.
func (g group) isEmpty() bool {
	return !slices.ContainsFunc(g, func(e entry) bool { return len(e.slots()) > 0 })
}

// named returns the PortPool with a name; an empty one if it is not known.
func (g group) named(k Key, name string) entry {
	if n := slices.IndexFunc(g, func(e entry) bool { return e.name == name }); n >= 0 {
		return g[n]
	}
	return entry{key: k, name: name}
}
