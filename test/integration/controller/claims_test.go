package controller

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/test/cluster"
)

// TestRequestedAndStickyAddresses runs the controller. The test plays node-x; nothing plays
// node-y, as if it were lost.
func TestRequestedAndStickyAddresses(t *testing.T) {
	t.Parallel()
	c := cluster.Exclusive(t)
	if err := c.Client.Create(t.Context(), &v1alpha1.IPPool{
		ObjectMeta: metav1.ObjectMeta{Name: "default"},
		Spec: v1alpha1.IPPoolSpec{
			Domain: "claims", Ranges: []string{"10.1.0.0/24"}, Sticky: v1alpha1.StickyStatefulSet,
			Cooldown: &metav1.Duration{Duration: 5 * time.Second},
		},
	}); err != nil {
		t.Fatal(err)
	}
	c.Node("node-x")
	c.Node("node-y")
	supervise(t, c.Account(cluster.ControllerAccount, ""))
	w := &claimTest{&observer{c: c, domain: "claims"}}
	w.repeat(t, 10*time.Millisecond, func(ctx context.Context) {
		w.detach(ctx, slices.DeleteFunc(w.inspect(ctx), func(r v1alpha1.PodAttachment) bool { return r.Spec.NodeName != "node-x" }))
	})
	t.Run("StatefulSet", w.statefulSet)
	t.Run("lost node", w.lostNode)
	t.Run("deleted claim", w.deletedClaim)
	t.Run("hold time", w.holdTime)
	t.Run("wanted addresses", w.wanted)
	t.Run("longest name", w.longestName)
	t.Run("free text", w.freeText)
	t.Run("address in use", w.inUse)
	t.Run("two ask at once", w.race)
}

type claimTest struct{ *observer }

// annotated creates a pod with one annotation.
func (w *claimTest) annotated(name, node, key, value string) *corev1.Pod {
	return w.c.Pod(name, node, func(p *corev1.Pod) { p.Annotations = map[string]string{key: value} })
}

func (w *claimTest) delete(t *testing.T, o client.Object) {
	t.Helper()
	if err := w.c.Client.Delete(t.Context(), o, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
}

// slot waits until the slot of an address is in the state want.
func (w *claimTest) slot(t *testing.T, address string, want ipam.State) {
	t.Helper()
	w.c.Eventually(t, fmt.Sprintf("%s to be %c", address, want), func(ctx context.Context) error {
		var list v1alpha1.IPBlockList
		if err := w.c.Client.List(ctx, &list, client.MatchingLabels{v1alpha1.LabelDomain: w.domain}); err != nil {
			return err
		}
		for _, b := range list.Items {
			decoded := ipam.DecodeBlock(netip.MustParsePrefix(b.Spec.CIDR), b.Spec.Node, b.Spec.Slots)
			if slot, ok := decoded.Slot(netip.MustParseAddr(address)); ok && slot.State == want {
				return nil
			} else if ok {
				return fmt.Errorf("it is %c of claim %q", slot.State, slot.Claim)
			}
		}
		return fmt.Errorf("there is no record of it")
	})
}

// claim waits until is returns true for the status of an IPClaim, and returns the claim.
func (w *claimTest) claim(t *testing.T, name, what string, is func(s v1alpha1.IPClaimStatus) bool) *v1alpha1.IPClaim {
	t.Helper()
	got := &v1alpha1.IPClaim{}
	w.c.Eventually(t, "claim "+name+" to "+what, func(ctx context.Context) error {
		if err := w.c.Client.Get(ctx, client.ObjectKey{Namespace: w.c.Namespace, Name: name}, got); err != nil {
			return err
		}
		if !is(got.Status) {
			return fmt.Errorf("its status is %+v", got.Status)
		}
		return nil
	})
	return got
}

// refused waits for an event on a pod with this reason and all texts in its note.
func (w *claimTest) refused(t *testing.T, p *corev1.Pod, reason string, texts ...string) {
	t.Helper()
	w.c.Eventually(t, "the event "+reason+" on pod "+p.Name, func(ctx context.Context) error {
		var list eventsv1.EventList
		if err := w.c.Client.List(ctx, &list, client.InNamespace(p.Namespace)); err != nil {
			return err
		}
		var seen []string
		for _, e := range list.Items {
			missing := 0
			for _, text := range texts {
				if !strings.Contains(e.Note, text) {
					missing++
				}
			}
			if e.Regarding.UID == p.UID && e.Reason == reason && missing == 0 {
				return nil
			}
			if e.Regarding.UID == p.UID {
				seen = append(seen, e.Reason+": "+e.Note)
			}
		}
		return fmt.Errorf("seen: %q, want an event with %q", seen, texts)
	})
}

// The five pods of a StatefulSet are deleted ten times while other pods are created. The
// fifty pods have five addresses in all. whereabouts#138, #288, #621.
func (w *claimTest) statefulSet(t *testing.T) {
	const ordinals, rounds = 5, 10
	app := map[string]string{"app": "db"}
	set := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.c.Namespace, Name: "db"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: new(int32(ordinals)), PodManagementPolicy: appsv1.ParallelPodManagement,
			Selector: &metav1.LabelSelector{MatchLabels: app},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: app}, Spec: corev1.PodSpec{
				NodeName: "node-x", AutomountServiceAccountToken: new(false),
				Containers: []corev1.Container{{Name: "main", Image: "none"}},
			}},
		},
	}
	if err := w.c.Client.Create(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	first := w.ordinals(t, ordinals, nil)
	last := first
	for round := range rounds {
		w.c.Pod(fmt.Sprintf("noise-%d", round), "node-x")
		for _, r := range last {
			w.delete(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.c.Namespace, Name: r.Spec.PodName}})
		}
		last = w.ordinals(t, ordinals, last)
		for name, r := range last {
			if got, want := r.Spec.Summary.Addresses, first[name].Spec.Summary.Addresses; got != want {
				t.Fatalf("round %d: %s had %s and has %s", round, name, want, got)
			}
		}
	}
	if got, want := last["db-0"].Spec.Interfaces[0].Claim, w.c.Namespace+"/db-0"; got != want {
		t.Errorf("the record names claim %q, want %q", got, want)
	}
	w.claim(t, "db-0", "name its pod", func(s v1alpha1.IPClaimStatus) bool {
		return s.Pod == "db-0" && s.Pool == "default" && len(s.Addresses) == 1 && s.Addresses[0] == first["db-0"].Spec.Summary.Addresses
	})
	// An ordinal that the set does not have any more keeps nothing.
	fewer := set.DeepCopy()
	fewer.Spec.Replicas = new(int32(ordinals - 1))
	if err := w.c.Client.Patch(t.Context(), fewer, client.MergeFrom(set)); err != nil {
		t.Fatal(err)
	}
	w.c.Eventually(t, "the end of the claim of the removed ordinal", func(ctx context.Context) error {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.c.Namespace, Name: "db-4"}}
		if err := client.IgnoreNotFound(w.c.Client.Delete(ctx, p, client.GracePeriodSeconds(0))); err != nil {
			return err
		}
		if err := w.c.Client.Get(ctx, client.ObjectKey{Namespace: w.c.Namespace, Name: "db-4"}, &v1alpha1.IPClaim{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("claim db-4 is there: %w", err)
		}
		return w.noneKept(ctx, "db-4")
	})
	w.claim(t, "db-3", "keep its address", func(s v1alpha1.IPClaimStatus) bool { return len(s.Addresses) == 1 })
	w.delete(t, set)
	// There is no kubelet that would end the pods of the set.
	for name := range last {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.c.Namespace, Name: name}}
		if err := client.IgnoreNotFound(w.c.Client.Delete(t.Context(), p, client.GracePeriodSeconds(0))); err != nil {
			t.Fatal(err)
		}
	}
	// The claims are deleted with the set, and their addresses become free a little later.
	w.c.Eventually(t, "the end of the set's claims", func(ctx context.Context) error {
		var claims v1alpha1.IPClaimList
		if err := w.c.Client.List(ctx, &claims, client.InNamespace(w.c.Namespace)); err != nil {
			return err
		}
		for _, c := range claims.Items {
			if strings.HasPrefix(c.Name, "db-") {
				return fmt.Errorf("claim %s of %v is there", c.Name, c.OwnerReferences)
			}
		}
		return w.noneKept(ctx, "db-")
	})
}

// noneKept returns an error while an address is kept for a claim whose name begins with prefix.
func (w *claimTest) noneKept(ctx context.Context, prefix string) error {
	var list v1alpha1.IPBlockList
	if err := w.c.Client.List(ctx, &list, client.MatchingLabels{v1alpha1.LabelDomain: w.domain}); err != nil {
		return err
	}
	for _, b := range list.Items {
		for _, text := range b.Spec.Slots {
			if claim := ipam.ClaimOf(text); strings.HasPrefix(claim, w.c.Namespace+"/"+prefix) {
				return fmt.Errorf("slot %q", text)
			}
		}
	}
	return nil
}

// ordinals waits until each of the n pods of the set has a record of another pod UID than
// before, and returns the records by pod name.
func (w *claimTest) ordinals(t *testing.T, n int, before map[string]v1alpha1.PodAttachment) map[string]v1alpha1.PodAttachment {
	t.Helper()
	var got map[string]v1alpha1.PodAttachment
	w.c.Eventually(t, "the records of all ordinals", func(ctx context.Context) error {
		records, err := w.records(ctx)
		if err != nil {
			return err
		}
		got = map[string]v1alpha1.PodAttachment{}
		for _, r := range records {
			name := r.Spec.PodName
			if strings.HasPrefix(name, "db-") && r.DeletionTimestamp == nil && before[name].Spec.PodUID != r.Spec.PodUID {
				got[name] = r
			}
		}
		if len(got) != n {
			return fmt.Errorf("%d of %d", len(got), n)
		}
		return nil
	})
	return got
}

// The second pod of a claim waits on another node until there is evidence that the first
// pod has nothing. In whereabouts#176, #182 and #446 the second pod got the address at
// once, and the deletion of the first pod freed it.
func (w *claimTest) lostNode(t *testing.T) {
	old := w.annotated("mover-1", "node-y", v1alpha1.AnnotationClaim, "mover")
	address := addressOf(t, w.c, old)
	w.delete(t, old)
	next := w.annotated("mover-2", "node-x", v1alpha1.AnnotationClaim, "mover")
	w.refused(t, next, "NetworkConflict", address, "mover-1", "node-y")
	var list v1alpha1.PodAttachmentList
	w.c.Eventually(t, "the old record to be deleted", func(ctx context.Context) error {
		if err := w.c.Client.List(ctx, &list, client.MatchingFields{"spec.nodeName": "node-y"}); err != nil {
			return err
		}
		if len(list.Items) != 1 || list.Items[0].DeletionTimestamp == nil {
			return fmt.Errorf("records: %d", len(list.Items))
		}
		return nil
	})
	if holder := w.holder(t, address); holder != string(old.UID) {
		t.Fatalf("%s is held by %q while nothing is known of its node, want %q", address, holder, old.UID)
	}
	w.detach(t.Context(), list.Items)
	if got := addressOf(t, w.c, next); got != address {
		t.Errorf("the claim had %s, and its next pod has %s", address, got)
	}
}

func (w *claimTest) holder(t *testing.T, address string) string {
	t.Helper()
	slots, err := w.slots(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return slots[address]
}

func (w *claimTest) deletedClaim(t *testing.T) {
	p := w.annotated("short", "node-x", v1alpha1.AnnotationClaim, "short")
	address := addressOf(t, w.c, p)
	w.delete(t, p)
	w.slot(t, address, ipam.Held)
	claim := w.claim(t, "short", "be held", func(s v1alpha1.IPClaimStatus) bool { return s.HeldSince != nil && s.Pod == "" })
	w.delete(t, claim)
	w.slot(t, address, ipam.Freed)
}

// When the hold time is over, a claim that a person created stays without addresses. A claim
// that the controller created is deleted.
func (w *claimTest) holdTime(t *testing.T) {
	written := &v1alpha1.IPClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.c.Namespace, Name: "written"},
		Spec:       v1alpha1.IPClaimSpec{HoldTime: &metav1.Duration{Duration: 2 * time.Second}},
	}
	if err := w.c.Client.Create(t.Context(), written); err != nil {
		t.Fatal(err)
	}
	p, q := w.annotated("written", "node-x", v1alpha1.AnnotationClaim, "written"), w.annotated("made", "node-x", v1alpha1.AnnotationClaim, "made")
	mine, theirs := addressOf(t, w.c, p), addressOf(t, w.c, q)
	made := w.claim(t, "made", "name its pod", func(s v1alpha1.IPClaimStatus) bool { return s.Pod == "made" })
	after := made.DeepCopy()
	after.Spec.HoldTime = &metav1.Duration{Duration: time.Second}
	if err := w.c.Client.Patch(t.Context(), after, client.MergeFrom(made)); err != nil {
		t.Fatal(err)
	}
	w.delete(t, p)
	w.delete(t, q)
	w.slot(t, mine, ipam.Freed)
	w.slot(t, theirs, ipam.Freed)
	w.claim(t, "written", "have nothing", func(s v1alpha1.IPClaimStatus) bool { return len(s.Addresses) == 0 && s.HeldSince == nil })
	w.c.Eventually(t, "the end of the claim that the controller created", func(ctx context.Context) error {
		err := w.c.Client.Get(ctx, client.ObjectKeyFromObject(made), &v1alpha1.IPClaim{})
		if err == nil {
			return errors.New("it is there")
		}
		return client.IgnoreNotFound(err)
	})
}

// A claim gets the address in its spec. If the spec names another address, the claim frees
// the first and the next pod gets the other.
func (w *claimTest) wanted(t *testing.T) {
	claim := &v1alpha1.IPClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.c.Namespace, Name: "wanted"},
		Spec:       v1alpha1.IPClaimSpec{Addresses: []string{"10.1.0.210"}},
	}
	if err := w.c.Client.Create(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	p := w.annotated("wanted-1", "node-x", v1alpha1.AnnotationClaim, "wanted")
	if got := addressOf(t, w.c, p); got != "10.1.0.210" {
		t.Errorf("the pod has %s", got)
	}
	w.delete(t, p)
	w.slot(t, "10.1.0.210", ipam.Held)
	claim = w.claim(t, "wanted", "be held", func(s v1alpha1.IPClaimStatus) bool { return s.HeldSince != nil })
	after := claim.DeepCopy()
	after.Spec.Addresses = []string{"10.1.0.211"}
	if err := w.c.Client.Patch(t.Context(), after, client.MergeFrom(claim)); err != nil {
		t.Fatal(err)
	}
	w.slot(t, "10.1.0.210", ipam.Freed)
	if got := addressOf(t, w.c, w.annotated("wanted-2", "node-x", v1alpha1.AnnotationClaim, "wanted")); got != "10.1.0.211" {
		t.Errorf("the next pod has %s", got)
	}
}

// The record has room for every name that a claim can have.
func (w *claimTest) longestName(t *testing.T) {
	p := w.annotated("long", "node-x", v1alpha1.AnnotationClaim, strings.Repeat("c", 253))
	if got := addressOf(t, w.c, p); got == "" {
		t.Error("the pod has no address")
	}
	w.delete(t, p)
}

// The claim in a pod's annotation may be any text; it need not be an object name. The IPClaim
// shows the text, and the refusal names the claim by its text and the pod that holds it.
func (w *claimTest) freeText(t *testing.T) {
	const text = "Rack 4, printer"
	p := w.annotated("printer-1", "node-x", v1alpha1.AnnotationClaim, text)
	got := addressOf(t, w.c, p)
	claim := w.claim(t, pod.ClaimFor(text), "have a pod", func(s v1alpha1.IPClaimStatus) bool { return s.Pod == "printer-1" })
	if claim.Spec.Text != text {
		t.Errorf("the claim shows the text %q", claim.Spec.Text)
	}
	next := w.annotated("printer-2", "node-x", v1alpha1.AnnotationClaim, text)
	w.refused(t, next, "NetworkConflict", `claim "`+text+`"`, w.c.Namespace+"/printer-1", got)
	w.delete(t, p)
	if again := addressOf(t, w.c, next); again != got {
		t.Errorf("the next pod has %s, the first had %s", again, got)
	}
	w.delete(t, next)
}

// A requested address is recorded like any other, and a refusal names the pod that holds it.
// whereabouts#15, #394.
func (w *claimTest) inUse(t *testing.T) {
	first := w.annotated("asks-1", "node-x", v1alpha1.AnnotationAddresses, "10.1.0.200")
	if got := addressOf(t, w.c, first); got != "10.1.0.200" || w.holder(t, got) != string(first.UID) {
		t.Errorf("the pod has %s, held by %q", got, w.holder(t, got))
	}
	w.refused(t, w.annotated("asks-2", "node-x", v1alpha1.AnnotationAddresses, "10.1.0.200"), "NetworkConflict", "10.1.0.200", w.c.Namespace+"/asks-1")
	w.refused(t, w.annotated("asks-3", "node-x", v1alpha1.AnnotationAddresses, "10.9.0.1"), "NetworkInvalid", "10.9.0.1", "10.1.0.0/24")
	w.refused(t, w.annotated("asks-4", "node-x", v1alpha1.AnnotationAddresses, "ten"), "NetworkInvalid", v1alpha1.AnnotationAddresses, `"ten"`)
	w.refused(t, w.annotated("asks-5", "node-x", v1alpha1.AnnotationClaim, " no text"), "NetworkInvalid", v1alpha1.AnnotationClaim)
	w.delete(t, first)
	w.c.Eventually(t, "asks-2 to get the address", func(ctx context.Context) error {
		records, err := w.records(ctx)
		if err != nil {
			return err
		}
		for _, r := range records {
			if r.Spec.PodName == "asks-2" && r.Spec.Summary.Addresses == "10.1.0.200" {
				return nil
			}
		}
		return fmt.Errorf("%d records, none of asks-2 with the address", len(records))
	})
}

func (w *claimTest) race(t *testing.T) {
	for i := range 4 {
		w.annotated(fmt.Sprintf("racer-%d", i), "node-x", v1alpha1.AnnotationAddresses, "10.1.0.220")
	}
	w.c.Eventually(t, "one pod to get the address and three to be refused", func(ctx context.Context) error {
		records, err := w.records(ctx)
		if err != nil {
			return err
		}
		won := 0
		for _, r := range records {
			if strings.HasPrefix(r.Spec.PodName, "racer-") {
				won++
			}
		}
		var list eventsv1.EventList
		if err := w.c.Client.List(ctx, &list, client.InNamespace(w.c.Namespace)); err != nil {
			return err
		}
		refused := map[string]bool{}
		for _, e := range list.Items {
			if strings.HasPrefix(e.Regarding.Name, "racer-") && e.Reason == "NetworkConflict" {
				refused[e.Regarding.Name] = true
			}
		}
		if won != 1 || len(refused) != 3 {
			return fmt.Errorf("%d records, %d refused", won, len(refused))
		}
		return nil
	})
}
