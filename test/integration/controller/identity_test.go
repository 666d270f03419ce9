package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/test/cluster"
)

// podTenant is a user who may create, delete and read pods in her own namespace.
type podTenant struct {
	client.Client
	w         *observer
	namespace string
}

func newPodTenant(t *testing.T, w *observer) podTenant {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "tenant-", Labels: map[string]string{"fairlead.dev/test": "true"}}}
	create := func(o client.Object) {
		t.Helper()
		if err := w.c.Client.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	create(ns)
	create(&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: "tenant"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"create", "delete", "get", "list"}},
	}})
	create(&rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: "tenant"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "tenant"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "tenant"}},
	})
	cfg := rest.CopyConfig(w.c.REST)
	cfg.Impersonate.UserName = "tenant"
	api, err := client.New(cfg, client.Options{Scheme: w.c.Client.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	return podTenant{api, w, ns.Name}
}

func (m podTenant) pod(t *testing.T, name, node, annotation, value string) *corev1.Pod {
	t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: m.namespace, Name: name, Annotations: map[string]string{annotation: value}},
		Spec: corev1.PodSpec{
			NodeName: node, AutomountServiceAccountToken: new(false), TerminationGracePeriodSeconds: new(int64(0)),
			Containers: []corev1.Container{{Name: "main", Image: "none"}},
		},
	}
	if annotation == corev1.MirrorPodAnnotationKey {
		p.Spec.AutomountServiceAccountToken = nil // mirror pods name no service account
	}
	m.w.c.Eventually(t, "the tenant to make pod "+name, func(ctx context.Context) error { return m.Create(ctx, p) }) // her rights may not be in force yet
	return p
}

// recordOf waits for the record of a pod.
func (m podTenant) recordOf(t *testing.T, p *corev1.Pod) *v1alpha1.PodAttachment {
	t.Helper()
	var got *v1alpha1.PodAttachment
	m.w.c.Eventually(t, "the attachment of pod "+p.Name, func(ctx context.Context) error {
		var list v1alpha1.PodAttachmentList
		if err := m.w.c.Client.List(ctx, &list, client.InNamespace(p.Namespace)); err != nil {
			return err
		}
		i := slices.IndexFunc(list.Items, func(r v1alpha1.PodAttachment) bool { return pod.Of(&r) == pod.KeyOf(p) })
		if i < 0 {
			return fmt.Errorf("%d attachments, none of the pod", len(list.Items))
		}
		got = &list.Items[i]
		return nil
	})
	return got
}

func (m podTenant) delete(t *testing.T, p *corev1.Pod) {
	t.Helper()
	if err := m.Delete(t.Context(), p, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	m.w.c.Eventually(t, "no attachment of pod "+p.Name, func(ctx context.Context) error {
		var list v1alpha1.PodAttachmentList
		if err := m.w.c.Client.List(ctx, &list, client.InNamespace(p.Namespace)); err != nil {
			return err
		}
		if slices.ContainsFunc(list.Items, func(r v1alpha1.PodAttachment) bool { return pod.Of(&r) == pod.KeyOf(p) }) {
			return fmt.Errorf("it is there")
		}
		return nil
	})
}

// TestTenantTakesNobodysAddress has a tenant try to get by an annotation the address of
// another pod, or an address that is never released.
func TestTenantTakesNobodysAddress(t *testing.T) {
	t.Parallel()
	c := cluster.Exclusive(t)
	w := oneNode(t, c, "node-x")
	c.Node("node-y")
	supervise(t, c.Account(cluster.ControllerAccount, ""), "gcInterval: 10s")
	m := newPodTenant(t, w)
	w.repeat(t, 20*time.Millisecond, func(ctx context.Context) { // play the nodes in her namespace
		var list v1alpha1.PodAttachmentList
		if c.Client.List(ctx, &list, client.InNamespace(m.namespace)) == nil {
			w.detach(ctx, list.Items)
		}
	})
	victim := c.Pod("db-0", "node-x")
	address := addressOf(t, c, victim)

	t.Run("own review 1: by another pod's UID", func(t *testing.T) {
		mirror := m.pod(t, "mirror", "node-x", corev1.MirrorPodAnnotationKey, string(victim.UID))
		r := m.recordOf(t, mirror)
		if r.Spec.Summary.Addresses == address || r.Spec.PodUID != victim.UID || r.Spec.APIUID != mirror.UID {
			t.Errorf("her record is %+v, and the victim has %s", r.Spec, address)
		}
		ask := m.pod(t, "ask", "node-x", v1alpha1.AnnotationAddresses, address)
		m.refused(t, ask, "NetworkConflict", address)
		m.delete(t, mirror)
		w.holds(t, address, victim)
		// The victim keeps its address for longer than the cooldown, while pod ask waits for it.
		w.stays(t, 8*time.Second, address, victim)
	})
	t.Run("own review 2: by a UID that cannot be written", func(t *testing.T) {
		before, err := w.slots(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i := range 4 {
			p := m.pod(t, fmt.Sprintf("nasty-%d", i), "node-x", corev1.MirrorPodAnnotationKey, fmt.Sprintf("A_%d:", i))
			m.refused(t, p, "NetworkInvalid", corev1.MirrorPodAnnotationKey, fmt.Sprintf(`"A_%d:"`, i), "1 to 64 of a-z")
		}
		if after, err := w.slots(t.Context()); err != nil || len(after) > len(before) {
			t.Errorf("%v; taken are %v, and were %v", err, after, before)
		}
	})
	t.Run("static pods of two nodes with one UID", func(t *testing.T) {
		x := m.pod(t, "static-node-x", "node-x", corev1.MirrorPodAnnotationKey, "0123456789abcdef")
		y := m.pod(t, "static-node-y", "node-y", corev1.MirrorPodAnnotationKey, "0123456789abcdef")
		rx, ry := m.recordOf(t, x), m.recordOf(t, y)
		if rx.Spec.Summary.Addresses == ry.Spec.Summary.Addresses || rx.Spec.PodUID != ry.Spec.PodUID {
			t.Errorf("they have %+v and %+v", rx.Spec, ry.Spec)
		}
		m.delete(t, x)
		w.holds(t, ry.Spec.Summary.Addresses, y)
	})
}

// refused waits for an event on her pod with this reason and all texts in its note.
func (m podTenant) refused(t *testing.T, p *corev1.Pod, reason string, texts ...string) {
	t.Helper()
	m.w.c.Eventually(t, "the event "+reason+" on pod "+p.Name, func(ctx context.Context) error {
		var list eventsv1.EventList
		if err := m.w.c.Client.List(ctx, &list, client.InNamespace(p.Namespace)); err != nil {
			return err
		}
		var seen []string
		for _, e := range list.Items {
			if e.Regarding.UID != p.UID {
				continue
			}
			seen = append(seen, e.Reason+": "+e.Note)
			if e.Reason == reason && !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(e.Note, text) }) {
				return nil
			}
		}
		return fmt.Errorf("seen: %q, want an event with %q", seen, texts)
	})
}

// holds checks that the slot of an address names the pod.
func (w *observer) holds(t *testing.T, address string, p *corev1.Pod) {
	t.Helper()
	slots, err := w.slots(t.Context())
	if err != nil || slots[address] != string(p.UID) {
		t.Errorf("%v; %s is of %q, want pod %s with UID %s", err, address, slots[address], p.Name, p.UID)
	}
}

// stays checks for the duration long that the slot of an address names the pod.
func (w *observer) stays(t *testing.T, long time.Duration, address string, p *corev1.Pod) {
	t.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(long); time.Now().Before(end) && !t.Failed(); <-tick.C {
		w.holds(t, address, p)
	}
}
