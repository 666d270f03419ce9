package audit_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/audit"
	"fairlead.dev/fairlead/internal/pod"
)

var now = time.Date(2026, 3, 2, 9, 30, 0, 0, time.UTC)

func podOf(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name)},
		Spec:       corev1.PodSpec{NodeName: "node-1"},
	}
}

func recordOf(name string, addresses ...string) *v1alpha1.PodAttachment {
	return pod.Record(pod.IdentityOf(podOf(name)), []v1alpha1.Interface{{Name: "eth0", Domain: "default", Addresses: addresses}})
}

func millis(ago time.Duration) int64 { return now.Add(-ago).UnixMilli() }

// taken, freed and held return slots of a block; package ipam describes the format.
func taken(ordinal int, name string, ago time.Duration) string {
	return fmt.Sprintf("%d A 1 %d uid-%s shop/%s/eth0 node-1", ordinal, millis(ago), name, name)
}

func freed(ordinal int, ago time.Duration) string {
	return fmt.Sprintf("%d F 2 %d", ordinal, millis(ago))
}

func held(ordinal int, claim string, ago time.Duration) string {
	return fmt.Sprintf("%d H 2 %d %s", ordinal, millis(ago), claim)
}

func blockOf(cidr string, slots ...string) v1alpha1.IPBlock {
	return v1alpha1.IPBlock{
		ObjectMeta: metav1.ObjectMeta{Name: ipam.BlockName("default", netip.MustParsePrefix(cidr))},
		Spec:       v1alpha1.IPBlockSpec{Domain: "default", CIDR: cidr, Slots: slots},
	}
}

// shared returns the slot of 10.0.0.1 of two launchers of a machine that migrates: pod a
// and another, for an hour.
func shared(second string) string {
	since := millis(time.Hour)
	return fmt.Sprintf("1 M 2 %d uid-a shop/a/eth0 node-1 shop/kept uid-%s shop/%s/eth0 node-2 %d", since, second, second, since)
}

// While a machine migrates, the PodAttachments of its two launchers name one address, and
// the slot names both. Any other pod with the address is a finding.
func TestMigratingMachine(t *testing.T) {
	const two, mismatch = "2 PodAttachments name the address", "a PodAttachment names the address, but its slot does not name the pod"
	for _, tt := range []struct {
		name          string
		slot          string
		second, third string
		want          []string
	}{
		{"both", shared("new"), "new", "", nil},
		{"the second has no record yet", shared("new"), "", "", nil},
		{"the second is gone and has no record", shared("gone"), "", "", []string{"I2 10.0.0.1 taken for a pod that is gone and has no PodAttachment"}},
		{"another pod's record", shared("new"), "static", "", []string{"I1 10.0.0.1 " + two, "I1 10.0.0.1 " + mismatch}},
		{"a third record", shared("new"), "new", "static", []string{"I1 10.0.0.1 3 PodAttachments name the address", "I1 10.0.0.1 " + mismatch}},
		{"the slot has one", taken(1, "a", time.Hour), "new", "", []string{"I1 10.0.0.1 " + two, "I1 10.0.0.1 " + mismatch}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := sound()
			c.Pools = nil
			slots := []string{tt.slot, taken(2, "b", time.Hour), taken(3, "leaving", time.Hour)}
			c.Blocks[0].Spec.Slots = slots
			for _, name := range []string{tt.second, tt.third} {
				if name != "" {
					c.Attachments = append(c.Attachments, recordOf(name, "10.0.0.1/24"))
				}
			}
			var got []string
			for _, f := range audit.Look(c).Findings {
				got = append(got, fmt.Sprintf("%s %s %s", f.Invariant, f.Address, f.What))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// sound returns a cluster with a slot in every state. All of them are explained.
func sound() audit.Cluster {
	mirror := podOf("static")
	mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "manifest"}
	dual := recordOf("b", "10.0.0.2/24", "fd00::2/64")
	terminating := recordOf("leaving", "10.0.0.3/24")
	terminating.DeletionTimestamp = &metav1.Time{Time: now}
	c := audit.Cluster{
		Now: now,
		Pools: []v1alpha1.IPPool{{
			ObjectMeta: metav1.ObjectMeta{Name: "lan", Generation: 1},
			Spec:       v1alpha1.IPPoolSpec{Domain: "default", Ranges: []string{"10.0.0.0/24"}},
			Status: v1alpha1.IPPoolStatus{
				Usable: 254, Free: 238, Allocated: 5, Cooling: 1, Held: 2, Reserved: 8,
				Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, ObservedGeneration: 1}},
			},
		}},
		Reservations: []v1alpha1.IPReservation{{Spec: v1alpha1.IPReservationSpec{Domain: "default", Ranges: []string{"10.0.0.16/29"}}}},
		Claims:       []v1alpha1.IPClaim{{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "kept"}}},
		Attachments:  []*v1alpha1.PodAttachment{recordOf("a", "10.0.0.1/24"), dual, terminating},
		Pods:         []*corev1.Pod{podOf("a"), podOf("b"), podOf("new"), mirror},
		Blocks: []v1alpha1.IPBlock{
			blockOf("10.0.0.0/26",
				taken(1, "a", time.Hour), taken(2, "b", time.Hour), taken(3, "leaving", time.Hour),
				taken(4, "new", time.Second), taken(5, "static", time.Second),
				freed(6, time.Second), held(7, "shop/kept", time.Hour), held(8, "shop/made-soon", time.Second)),
			blockOf("fd00::/122", taken(2, "b", time.Hour)),
		},
	}
	return c
}

func TestASoundCluster(t *testing.T) {
	want := audit.Report{Findings: []audit.Finding{}, Slots: 9, Blocks: 2, Attachments: 3}
	if diff := cmp.Diff(want, audit.Look(sound())); diff != "" {
		t.Error(diff)
	}
}

func TestFindings(t *testing.T) {
	// slot changes the i-th slot of the first block.
	slot := func(i int, text string) func(*audit.Cluster) {
		return func(c *audit.Cluster) { c.Blocks[0].Spec.Slots[i] = text }
	}
	status := func(change func(*v1alpha1.IPPoolStatus)) func(*audit.Cluster) {
		return func(c *audit.Cluster) { change(&c.Pools[0].Status) }
	}
	record := func(i int, change func(*v1alpha1.PodAttachment)) func(*audit.Cluster) {
		return func(c *audit.Cluster) { change(c.Attachments[i]) }
	}
	const mismatch = "a PodAttachment names the address, but its slot does not name the pod"
	for _, tt := range []struct {
		name   string
		change []func(*audit.Cluster)
		want   []string // invariant, address, what
	}{
		// I1
		{"slot lost", []func(*audit.Cluster){slot(0, held(40, "shop/kept", time.Hour))}, []string{"I1 10.0.0.1 " + mismatch, "I7 pool lan the status and the blocks differ in allocated", "I7 pool lan the status and the blocks differ in held"}},
		{"slot freed under a pod", []func(*audit.Cluster){slot(0, freed(1, time.Hour))}, []string{"I1 10.0.0.1 " + mismatch, "I7 pool lan the status and the blocks differ in allocated"}},
		{"slot held under a pod", []func(*audit.Cluster){slot(0, held(1, "shop/kept", time.Hour))}, []string{"I1 10.0.0.1 " + mismatch, "I7 pool lan the status and the blocks differ in allocated", "I7 pool lan the status and the blocks differ in held"}},
		{"slot of another pod", []func(*audit.Cluster){slot(0, taken(1, "new", time.Second))}, []string{"I1 10.0.0.1 " + mismatch}},
		{"slot of another interface", []func(*audit.Cluster){slot(0, fmt.Sprintf("1 A 1 %d uid-a shop/a/net1 node-1", millis(time.Second)))}, []string{"I1 10.0.0.1 " + mismatch, "I2 10.0.0.1 taken for a pod whose PodAttachment does not name the address"}},
		{"block lost", []func(*audit.Cluster){func(c *audit.Cluster) { c.Blocks = c.Blocks[:1] }}, []string{"I1 fd00::2 " + mismatch}},
		{"being released, slot freed too early", []func(*audit.Cluster){slot(2, freed(3, time.Hour))}, []string{"I1 10.0.0.3 " + mismatch, "I7 pool lan the status and the blocks differ in allocated"}},
		{"two records", []func(*audit.Cluster){func(c *audit.Cluster) { c.Attachments = append(c.Attachments, recordOf("new", "10.0.0.1/24")) }}, []string{"I1 10.0.0.1 2 PodAttachments name the address", "I1 10.0.0.1 " + mismatch, "I2 10.0.0.4 taken for a pod whose PodAttachment does not name the address"}},
		{"two objects for a block", []func(*audit.Cluster){func(c *audit.Cluster) {
			b := blockOf("10.0.0.0/26")
			b.Name = "restored"
			c.Blocks = append(c.Blocks, b)
		}}, []string{"I1 10.0.0.0/26 a second IPBlock has the addresses of the block"}},
		// I2
		{"pod gone", []func(*audit.Cluster){slot(3, taken(4, "gone", time.Second))}, []string{"I2 10.0.0.4 taken for a pod that is gone and has no PodAttachment"}},
		{"a pod waits for the rest", []func(*audit.Cluster){slot(3, taken(4, "new", time.Hour))}, nil},
		{"pod gone, and another names its UID", []func(*audit.Cluster){slot(3, taken(4, "gone", time.Second)), func(c *audit.Cluster) {
			c.Pods[3].Annotations[corev1.MirrorPodAnnotationKey] = "uid-gone"
		}}, []string{"I2 10.0.0.4 taken for a pod that is gone and has no PodAttachment"}},
		{"record of another pod that names its UID", []func(*audit.Cluster){slot(3, taken(4, "gone", time.Second)), record(0, func(r *v1alpha1.PodAttachment) {
			r.Spec.PodUID, r.Spec.APIUID = "uid-gone", "uid-a"
		})}, []string{"I2 10.0.0.4 taken for a pod that is gone and has no PodAttachment"}},
		{"pod wants nothing", []func(*audit.Cluster){func(c *audit.Cluster) { c.Pods[2].Spec.HostNetwork = true }}, []string{"I2 10.0.0.4 taken for a pod that has no PodAttachment and needs none"}},
		{"record without the address", []func(*audit.Cluster){record(1, func(r *v1alpha1.PodAttachment) {
			r.Spec.Interfaces[0].Addresses = r.Spec.Interfaces[0].Addresses[:1]
		})}, []string{"I2 fd00::2 taken for a pod whose PodAttachment does not name the address"}},
		{"record in another domain", []func(*audit.Cluster){record(0, func(r *v1alpha1.PodAttachment) { r.Spec.Interfaces[0].Domain = "lab" })}, []string{"I2 10.0.0.1 taken for a pod whose PodAttachment does not name the address", "I1 10.0.0.1 " + mismatch}},
		{"claim gone", []func(*audit.Cluster){func(c *audit.Cluster) { c.Claims = nil }}, []string{"I2 10.0.0.7 held for a claim that does not exist"}},
		{"cooldown from the future", []func(*audit.Cluster){slot(5, freed(6, -2*time.Minute))}, []string{"I2 10.0.0.6 cools down since a time in the future"}},
		{"damaged slot", []func(*audit.Cluster){slot(5, "6 X")}, []string{"I2 10.0.0.6 a record cannot be read, so the addresses that it may name are withheld", "I7 pool lan the status and the blocks differ in cooling", "I7 pool lan the status and the blocks differ in reserved"}},
		{"record of no address", []func(*audit.Cluster){slot(5, "nonsense")}, []string{"I2 10.0.0.0/26 a record cannot be read, so the addresses that it may name are withheld", "I7 pool lan the status and the blocks differ in cooling", "I7 pool lan the status and the blocks differ in reserved"}},
		{"block that is none", []func(*audit.Cluster){func(c *audit.Cluster) { c.Blocks[1].Spec.CIDR = "fd00::/64" }}, []string{"I1 fd00::2 " + mismatch, "I2 fd00::/64 the block cannot be read"}},
		// I7
		{"counts do not add up", []func(*audit.Cluster){status(func(s *v1alpha1.IPPoolStatus) { s.Free++ })}, []string{"I7 pool lan the counts do not add up"}},
		{"usable is wrong", []func(*audit.Cluster){status(func(s *v1alpha1.IPPoolStatus) { s.Usable, s.Free = 255, 239 })}, []string{"I7 pool lan the status and the blocks differ in usable"}},
		{"allocated is wrong", []func(*audit.Cluster){status(func(s *v1alpha1.IPPoolStatus) { s.Allocated, s.Free = 6, 237 })}, []string{"I7 pool lan the status and the blocks differ in allocated"}},
		{"reserved is wrong", []func(*audit.Cluster){status(func(s *v1alpha1.IPPoolStatus) { s.Reserved, s.Free = 7, 239 })}, []string{"I7 pool lan the status and the blocks differ in reserved"}},
		{"cooling is too many", []func(*audit.Cluster){status(func(s *v1alpha1.IPPoolStatus) { s.Cooling, s.Free = 2, 237 })}, []string{"I7 pool lan the status and the blocks differ in cooling"}},
		{"cooling is too few", []func(*audit.Cluster){status(func(s *v1alpha1.IPPoolStatus) { s.Cooling, s.Free = 0, 239 })}, []string{"I7 pool lan the status and the blocks differ in cooling"}},
		{"cooled since the status was written", []func(*audit.Cluster){slot(5, freed(6, time.Hour))}, nil},
		{"the block of a node is reserved", []func(*audit.Cluster){
			func(c *audit.Cluster) { c.Blocks[0].Spec.Node = "node-1" },
		}, []string{"I7 pool lan the status and the blocks differ in reserved"}},
		{"the block of a node is reserved, and said to be", []func(*audit.Cluster){
			func(c *audit.Cluster) { c.Blocks[0].Spec.Node = "node-1" }, status(func(s *v1alpha1.IPPoolStatus) { s.Reserved, s.Free = 55, 191 }),
		}, nil},
		{"a reserved address that is taken", []func(*audit.Cluster){
			func(c *audit.Cluster) { c.Reservations[0].Spec.Ranges = []string{"10.0.0.1", "10.0.0.16/29"} },
		}, nil},
		{"held is wrong", []func(*audit.Cluster){status(func(s *v1alpha1.IPPoolStatus) { s.Held, s.Free = 1, 239 })}, []string{"I7 pool lan the status and the blocks differ in held"}},
		// No findings.
		{"status of an older spec", []func(*audit.Cluster){status(func(s *v1alpha1.IPPoolStatus) { s.Free++ }), func(c *audit.Cluster) { c.Pools[0].Generation = 2 }}, nil},
		{"given back, the finalizer is about to go", []func(*audit.Cluster){
			slot(2, freed(3, time.Second)), status(func(s *v1alpha1.IPPoolStatus) { s.Allocated, s.Cooling = 4, 2 }),
			record(2, func(r *v1alpha1.PodAttachment) {
				r.Status.Sandbox = &v1alpha1.Sandbox{State: v1alpha1.SandboxDetached}
			}),
		}, nil},
		{"given back in part, by proof", []func(*audit.Cluster){
			slot(2, freed(3, time.Second)), status(func(s *v1alpha1.IPPoolStatus) { s.Allocated, s.Cooling = 4, 2 }),
			record(2, func(r *v1alpha1.PodAttachment) {
				r.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReleased, Status: metav1.ConditionFalse, Reason: "unavailable"}}
			}),
		}, nil},
		{"given back, the finalizer is gone", []func(*audit.Cluster){
			slot(2, freed(3, time.Second)), status(func(s *v1alpha1.IPPoolStatus) { s.Allocated, s.Cooling = 4, 2 }),
			record(2, func(r *v1alpha1.PodAttachment) { r.Finalizers = nil }),
		}, nil},
		{"waits for its node, slot freed", []func(*audit.Cluster){
			slot(2, freed(3, time.Second)), status(func(s *v1alpha1.IPPoolStatus) { s.Allocated, s.Cooling = 4, 2 }),
			record(2, func(r *v1alpha1.PodAttachment) {
				r.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReleased, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonWaitingForNode}}
			}),
		}, []string{"I1 10.0.0.3 " + mismatch}},
		{"addresses from elsewhere", []func(*audit.Cluster){func(c *audit.Cluster) {
			r := recordOf("other", "10.0.0.1/24")
			r.Spec.Interfaces[0].Domain = ""
			c.Attachments = append(c.Attachments, r)
		}}, nil},
		{"taken and reserved since", []func(*audit.Cluster){
			func(c *audit.Cluster) { c.Reservations[0].Spec.Ranges = []string{"10.0.0.0-10.0.0.2"} },
			status(func(s *v1alpha1.IPPoolStatus) { s.Reserved, s.Free = 0, 246 }),
		}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := sound()
			for _, change := range tt.change {
				change(&c)
			}
			var got []string
			for _, f := range audit.Look(c).Findings {
				got = append(got, f.Invariant+" "+f.Address+" "+f.What)
				if f.Evidence == "" || f.Domain == "" {
					t.Errorf("no evidence or no domain: %+v", f)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestConfirm: a violation that changes between two audits is no finding.
func TestConfirm(t *testing.T) {
	c := sound()
	c.Claims = nil
	c.Blocks[0].Spec.Slots[3] = taken(4, "gone", time.Second)
	first := audit.Look(c)
	c.Blocks[0].Spec.Slots[3] = taken(4, "new", time.Second)
	c.Now = c.Now.Add(3 * time.Second)
	got := audit.Confirm(first, audit.Look(c)).Findings
	if len(first.Findings) != 2 || len(got) != 1 || got[0].Address != "10.0.0.7" {
		t.Errorf("first %+v, confirmed %+v; want the held address alone confirmed", first.Findings, got)
	}

	// A status lags while its blocks keep changing.
	c = sound()
	c.Pools[0].Status.Allocated, c.Pools[0].Status.Free = 6, 237
	lagging := audit.Look(c)
	if got := audit.Confirm(lagging, audit.Look(c)).Findings; len(got) != 1 {
		t.Errorf("blocks at rest: confirmed %+v, want the status", got)
	}
	c.Blocks[1].ResourceVersion = "2"
	if got := audit.Confirm(lagging, audit.Look(c)).Findings; len(got) != 0 {
		t.Errorf("blocks changed: confirmed %+v, want none", got)
	}
	if got := audit.Confirm(first, audit.Look(sound())).Findings; len(got) != 0 {
		t.Errorf("confirmed %+v, want none", got)
	}
}
