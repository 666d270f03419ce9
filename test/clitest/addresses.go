package clitest

import (
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli/kube"
	"fairlead.dev/fairlead/internal/ipam"
)

func millis(d time.Duration) int64 { return Now.Add(-d).UnixMilli() }

// Taken returns the slot of an address that a pod has; see internal/ipam for the form.
func Taken(ordinal int, p corev1.Pod, since time.Duration) string {
	return fmt.Sprintf("%d A 1 %d %s %s/%s/eth0 %s", ordinal, millis(since), p.UID, p.Namespace, p.Name, p.Spec.NodeName)
}

func freed(ordinal int, last corev1.Pod, from, until time.Duration) string {
	return fmt.Sprintf("%d F 2 %d %s %s/%s/eth0 %s %d", ordinal, millis(until), last.UID, last.Namespace, last.Name, last.Spec.NodeName, millis(from))
}

func held(ordinal int, claim string, since time.Duration) string {
	return fmt.Sprintf("%d H 2 %d %s", ordinal, millis(since), claim)
}

// after adds a past holding of a pod to a slot.
func after(slot string, p corev1.Pod, from, until time.Duration) string {
	return fmt.Sprintf("%s %.8s %s/%s/eth0 %s %d %d", slot, p.UID, p.Namespace, p.Name, p.Spec.NodeName, millis(from), millis(until))
}

// BlockOf returns a block of domain default.
func BlockOf(cidr, node string, slots ...string) v1alpha1.IPBlock {
	return v1alpha1.IPBlock{
		ObjectMeta: metav1.ObjectMeta{Name: ipam.BlockName("default", netip.MustParsePrefix(cidr))},
		Spec:       v1alpha1.IPBlockSpec{Domain: "default", CIDR: cidr, Node: node, Slots: slots},
	}
}

// Ranges sets the ranges of a pool.
func Ranges(ranges ...string) func(*v1alpha1.IPPool) {
	return func(p *v1alpha1.IPPool) { p.Spec.Ranges = ranges }
}

// Addressed returns a cluster with an address in every state.
func Addressed() kube.Snapshot {
	snap := Quiet()
	a, b, old := snap.Pods[0], snap.Pods[1], PodOf("cart-9", "node-2")
	again := after(after(Taken(2, a, time.Hour), old, 9*time.Hour, 2*time.Hour), PodOf("cart-8", "node-1"), 20*time.Hour, 10*time.Hour)
	lan := PoolOf("lan", Ranges("192.168.4.0/24", "192.168.9.0/24"), func(p *v1alpha1.IPPool) {
		p.Spec.Gateways = []string{"192.168.4.1"}
		p.Spec.Excludes = []string{"192.168.4.8-192.168.4.15"}
	})
	snap.Pools = append(snap.Pools, lan, PoolOf("small", Ranges("192.168.4.16/29")), PoolOf("lab", Ranges("192.168.4.0/24"), func(p *v1alpha1.IPPool) { p.Spec.Domain = "lab" }))
	snap.Pools[0].Spec.Ranges = []string{"10.244.0.0/16"}
	snap.Blocks = []v1alpha1.IPBlock{
		BlockOf("192.168.4.64/26", "", freed(0, old, time.Hour, time.Second), freed(1, old, time.Hour, time.Minute), again, held(6, "shop/cart-3", 5*time.Minute), after(held(7, "shop/cart-4", time.Hour), old, 3*time.Hour, time.Hour)),
		BlockOf("192.168.4.0/26", "", Taken(2, a, 10*time.Minute), Taken(3, b, 10*time.Minute), Taken(9, old, time.Hour), "5 A garbled"),
		BlockOf("10.244.248.64/26", "node-1", Taken(1, a, 10*time.Minute)),
	}
	snap.Reservations = []v1alpha1.IPReservation{{
		ObjectMeta: metav1.ObjectMeta{Name: "printers"},
		Spec:       v1alpha1.IPReservationSpec{Domain: "default", Ranges: []string{"192.168.4.48/29", "192.168.9.3"}, Reason: "printers on the wall"},
	}}
	for i := range snap.Attachments {
		snap.Attachments[i].Spec.Interfaces[0].Domain = "default"
		snap.Attachments[i].Spec.Interfaces[0].Pool = "default"
	}
	return snap
}

// Sound returns a cluster in which every slot is explained.
func Sound() kube.Snapshot {
	snap := Addressed()
	snap.Pools, snap.Reservations = snap.Pools[:1], nil
	Counts(65536, 2)(&snap.Pools[0])
	snap.Pools[0].Status.Cooling, snap.Pools[0].Status.Free = 1, 65533
	snap.Blocks = []v1alpha1.IPBlock{
		BlockOf("10.244.248.64/26", "node-1", Taken(1, snap.Pods[0], 10*time.Minute)),
		BlockOf("10.244.21.128/26", "node-2", Taken(2, snap.Pods[1], 10*time.Minute), freed(5, PodOf("cart-9", "node-2"), time.Hour, time.Second)),
	}
	return snap
}

// Damaged returns a cluster with two slots that nothing explains.
func Damaged() kube.Snapshot {
	snap := Sound()
	Counts(65536, 3)(&snap.Pools[0])
	snap.Blocks[0].Spec.Slots = append(snap.Blocks[0].Spec.Slots, "5 A garbled")
	snap.Pools[0].Status.Cooling, snap.Pools[0].Status.Reserved, snap.Pools[0].Status.Free = 0, 1, 65532
	snap.Blocks[1].Spec.Slots[1] = Taken(9, PodOf("cart-9", "node-2"), time.Hour)
	return snap
}
