package proof

import (
	"cmp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/prooftest"
)

// The proofs that free an address, and signs that do not: whereabouts#162 and #207
// (absence was taken for death), #75 and #485 (a node that crashed), calico#5044 and
// PR#13538 (indirect signs); host-local's leaks after each boot, plugins#252 and cni#204;
// calico#4190 and #13858 (state of an earlier boot).
func TestWeigh(t *testing.T) {
	const grace = 5 * time.Minute
	unreachable := prooftest.InState(corev1.ConditionUnknown)
	fence := prooftest.Tainted(corev1.TaintNodeOutOfService, corev1.TaintEffectNoExecute)
	cases := []struct {
		name   string
		record *v1alpha1.PodAttachment
		node   *corev1.Node
		// reclaim is the policy of the record's pools.
		reclaim time.Duration
		// lost is for how long the Node has been known to be gone.
		lost time.Duration
		// unheard is true if the kubelet has not reported since the deletion. heard is
		// for how long such a report is known; a minute if neither is set.
		unheard bool
		heard   time.Duration
		want    Proof
		again   time.Duration
		text    string
	}{
		{
			name: "confirmed by the node", want: ByWord,
			record: prooftest.Plugged(func(r *v1alpha1.PodAttachment) { r.Status.Sandbox.State = v1alpha1.SandboxDetached }),
		},
		{name: "a node that is well", record: prooftest.Plugged(), node: prooftest.NodeOf(), text: "is ready"},
		{name: "not ready", record: prooftest.Plugged(), node: prooftest.NodeOf(prooftest.InState(corev1.ConditionFalse)), text: "not ready since 2026-01-02T14:50:00Z"},
		{name: "unreachable", record: prooftest.Plugged(), node: prooftest.NodeOf(unreachable), text: "unreachable since 2026-01-02T14:50:00Z"},
		{name: "no condition Ready", record: prooftest.Plugged(), node: prooftest.NodeOf(func(n *corev1.Node) { n.Status.Conditions = nil }), reclaim: time.Minute, text: "not reported"},
		{name: "deleted ages ago on a node that is away", record: prooftest.Plugged(prooftest.DeletedFor(30 * 24 * time.Hour)), node: prooftest.NodeOf(unreachable), text: "unreachable"},

		{name: "another boot", record: prooftest.Plugged(), node: prooftest.NodeOf(prooftest.InBoot("boot-2")), want: ByReboot, text: "was boot-1 and is boot-2"},
		{name: "another boot, never plugged", record: prooftest.Plugged(prooftest.NeverPlugged), node: prooftest.NodeOf(prooftest.InBoot("boot-2")), text: "is ready"},
		{name: "a boot that is not known", record: prooftest.Plugged(), node: prooftest.NodeOf(prooftest.InBoot("")), text: "is ready"},
		{
			name: "a sandbox of no known boot", node: prooftest.NodeOf(prooftest.InBoot("boot-2")), text: "is ready",
			record: prooftest.Plugged(func(r *v1alpha1.PodAttachment) { r.Status.Sandbox.BootID = "" }),
		},
		{
			name: "a sandbox of no known time", node: prooftest.NodeOf(prooftest.InBoot("boot-2")), text: "is ready",
			record: prooftest.Plugged(func(r *v1alpha1.PodAttachment) { r.Status.Sandbox.AttachedAt = nil }),
		},
		{
			name: "plugged after the boot, before the kubelet reported it", record: prooftest.Plugged(), node: prooftest.NodeOf(prooftest.InBoot("boot-0")), unheard: true,
			again: bootRetry, text: "has not reported since",
		},
		{
			name: "another boot, which the kubelet has just reported", record: prooftest.Plugged(), node: prooftest.NodeOf(prooftest.InBoot("boot-2")), heard: time.Second,
			again: RebootLag - time.Second, text: "booted since",
		},
		{
			name: "another boot, and the deletion is not known there yet", record: prooftest.Plugged(prooftest.DeletedFor(4 * time.Second)), node: prooftest.NodeOf(prooftest.InBoot("boot-2")),
			again: RebootLag - 4*time.Second, text: "booted since",
		},

		{name: "out of service", record: prooftest.Plugged(), node: prooftest.NodeOf(unreachable, fence), want: ByFence, text: "out-of-service"},
		{name: "out of service, not ready", record: prooftest.Plugged(), node: prooftest.NodeOf(prooftest.InState(corev1.ConditionFalse), fence), want: ByFence},
		{name: "out of service, never plugged", record: prooftest.Plugged(prooftest.NeverPlugged), node: prooftest.NodeOf(unreachable, fence), want: ByFence},
		{
			name: "out of service, not scheduled to", node: prooftest.NodeOf(unreachable, prooftest.Tainted(corev1.TaintNodeOutOfService, corev1.TaintEffectNoSchedule)),
			record: prooftest.Plugged(), want: ByFence,
		},
		{
			name: "out of service is only preferred", node: prooftest.NodeOf(unreachable, prooftest.Tainted(corev1.TaintNodeOutOfService, corev1.TaintEffectPreferNoSchedule)),
			record: prooftest.Plugged(), text: "unreachable",
		},
		{name: "a taint that was forgotten on a node that is back", record: prooftest.Plugged(), node: prooftest.NodeOf(fence), text: "but is ready"},
		{name: "other taints", node: prooftest.NodeOf(unreachable, prooftest.Tainted(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute)), record: prooftest.Plugged(), text: "unreachable"},

		{name: "no Node, seen first now", record: prooftest.Plugged(), again: grace, text: "found deleted at 2026-01-02T15:00:00Z"},
		{name: "no Node within the grace", record: prooftest.Plugged(), lost: time.Minute, again: 4 * time.Minute, text: "found deleted at 2026-01-02T14:59:00Z"},
		{name: "no Node past the grace", record: prooftest.Plugged(), lost: grace, want: ByDeletion, text: "found deleted at 2026-01-02T14:55:00Z"},
		{name: "no Node, never plugged", record: prooftest.Plugged(prooftest.NeverPlugged), lost: grace, want: ByDeletion},
		{
			name: "made again within the grace", record: prooftest.Plugged(), node: prooftest.NodeOf(prooftest.Made(4*time.Minute), prooftest.InBoot("boot-2")), lost: time.Minute,
			again: 4 * time.Minute, text: "made again",
		},
		{
			name: "made again past the grace", record: prooftest.Plugged(), node: prooftest.NodeOf(prooftest.Made(6*time.Minute), prooftest.InBoot("boot-2")), lost: 6 * time.Minute,
			want: ByDeletion, text: "made again",
		},
		{
			name: "made again, and cut off before it could write what it has plugged", record: prooftest.Plugged(prooftest.NeverPlugged), lost: 6 * time.Minute,
			node: prooftest.NodeOf(prooftest.Made(30*time.Minute), prooftest.InBoot("boot-2"), unreachable), unheard: true, again: bootRetry, text: "unreachable",
		},
		{
			name: "made again, cut off, and out of service", record: prooftest.Plugged(prooftest.NeverPlugged), lost: 6 * time.Minute,
			node: prooftest.NodeOf(prooftest.Made(30*time.Minute), unreachable, fence), unheard: true, want: ByFence,
		},
		{name: "made again, the same machine in the same boot", record: prooftest.Plugged(), node: prooftest.NodeOf(prooftest.Made(time.Minute)), lost: time.Hour, text: "is ready"},
		{name: "made in the second of the record, or soon after", record: prooftest.Plugged(prooftest.NeverPlugged), node: prooftest.NodeOf(prooftest.Made(time.Hour - clockSlack)), lost: time.Hour, text: "is ready"},

		{name: "the Node that it was made for, younger by a clock that jumped back", record: prooftest.Plugged(prooftest.NeverPlugged, prooftest.MadeForIt), node: prooftest.NodeOf(prooftest.UID("1"), prooftest.Made(time.Minute)), lost: time.Hour, text: "is ready"},
		{name: "another Node, older by a clock that jumped back", record: prooftest.Plugged(prooftest.NeverPlugged, prooftest.MadeForIt), node: prooftest.NodeOf(prooftest.UID("2")), lost: time.Hour, want: ByDeletion, text: "made again"},
		{name: "another Node within the grace", record: prooftest.Plugged(prooftest.MadeForIt), node: prooftest.NodeOf(prooftest.UID("2"), prooftest.InBoot("boot-2")), lost: time.Minute, again: 4 * time.Minute, text: "made again"},
		{name: "another Node without a report yet", record: prooftest.Plugged(prooftest.NeverPlugged, prooftest.MadeForIt), node: prooftest.NodeOf(prooftest.UID("2")), lost: time.Hour, unheard: true, again: bootRetry, text: "is ready"},
		{name: "another Node of the same machine in the same boot", record: prooftest.Plugged(prooftest.MadeForIt), node: prooftest.NodeOf(prooftest.UID("2"), prooftest.Made(time.Minute)), lost: time.Hour, text: "is ready"},

		{name: "to be reclaimed later", record: prooftest.Plugged(), node: prooftest.NodeOf(unreachable), reclaim: 15 * time.Minute, again: 5 * time.Minute, text: "may then be in use twice"},
		{name: "reclaimed", record: prooftest.Plugged(), node: prooftest.NodeOf(unreachable), reclaim: 10 * time.Minute, want: ByPolicy, text: "an address is now in use twice"},
		{name: "never reclaimed of a node that reports it is not ready", record: prooftest.Plugged(), node: prooftest.NodeOf(prooftest.InState(corev1.ConditionFalse)), reclaim: time.Minute, text: "not ready"},
		{name: "never reclaimed of a node that is well", record: prooftest.Plugged(), node: prooftest.NodeOf(), reclaim: time.Minute, text: "is ready"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			e := Evidence{Node: tc.node, ReclaimAfter: tc.reclaim, Grace: grace, Now: prooftest.Now}
			e.LeavingSince, e.UnreachableSince = tc.record.DeletionTimestamp.Time, prooftest.Now.Add(-10*time.Minute)
			if tc.reclaim > 0 && tc.node != nil && len(tc.node.Status.Conditions) > 0 {
				tc.node.Status.Conditions[0].LastTransitionTime = prooftest.Ago(-1000 * time.Hour) // of a clock that is ahead
			}
			if !tc.unheard {
				e.Reported = prooftest.Now.Add(-cmp.Or(tc.heard, time.Minute))
			}
			if tc.lost > 0 {
				e.LostSince = prooftest.Now.Add(-tc.lost)
				e.LostAt = Stamp(e.LostSince)
			}
			v := Weigh(tc.record, e)
			if v.Proof != tc.want || v.Due != tc.again || !strings.Contains(v.Text, tc.text) {
				t.Errorf("got %+v, want proof %q, again after %v, text with %q", v, tc.want, tc.again, tc.text)
			}
		})
	}
}

// Loss finds the time of the loss in the condition that shows a verdict about a lost
// Node, and in no other text.
func TestLoss(t *testing.T) {
	lost := Evidence{Grace: time.Minute, Now: prooftest.Now, LeavingSince: prooftest.Now, LostSince: prooftest.Now.Add(-time.Hour), LostAt: "2020-02-02T02:02:02Z"}
	again := lost
	again.Node = prooftest.NodeOf(prooftest.UID("2"))
	found := Evidence{Grace: time.Minute, Now: prooftest.Now, LeavingSince: prooftest.Now}
	record := func(reason, message string) *v1alpha1.PodAttachment {
		return prooftest.Plugged(prooftest.NeverPlugged, prooftest.MadeForIt, func(r *v1alpha1.PodAttachment) {
			r.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReleased, Status: metav1.ConditionFalse, Reason: reason, Message: message}}
		})
	}
	for _, tc := range []struct {
		name, reason, text, foundAt string
		waits                       bool
	}{
		{"found now", v1alpha1.ReasonWaitingForNode, Weigh(record("", ""), found).Text, Stamp(prooftest.Now), true},
		{"known before", v1alpha1.ReasonWaitingForNode, Weigh(record("", ""), lost).Text, "2020-02-02T02:02:02Z", true},
		{"another Node without a report", v1alpha1.ReasonWaitingForNode, Weigh(record("", ""), again).Text, "2020-02-02T02:02:02Z", true},
		{"a node that is there", v1alpha1.ReasonWaitingForNode, Weigh(record("", ""), Evidence{Node: prooftest.NodeOf(prooftest.UID("1")), Now: prooftest.Now}).Text, "", true},
		{"giving back has begun", "Unavailable", Weigh(record("", ""), lost).Text, "", false},
	} {
		if foundAt, waits := Loss(record(tc.reason, "node n1 has not said that nothing holds 10.0.0.1: "+tc.text)); foundAt != tc.foundAt || waits != tc.waits {
			t.Errorf("%s: %q, %v; want %q, %v, of %q", tc.name, foundAt, waits, tc.foundAt, tc.waits, tc.text)
		}
	}
	if foundAt, waits := Loss(prooftest.Plugged()); foundAt != "" || !waits {
		t.Errorf("without a condition: %q, %v", foundAt, waits)
	}
}
