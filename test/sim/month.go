package sim

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
)

// This file simulates a month: nodes join and leave, pods come in bursts and go, and a
// tenant binds pods to nodes that never existed and asks for an address in each block. At
// the end the pool is as free as on the first day.

// monthly are the pools of TestMonth. They have 16 blocks of IPv4, and a node may have two
// blocks.
var monthly = shape{
	fallback:  []v1alpha1.IPPoolSpec{{Ranges: []string{"10.1.0.0/22", "fd00:1::/64"}, Placement: v1alpha1.PlacementPerNode, MaxBlocksPerNode: 2}},
	unordered: true,
}

const (
	// days is the length; maxNodes is how many nodes exist at most.
	days, maxNodes = 30, 8
	// idle is how long a node may keep an unused block, including the time until the
	// leader has seen that.
	idle = 10 * time.Minute
)

// month simulates the month. Each day has a burst of pods, and hours in which little
// happens.
func (w *simulation) month() {
	for day := range days {
		w.replaceMachine(day)
		lives := w.stats.Lives + w.cfg.Lives/days
		for steps := 0; w.stats.Lives < lives && steps < 3000 && w.failed == nil; steps++ {
			w.step()
		}
		w.passHours(22 * time.Hour)
		if w.failed != nil {
			return
		}
	}
}

// replaceMachine scraps a random machine at times, and adds a new one.
func (w *simulation) replaceMachine(day int) {
	there := slices.DeleteFunc(slices.Clone(w.machines), func(m *machine) bool { return m.scrapped })
	if len(there) > 2 && w.rng.IntN(2) == 0 {
		m := there[w.rng.IntN(len(there))]
		w.note("%s is scrapped", m.name)
		m.off()
		m.scrapped = true
		if _, err := w.api.get(m.key()); err == nil {
			w.must(nil, w.api.remove(m.key(), nil))
		}
	}
	if len(there) < maxNodes {
		w.newMachine(fmt.Sprintf("node-of-%d", day))
	}
}

// passHours lets hours pass in which little happens.
func (w *simulation) passHours(d time.Duration) {
	for end := w.now.Add(d); w.now.Before(end) && w.failed == nil; {
		const pause = 20 * time.Minute
		<-time.After(pause)
		w.untilIdle()
		w.mu.Lock()
		w.now = w.now.Add(pause)
		w.mu.Unlock()
		for range 12 {
			w.stepLeader()
			if len(w.parked) > 0 {
				w.answer(0, w.outcome(w.parked[0]))
			}
			for _, m := range w.machines {
				m.tick()
			}
			w.tick()
			w.collect()
			w.check()
		}
		w.checkCounts()
	}
}

// addUnknownNode binds a pod to a node that never existed, or requests a random address.
func (w *simulation) addUnknownNode(p *corev1.Pod) {
	if w.rng.IntN(3) == 0 {
		p.Spec.NodeName = fmt.Sprintf("ghost-%d", w.rng.IntN(1000))
		return
	}
	n := w.rng.IntN(1024)
	p.Annotations = map[string]string{v1alpha1.AnnotationAddresses: netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)}).String()}
}

// checkBound checks that no node has more than twice its allowed blocks: two leaders at
// once do not know of each other's blocks, and may each give it as many as allowed.
func (w *simulation) checkBound(old, obj client.Object) {
	b, ok := obj.(*v1alpha1.IPBlock)
	if old != nil || !ok || b.Spec.Node == "" {
		return
	}
	family := func(b *v1alpha1.IPBlock) ipam.Family { return ipam.FamilyOf(netip.MustParsePrefix(b.Spec.CIDR).Addr()) }
	n := 0
	for _, o := range w.api.list(kindBlock) {
		if o := o.(*v1alpha1.IPBlock); o.Spec.Node == b.Spec.Node && family(o) == family(b) {
			n++
		}
	}
	for _, p := range w.pools.all {
		if p.PerNode() && n > 2*p.MaxBlocksPerNode() {
			w.fail("the bound", "node %s has %d blocks, and pool %s allows %d", b.Spec.Node, n, p.Name(), p.MaxBlocksPerNode())
		}
	}
}

// checkPoolIsFree checks the end of a month, when all pods are gone: each node has one
// block of each family at most, its NodeNetwork names the same blocks, and every address
// is free.
func (w *simulation) checkPoolIsFree() {
	for end := w.now.Add(idle); w.now.Before(end) && w.failed == nil; {
		w.round()
		w.tick()
	}
	blocks := map[string][]string{}
	for _, o := range w.api.list(kindBlock) {
		b := o.(*v1alpha1.IPBlock)
		blocks[b.Spec.Node] = append(blocks[b.Spec.Node], b.Spec.CIDR)
		if _, err := w.api.get(key{kindNode, client.ObjectKey{Name: b.Spec.Node}}); err != nil {
			w.fail("I2", "block %s is routed to node %s, which is gone", b.Name, b.Spec.Node)
		}
	}
	for node, list := range blocks {
		v4 := slices.DeleteFunc(slices.Clone(list), func(s string) bool { return netip.MustParsePrefix(s).Addr().Is6() })
		if len(v4) > 1 || len(list)-len(v4) > 1 {
			w.fail("I2", "all pods are gone for %s, and node %s has the blocks %v", idle, node, list)
		}
	}
	for _, o := range w.api.list(kindNetwork) {
		if have, want := o.(*v1alpha1.NodeNetwork).Spec.Blocks, blocks[o.GetName()]; len(have)+len(want) > 0 && !slices.Equal(slices.Sorted(slices.Values(have)), slices.Sorted(slices.Values(want))) {
			w.fail("I2", "the NodeNetwork of %s names %v, and there are %v", o.GetName(), have, want)
		}
	}
	for _, l := range w.leaders {
		for _, p := range w.pools.all {
			if c := l.counts(p); c.Free != c.Usable {
				w.fail("I7", "all pods are gone, and leader %d counts %s in pool %s", l.id, c, p.Name())
			}
		}
	}
}

// owned reports whether the owner of an object exists, or it has none.
func (w *simulation) owned(o client.Object) bool {
	for _, ref := range o.GetOwnerReferences() {
		n, err := w.api.get(key{kindNode, client.ObjectKey{Name: ref.Name}})
		return err == nil && n.GetUID() == ref.UID
	}
	return true
}
