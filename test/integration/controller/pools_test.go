package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/test/cluster"
)

// TestPools runs the controller; the test plays node-x.
func TestPools(t *testing.T) {
	t.Parallel()
	c := cluster.Exclusive(t)
	c.Node("node-x")
	supervise(t, c.Account(cluster.ControllerAccount, ""), "multiVIFSources: [additional-subnets]")
	w := &poolTest{claimTest{&observer{c: c, domain: "pools"}}}
	w.repeat(t, 10*time.Millisecond, func(ctx context.Context) { w.detach(ctx, w.inspect(ctx)) })
	t.Run("fallback", w.fallback)
	t.Run("selectors", w.selectors)
	t.Run("quota", w.quota)
	t.Run("reservation", w.reservation)
	t.Run("exhaustion", w.exhaustion)
	t.Run("additional", w.additional)
}

type poolTest struct{ claimTest }

func (w *poolTest) pool(t *testing.T, name string, spec v1alpha1.IPPoolSpec) *v1alpha1.IPPool {
	t.Helper()
	spec.Domain, spec.Cooldown = w.domain, &metav1.Duration{Duration: 5 * time.Second}
	p := &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	w.create(t, p)
	return p
}

func (w *poolTest) create(t *testing.T, o client.Object) {
	t.Helper()
	if err := w.c.Client.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

// pod creates a pod with these pools in its annotation.
func (w *poolTest) pod(name, pools string) *corev1.Pod {
	return w.annotated(name, "node-x", v1alpha1.AnnotationPools, pools)
}

// has waits until a pod has a record, and checks its address and pool.
func (w *poolTest) has(t *testing.T, p *corev1.Pod, address, pool string) {
	t.Helper()
	if got := addressOf(t, w.c, p); got != address {
		t.Errorf("pod %s has %s, want %s", p.Name, got, address)
	}
	records, err := w.records(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		if r.Spec.PodUID == p.UID && r.Spec.Interfaces[0].Pool != pool {
			t.Errorf("the record of pod %s names pool %q, want %q", p.Name, r.Spec.Interfaces[0].Pool, pool)
		}
	}
}

// label sets a label of a node or namespace.
func (w *poolTest) label(t *testing.T, o client.Object, key, value string) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, key, value)
	if err := w.c.Client.Patch(t.Context(), o, client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
		t.Fatal(err)
	}
}

// status waits until a condition of a pool or reservation has the status want and a message
// that contains text. It checks I7 on a pool.
func (w *poolTest) status(t *testing.T, o client.Object, condition string, want metav1.ConditionStatus, text string) {
	t.Helper()
	w.c.Eventually(t, fmt.Sprintf("%s of %s to be %s", condition, o.GetName(), want), func(ctx context.Context) error {
		if err := w.c.Client.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		var all []metav1.Condition
		switch o := o.(type) {
		case *v1alpha1.IPPool:
			all = o.Status.Conditions
			s := o.Status
			if s.Usable != s.Free+s.Allocated+s.Cooling+s.Held+s.Reserved {
				t.Errorf("I7: pool %s: %+v", o.Name, s)
			}
		case *v1alpha1.IPReservation:
			all = o.Status.Conditions
		}
		got := meta.FindStatusCondition(all, condition)
		if got == nil || got.Status != want || !strings.Contains(got.Message, text) {
			return fmt.Errorf("it is %+v, want %q", got, text)
		}
		return nil
	})
}

func (w *poolTest) fallback(t *testing.T) {
	w.pool(t, "small", v1alpha1.IPPoolSpec{Ranges: []string{"10.1.0.1"}})
	w.pool(t, "large", v1alpha1.IPPoolSpec{Ranges: []string{"10.1.0.8-10.1.0.9"}})
	const pools = "missing,small,large"
	w.has(t, w.pod("fallback-0", pools), "10.1.0.1", "small")
	second := w.pod("fallback-1", pools)
	if got := addressOf(t, w.c, second); !strings.HasPrefix(got, "10.1.0.") {
		t.Errorf("pod %s has %s", second.Name, got)
	}
	addressOf(t, w.c, w.pod("fallback-2", pools))
	w.refused(t, w.pod("fallback-3", pools), "NetworkExhausted",
		"pool missing: not found", "pool small: exhausted", "pool large: exhausted", "usable=2 free=0 allocated=2")
	w.refused(t, w.pod("fallback-4", "Small"), "NetworkInvalid", "annotation fairlead.dev/pools", `"Small"`)
}

// A pod that no pool selects waits, and gets its network as soon as labels match a selector.
func (w *poolTest) selectors(t *testing.T) {
	selects := func(key string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{key: "a"}}
	}
	w.pool(t, "team", v1alpha1.IPPoolSpec{Ranges: []string{"10.2.0.1"}, NamespaceSelector: selects("team")})
	w.pool(t, "rack", v1alpha1.IPPoolSpec{Ranges: []string{"10.2.0.2"}, NodeSelector: selects("rack")})
	w.pool(t, "apps", v1alpha1.IPPoolSpec{Ranges: []string{"10.2.0.3"}, PodSelector: selects("app")})
	team, rack := w.pod("selected-team", "team"), w.pod("selected-rack", "rack")
	w.refused(t, team, "NetworkNotFound", "spec.namespaceSelector")
	w.refused(t, rack, "NetworkNotFound", "spec.nodeSelector")
	w.refused(t, w.pod("selected-none", "apps"), "NetworkNotFound", "spec.podSelector")
	w.label(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.c.Namespace}}, "team", "a")
	w.has(t, team, "10.2.0.1", "team")
	w.label(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-x"}}, "rack", "a")
	w.has(t, rack, "10.2.0.2", "rack")
	app := w.c.Pod("selected-app", "node-x", func(p *corev1.Pod) {
		p.Annotations = map[string]string{v1alpha1.AnnotationPools: "team,apps"}
		p.Labels = map[string]string{"app": "a"}
	})
	w.has(t, app, "10.2.0.3", "apps")

	broken := w.pool(t, "broken", v1alpha1.IPPoolSpec{
		Ranges:            []string{"10.2.0.9"},
		NamespaceSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "team", Operator: "Is"}}},
	})
	w.status(t, broken, v1alpha1.ConditionReady, metav1.ConditionFalse, "spec.namespaceSelector")
}

func (w *poolTest) quota(t *testing.T) {
	w.pool(t, "quota", v1alpha1.IPPoolSpec{Ranges: []string{"10.3.0.0/24"}, Quota: v1alpha1.Quota{PerNamespace: 4}})
	var pods []*corev1.Pod
	for n := range 12 {
		pods = append(pods, w.pod(fmt.Sprintf("quota-%d", n), "quota"))
	}
	served := func(ctx context.Context) (with, without []*corev1.Pod) {
		records, err := w.records(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range pods {
			has := false
			for _, r := range records {
				has = has || r.Spec.PodUID == p.UID
			}
			if has {
				with = append(with, p)
			} else {
				without = append(without, p)
			}
		}
		return with, without
	}
	var with, without []*corev1.Pod
	w.c.Eventually(t, "four pods to be served", func(ctx context.Context) error {
		if with, without = served(ctx); len(with) != 4 {
			return fmt.Errorf("%d are", len(with))
		}
		return nil
	})
	for _, p := range without {
		w.refused(t, p, "NetworkExhausted", "namespace "+w.c.Namespace+" has 4 addresses", "spec.quota.perNamespace allows 4")
	}
	if with, _ := served(t.Context()); len(with) != 4 {
		t.Fatalf("%d pods are served, the quota is 4", len(with))
	}
	w.delete(t, with[0])
	w.c.Eventually(t, "a pod to be served in place of the deleted one", func(ctx context.Context) error {
		now, _ := served(ctx)
		for _, p := range now {
			if slices.Contains(without, p) {
				return nil
			}
		}
		return fmt.Errorf("%d are served, as before", len(now))
	})
}

// A reservation takes effect while pods run, also in existing blocks. A pod that already has
// a reserved address keeps it.
func (w *poolTest) reservation(t *testing.T) {
	pool := w.pool(t, "reserved", v1alpha1.IPPoolSpec{Ranges: []string{"10.4.0.1-10.4.0.3"}})
	before := w.pod("reserved-0", "reserved")
	w.has(t, before, "10.4.0.1", "reserved")
	r := &v1alpha1.IPReservation{
		ObjectMeta: metav1.ObjectMeta{Name: "routers"},
		Spec:       v1alpha1.IPReservationSpec{Domain: w.domain, Ranges: []string{"10.4.0.0-10.4.0.2"}, Reason: "the routers"},
	}
	w.create(t, r)
	w.status(t, r, v1alpha1.ConditionReady, metav1.ConditionTrue, "1 stay with the pods that had them")
	if got := strings.Join(r.Status.InUse, " "); got != "10.4.0.1" {
		t.Errorf("in use: %s", got)
	}
	w.c.Eventually(t, "the pool to count the reserved address", func(ctx context.Context) error {
		if err := w.c.Client.Get(ctx, client.ObjectKeyFromObject(pool), pool); err != nil {
			return err
		}
		if s := pool.Status; s.Reserved != 1 || s.Allocated != 1 || s.Free != 1 {
			return fmt.Errorf("it counts %+v", s)
		}
		return nil
	})
	w.has(t, w.pod("reserved-1", "reserved"), "10.4.0.3", "reserved")
	waits := w.pod("reserved-2", "reserved")
	w.refused(t, waits, "NetworkExhausted", "usable=3 free=0 allocated=2 cooling=0 held=0 reserved=1")
	w.has(t, before, "10.4.0.1", "reserved")
	w.delete(t, r)
	w.has(t, waits, "10.4.0.2", "reserved")

	wrong := &v1alpha1.IPReservation{
		ObjectMeta: metav1.ObjectMeta{Name: "wrong"},
		Spec:       v1alpha1.IPReservationSpec{Domain: w.domain, Ranges: []string{"10.4.0.1/24"}},
	}
	w.create(t, wrong)
	w.status(t, wrong, v1alpha1.ConditionReady, metav1.ConditionFalse, "spec.ranges[0]")
}

// An exhausted pool is reported on the pod and on the pool, with the counts. Both recover when
// an address becomes free.
func (w *poolTest) exhaustion(t *testing.T) {
	pool := w.pool(t, "full", v1alpha1.IPPoolSpec{Ranges: []string{"10.5.0.1"}})
	first := w.pod("full-0", "full")
	w.has(t, first, "10.5.0.1", "full")
	waits := w.pod("full-1", "full")
	const counts = "usable=1 free=0 allocated=1 cooling=0 held=0 reserved=0"
	w.refused(t, waits, "NetworkExhausted", "no IPv4 address left", counts)
	w.status(t, pool, v1alpha1.ConditionExhausted, metav1.ConditionTrue, "no IPv4 address is left: "+counts)
	w.delete(t, first)
	w.has(t, waits, "10.5.0.1", "full")
	w.delete(t, waits)
	w.status(t, pool, v1alpha1.ConditionExhausted, metav1.ConditionFalse, "")
}

// A pod gets one more interface for each additional pool that serves it, and gives its
// address back with the others.
func (w *poolTest) additional(t *testing.T) {
	w.pool(t, "first", v1alpha1.IPPoolSpec{Ranges: []string{"10.8.0.1"}})
	w.pool(t, "second", v1alpha1.IPPoolSpec{Ranges: []string{"10.8.1.2"}, Placement: v1alpha1.PlacementPerNode})
	w.pool(t, "foreign", v1alpha1.IPPoolSpec{Ranges: []string{"10.8.2.3"}, NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "no-one"}}})
	naming := func(name, key, pools string) *corev1.Pod {
		return w.c.Pod(name, "node-x", func(p *corev1.Pod) {
			p.Annotations = map[string]string{v1alpha1.AnnotationPools: "first", key: pools}
		})
	}
	w.refused(t, naming("additional-foreign", v1alpha1.AnnotationAdditionalPools, "second,foreign"), "NetworkNotFound", "net2", "pool foreign", "spec.namespaceSelector")
	w.refused(t, naming("additional-invalid", v1alpha1.AnnotationAdditionalPools, "{"), "NetworkInvalid", v1alpha1.AnnotationAdditionalPools)
	if err := w.c.Client.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace(w.c.Namespace), client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	p := naming("additional", pod.AnnotationAdditionalSubnets, `["second"]`)
	record := &v1alpha1.PodAttachment{}
	w.c.Eventually(t, "the record of pod "+p.Name, func(ctx context.Context) error {
		return w.c.Client.Get(ctx, client.ObjectKey{Namespace: p.Namespace, Name: pod.AttachmentName(p.Name, p.UID)}, record)
	})
	var got []string
	for _, i := range record.Spec.Interfaces {
		got = append(got, fmt.Sprint(i.Name, " ", i.Network, " ", i.Pool, " ", i.Addresses, i.Gateways, i.Routes))
	}
	want := []string{"eth0 default first [10.8.0.1/32] [169.254.1.1] []", "net1 default second [10.8.1.2/32] [] [{10.8.1.2/32 169.254.1.1}]"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
