package cli

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

func millis(d time.Duration) int64 { return now.Add(-d).UnixMilli() }

// taken, freed and held are slots of a block; see internal/ipam for the form.
func taken(ordinal int, p corev1.Pod, since time.Duration) string {
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

// blockOf returns a block of domain default.
func blockOf(cidr, node string, slots ...string) v1alpha1.IPBlock {
	return v1alpha1.IPBlock{
		ObjectMeta: metav1.ObjectMeta{Name: ipam.BlockName("default", netip.MustParsePrefix(cidr))},
		Spec:       v1alpha1.IPBlockSpec{Domain: "default", CIDR: cidr, Node: node, Slots: slots},
	}
}

func ranges(ranges ...string) func(*v1alpha1.IPPool) {
	return func(p *v1alpha1.IPPool) { p.Spec.Ranges = ranges }
}

// addressed returns a cluster with an address in every state.
func addressed() kube.Snapshot {
	snap := quiet()
	a, b, old := snap.Pods[0], snap.Pods[1], podOf("cart-9", "node-2")
	again := after(after(taken(2, a, time.Hour), old, 9*time.Hour, 2*time.Hour), podOf("cart-8", "node-1"), 20*time.Hour, 10*time.Hour)
	lan := poolOf("lan", ranges("192.168.4.0/24", "192.168.9.0/24"), func(p *v1alpha1.IPPool) {
		p.Spec.Gateways = []string{"192.168.4.1"}
		p.Spec.Excludes = []string{"192.168.4.8-192.168.4.15"}
	})
	snap.Pools = append(snap.Pools, lan, poolOf("small", ranges("192.168.4.16/29")), poolOf("lab", ranges("192.168.4.0/24"), func(p *v1alpha1.IPPool) { p.Spec.Domain = "lab" }))
	snap.Pools[0].Spec.Ranges = []string{"10.244.0.0/16"}
	snap.Blocks = []v1alpha1.IPBlock{
		blockOf("192.168.4.64/26", "", freed(0, old, time.Hour, time.Second), freed(1, old, time.Hour, time.Minute), again, held(6, "shop/cart-3", 5*time.Minute), after(held(7, "shop/cart-4", time.Hour), old, 3*time.Hour, time.Hour)),
		blockOf("192.168.4.0/26", "", taken(2, a, 10*time.Minute), taken(3, b, 10*time.Minute), taken(9, old, time.Hour), "5 A garbled"),
		blockOf("10.244.248.64/26", "node-1", taken(1, a, 10*time.Minute)),
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

// sound returns a cluster in which every slot is explained.
func sound() kube.Snapshot {
	snap := addressed()
	snap.Pools, snap.Reservations = snap.Pools[:1], nil
	counts(65536, 2)(&snap.Pools[0])
	snap.Pools[0].Status.Cooling, snap.Pools[0].Status.Free = 1, 65533
	snap.Blocks = []v1alpha1.IPBlock{
		blockOf("10.244.248.64/26", "node-1", taken(1, snap.Pods[0], 10*time.Minute)),
		blockOf("10.244.21.128/26", "node-2", taken(2, snap.Pods[1], 10*time.Minute), freed(5, podOf("cart-9", "node-2"), time.Hour, time.Second)),
	}
	return snap
}

// damaged returns a cluster with two slots that nothing explains.
func damaged() kube.Snapshot {
	snap := sound()
	counts(65536, 3)(&snap.Pools[0])
	snap.Blocks[0].Spec.Slots = append(snap.Blocks[0].Spec.Slots, "5 A garbled")
	snap.Pools[0].Status.Cooling, snap.Pools[0].Status.Reserved, snap.Pools[0].Status.Free = 0, 1, 65532
	snap.Blocks[1].Spec.Slots[1] = taken(9, podOf("cart-9", "node-2"), time.Hour)
	return snap
}

// without returns a snapshot of one pod. If change is not nil, it also has a record with
// that change.
func without(p corev1.Pod, change ...func(*v1alpha1.PodAttachment)) kube.Snapshot {
	snap := quiet()
	snap.Pods, snap.Attachments = []corev1.Pod{p}, nil
	if len(change) > 0 {
		r := recordOf(p, "10.244.248.65/32", change...)
		r.Spec.Interfaces[0].Pool, r.Spec.Interfaces[0].Domain = "default", "default"
		snap.Attachments = append(snap.Attachments, r)
	}
	return snap
}

// gone returns a snapshot without its pods.
func gone(snap kube.Snapshot) kube.Snapshot {
	snap.Pods = nil
	return snap
}

func asWritten(*v1alpha1.PodAttachment) {}

func scheduledNow(p *corev1.Pod) {
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: ago(9 * time.Minute)}}
}

func waitsForNode(a *v1alpha1.PodAttachment) {
	a.Status.Conditions = append(a.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionReleased, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonWaitingForNode, LastTransitionTime: ago(6 * time.Minute),
		Message: "node node-1 has not said that nothing holds 10.244.248.65: it has been unreachable since 2026-03-02T09:20:00Z",
	})
}

// stories returns a snapshot for every state that explain distinguishes, by name of the
// golden file.
func stories() map[string]kube.Snapshot {
	at := func(change ...func(*corev1.Pod)) corev1.Pod {
		return podOf("cart-0", "node-1", append([]func(*corev1.Pod){scheduledNow}, change...)...)
	}
	deleting := func(p *corev1.Pod) { p.DeletionTimestamp = new(ago(20 * time.Second)) }
	finished := func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }
	waits := func(a *v1alpha1.PodAttachment) { a.Spec.Interfaces[0].WaitForActive = true }
	port := func(a *v1alpha1.PodAttachment) {
		i := &a.Spec.Interfaces[0]
		i.Driver, i.Pool, i.Domain, i.WaitForActive = "neutron", "", "", true
		i.Binding = v1alpha1.Binding{OVS: &v1alpha1.OVSBinding{Bridge: "br-int", PortID: "5d8a1f6e-0000-4000-8000-000000000001"}}
		a.Status.Interfaces = []v1alpha1.InterfaceStatus{{Name: i.Name, Message: "driver neutron: port 5d8a1f6e-0000-4000-8000-000000000001 is DOWN for more than 1m0s: see that the node plugged it"}}
	}
	unplugged := func(a *v1alpha1.PodAttachment) {
		a.Status.Sandbox.State = v1alpha1.SandboxDetached
		a.Status.Sandbox.DetachedAt = new(metav1.NewMicroTime(now.Add(-5 * time.Second)))
		setReady(metav1.ConditionFalse, "Unplugged", "unplugged")(a)
	}
	lacks := setReady(metav1.ConditionFalse, v1alpha1.ReasonInterfacesMissing, "net1 (network shop/storage): no plugin has asked for the addresses")
	refused := without(at())
	refused.Events = append(refused.Events, warningAbout(at(), "NetworkExhausted", "no network yet: pool default: usable=4 free=0 allocated=4 cooling=0 held=0 reserved=0", 20*time.Second))
	overQuota := without(at())
	overQuota.Events = append(overQuota.Events, warningAbout(at(), "NetworkExhausted", "no network yet: driver neutron: exhausted: the quota of OpenStack project k8s is used up: create port: over quota: Quota exceeded for resources: ['port'] (HTTP 409 OverQuota, request req-7c1d)", 20*time.Second))
	unrouted := without(at(), notPlugged)
	unrouted.Nodes = []v1alpha1.NodeNetwork{nodeOf("node-1", notRouted)}
	otherPlugin := without(at())
	otherDefaults(&otherPlugin)
	successor := without(at())
	former := recordOf(podOf("cart-0", "node-2", func(p *corev1.Pod) { p.UID = "1111aaaa-cart-0" }), "10.244.21.130/32", deleted(7*time.Minute))
	successor.Attachments = append(successor.Attachments, former)
	return map[string]kube.Snapshot{
		"unscheduled": without(podOf("cart-0", "", func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/2 nodes are available: 2 Insufficient cpu.", LastTransitionTime: ago(time.Minute)}}
		})),
		"hostnetwork":  without(at(func(p *corev1.Pod) { p.Spec.HostNetwork = true })),
		"notserved":    without(podOf("cart-0", "node-9")),
		"norecord":     without(at()),
		"otherplugin":  otherPlugin,
		"refused":      refused,
		"overquota":    overQuota,
		"portdown":     without(at(), notPlugged, port),
		"deletednone":  without(at(deleting)),
		"unrouted":     unrouted,
		"waiting":      without(at(), notPlugged),
		"notactive":    without(at(), notPlugged, waits),
		"failing":      without(at(), notPlugged, setReady(metav1.ConditionFalse, "MTU", "eth0: the uplink's MTU is 1400 and the network's 1500")),
		"plugged":      without(at(), asWritten),
		"lacking":      without(at(), asWritten, lacks),
		"lackingends":  without(at(deleting), asWritten, lacks),
		"resandboxed":  without(at(), unplugged),
		"terminating":  without(at(deleting), asWritten),
		"finished":     without(at(finished)),
		"finishedheld": without(at(finished), asWritten),
		"gonenotasked": gone(without(at(), asWritten)),
		"releasing":    gone(without(at(), deleted(7*time.Minute))),
		"detached":     gone(without(at(), unplugged, deleted(7*time.Second))),
		"stuck":        gone(without(at(), unplugged, releaseUnavailable)),
		"lostnode":     gone(without(at(), deleted(7*time.Minute), waitsForNode)),
		"provenstuck":  gone(without(at(), releaseUnavailable)),
		"successor":    successor,
	}
}
