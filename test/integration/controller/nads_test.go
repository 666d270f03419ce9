package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/test/cluster"
)

// tenant is a user who may create and delete pods and networks in her own namespace, and list
// events there. She has no other rights.
type tenant struct {
	client.Client
	c  *cluster.Cluster
	ns string
}

func newTenant(t *testing.T, c *cluster.Cluster, name string, labels map[string]string) *tenant {
	t.Helper()
	all := map[string]string{"fairlead.dev/test": "true"}
	maps.Copy(all, labels)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: name + "-", Labels: all}}
	create(t, c, namespace)
	t.Cleanup(func() { _ = c.Client.Delete(context.Background(), namespace) })
	user := "tenant-" + namespace.Name
	create(t, c, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: namespace.Name, Name: "tenant"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"create", "delete", "get", "list"}},
		{APIGroups: []string{"events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"list"}},
		{APIGroups: []string{"k8s.cni.cncf.io"}, Resources: []string{"network-attachment-definitions"}, Verbs: []string{"create", "update", "delete", "get"}},
	}})
	create(t, c, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace.Name, Name: "tenant"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "tenant"},
		Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: user}},
	})
	cfg := rest.CopyConfig(c.REST)
	cfg.Impersonate.UserName = user
	api, err := client.New(cfg, client.Options{Scheme: c.Client.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	return &tenant{api, c, namespace.Name}
}

func create(t *testing.T, c *cluster.Cluster, o client.Object) {
	t.Helper()
	if err := c.Client.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

// make creates an object, and retries until her rights are in force.
func (m *tenant) make(t *testing.T, o client.Object) {
	t.Helper()
	m.c.Eventually(t, "the tenant to make "+o.GetName(), func(ctx context.Context) error {
		o.SetResourceVersion("")
		return m.Create(ctx, o)
	})
}

// pod creates a pod on node-x.
func (m *tenant) pod(t *testing.T, name string, annotations map[string]string) *corev1.Pod {
	t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: m.ns, Name: name, Annotations: annotations},
		Spec: corev1.PodSpec{
			NodeName: "node-x", AutomountServiceAccountToken: new(false), TerminationGracePeriodSeconds: new(int64(0)),
			Containers: []corev1.Container{{Name: "main", Image: "none"}},
		},
	}
	m.make(t, p)
	return p
}

func (m *tenant) on(t *testing.T, name, network string) *corev1.Pod {
	t.Helper()
	return m.pod(t, name, map[string]string{pod.AnnotationNetworks: network})
}

func (m *tenant) delete(t *testing.T, o client.Object) {
	t.Helper()
	if err := m.Delete(t.Context(), o, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
}

func (m *tenant) network(t *testing.T, name, ipam string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"config": configOf(ipam)}}}
	o.SetAPIVersion("k8s.cni.cncf.io/v1")
	o.SetKind("NetworkAttachmentDefinition")
	o.SetNamespace(m.ns)
	o.SetName(name)
	m.make(t, o)
	return o
}

func configOf(ipam string) string {
	return `{"cniVersion":"1.0.0","name":"x","type":"macvlan","ipam":{` + ipam + `}}`
}

// wantEvent waits for an event on an object of hers with this reason and all texts in its
// note. It returns the note.
func (m *tenant) wantEvent(t *testing.T, of client.Object, reason string, texts ...string) (note string) {
	t.Helper()
	m.c.Eventually(t, "the event "+reason+" on "+of.GetName(), func(ctx context.Context) error {
		var list eventsv1.EventList
		if err := m.List(ctx, &list, client.InNamespace(m.ns)); err != nil {
			return err
		}
		var seen []string
		for _, e := range list.Items {
			if e.Regarding.UID != of.GetUID() {
				continue
			}
			note = e.Note
			if e.Reason == reason && !slices.ContainsFunc(texts, func(s string) bool { return !strings.Contains(note, s) }) {
				return nil
			}
			seen = append(seen, e.Reason+": "+note)
		}
		return fmt.Errorf("seen: %q, want an event with %q", seen, texts)
	})
	return note
}

// has waits until the pods have records, and returns the interface net1 of each.
func (m *tenant) has(t *testing.T, pods ...*corev1.Pod) (out []v1alpha1.Interface) {
	t.Helper()
	for _, p := range pods {
		m.c.Eventually(t, "the record of "+p.Name, func(ctx context.Context) error {
			r := &v1alpha1.PodAttachment{}
			if err := m.c.Client.Get(ctx, client.ObjectKey{Namespace: m.ns, Name: pod.AttachmentName(p.Name, p.UID)}, r); err != nil {
				return err
			}
			for _, i := range r.Spec.Interfaces {
				if i.Name == "net1" {
					out = append(out, i)
					return nil
				}
			}
			return fmt.Errorf("no net1 in %+v", r.Spec.Interfaces)
		})
	}
	return out
}

// taken returns the number of slots in use in a domain: addresses that a pod has, a claim
// keeps or that cool down.
func taken(ctx context.Context, c *cluster.Cluster, domain string) (n int, err error) {
	var list v1alpha1.IPBlockList
	err = c.Client.List(ctx, &list, client.MatchingLabels{v1alpha1.LabelDomain: domain})
	for _, b := range list.Items {
		n += int(b.Spec.Used)
	}
	return n, err
}

func team(name string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"team": name}}
}

// The author of a network reaches the pools that the operator opened to her namespace, and
// otherwise a domain of her own. She does not reach the domains, pools, selectors and quotas
// of others, nor the default network.
func TestNetworksReachWhatWasOpened(t *testing.T) {
	t.Parallel()
	c := cluster.Exclusive(t)
	c.Networks()
	c.Node("node-x")
	for _, p := range []*v1alpha1.IPPool{
		{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: v1alpha1.IPPoolSpec{Ranges: []string{"10.1.0.0/24"}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: v1alpha1.IPPoolSpec{
			Domain: "shop", Ranges: []string{"10.60.0.0/24"}, NamespaceSelector: team("shop"), NetworkNamespaceSelector: team("shop"), Quota: v1alpha1.Quota{PerNamespace: 1},
		}},
	} {
		create(t, c, p)
	}
	supervise(t, c.Account(cluster.ControllerAccount, ""), "multiVIFSources: [npwg]", "networkPoolsPerNamespace: 4")
	w := &observer{c: c, domain: "shop"}
	w.repeat(t, 20*time.Millisecond, func(ctx context.Context) {
		var all v1alpha1.PodAttachmentList
		if c.Client.List(ctx, &all) == nil {
			w.detach(ctx, all.Items)
		}
	})
	evil := newTenant(t, c, "evil", map[string]string{"team": "evil"})
	shop := newTenant(t, c, "shop", map[string]string{"team": "shop"})

	t.Run("a pool that was not opened is refused", func(t *testing.T) {
		named := evil.network(t, "named", `"type":"whereabouts","range":"10.60.0.0/24","network_name":"shop"`)
		evil.network(t, "pools", `"type":"fairlead-ipam","pools":["shop"]`)
		evil.network(t, "defaults", `"type":"fairlead-ipam"`)
		inside := evil.network(t, "inside", `"type":"whereabouts","range":"10.1.0.0/26"`)
		evil.wantEvent(t, named, "NetworkInvalid", "spec.networkNamespaceSelector", "shop")
		evil.wantEvent(t, inside, "NetworkInvalid", "default network")
		for _, tc := range []struct{ network, reason, text string }{
			{"named", "NetworkInvalid", "spec.networkNamespaceSelector"},
			{"pools", "NetworkNotFound", "pool shop: not found: it is open to no network of namespace " + evil.ns},
			{"defaults", "NetworkNotFound", "pool default: not found: it is open to no network of namespace " + evil.ns},
			{"inside", "NetworkInvalid", "default network"},
		} {
			p := evil.on(t, "on-"+tc.network, tc.network)
			evil.wantEvent(t, p, tc.reason, tc.text)
		}
		if n, err := taken(t.Context(), c, "shop"); err != nil || n != 0 {
			t.Errorf("error %v: %d addresses of domain shop are taken", err, n)
		}
	})

	t.Run("a pool that was opened keeps its quota", func(t *testing.T) {
		shop.network(t, "named", `"type":"whereabouts","range":"10.60.0.0/24","network_name":"shop"`)
		first := shop.on(t, "first", "named")
		if got := shop.has(t, first)[0]; got.Pool != "shop" || got.Domain != "shop" {
			t.Errorf("it has %+v", got)
		}
		shop.wantEvent(t, shop.on(t, "second", "named"), "NetworkExhausted", "spec.quota.perNamespace allows 1")
		if n, err := taken(t.Context(), c, "shop"); err != nil || n != 1 {
			t.Errorf("error %v: %d addresses of domain shop are taken", err, n)
		}
	})

	t.Run("a domain that a namespace names is its own", func(t *testing.T) {
		mine := evil.network(t, "mine", `"type":"whereabouts","range":"10.70.0.0/24","network_name":"lan"`)
		theirs := shop.network(t, "theirs", `"type":"whereabouts","range":"10.70.0.0/24","network_name":"lan"`)
		a, b := evil.has(t, evil.on(t, "mine", "mine"))[0], shop.has(t, shop.on(t, "theirs", "theirs"))[0]
		if a.Domain == b.Domain || !strings.HasPrefix(a.Domain, "nad-"+evil.ns) {
			t.Errorf("the domains are %s and %s", a.Domain, b.Domain)
		}
		if note := evil.wantEvent(t, mine, "RangeShared", "10.70.0.0/24", "spec.networkNamespaceSelector"); strings.Contains(note, shop.ns) {
			t.Errorf("the event names the other namespace: %s", note)
		}
		shop.wantEvent(t, theirs, "RangeShared", "10.70.0.0/24")
	})

	t.Run("a network that changes leaves nothing", func(t *testing.T) { changing(t, newTenant(t, c, "changing", nil)) })
}

// changing edits a network 305 times, the last times with a pod on it.
func changing(t *testing.T, m *tenant) {
	rangeOf := func(i int) string { return fmt.Sprintf("10.%d.%d.0/24", 100+i/200, i%200) }
	config := func(i int) string {
		return fmt.Sprintf(`"type":"whereabouts","range":%q,"network_name":"d%d"`, rangeOf(i), i)
	}
	edit := func(nad *unstructured.Unstructured, i int) {
		t.Helper()
		m.c.Eventually(t, "the network to be changed", func(ctx context.Context) error {
			if err := m.Get(ctx, client.ObjectKeyFromObject(nad), nad); err != nil {
				return err
			}
			nad.Object["spec"] = map[string]any{"config": configOf(config(i))}
			return m.Update(ctx, nad)
		})
	}
	written := func(ctx context.Context) (names []string, err error) {
		var pools v1alpha1.IPPoolList
		err = m.c.Client.List(ctx, &pools, client.MatchingLabels{v1alpha1.LabelNetworkNamespace: m.ns})
		for _, p := range pools.Items {
			names = append(names, p.Name)
		}
		return names, err
	}
	count := func(n int) {
		t.Helper()
		m.c.Eventually(t, fmt.Sprintf("%d pools", n), func(ctx context.Context) error {
			names, err := written(ctx)
			if err == nil && len(names) != n {
				err = fmt.Errorf("there are %v", names)
			}
			return err
		})
	}
	// seen waits until the controller has seen an edit: a pod that it handles before has an
	// address of the network as it was.
	seen := func(i int) {
		t.Helper()
		m.c.Eventually(t, "the pool of "+rangeOf(i), func(ctx context.Context) error {
			var pools v1alpha1.IPPoolList
			err := m.c.Client.List(ctx, &pools, client.MatchingLabels{v1alpha1.LabelNetworkNamespace: m.ns})
			if err == nil && !slices.ContainsFunc(pools.Items, func(p v1alpha1.IPPool) bool { return slices.Contains(p.Spec.Ranges, rangeOf(i)) }) {
				err = fmt.Errorf("it is not among %d pools", len(pools.Items))
			}
			return err
		})
	}
	nad := m.network(t, "x", config(0))
	for i := range 300 {
		edit(nad, i)
		if names, err := written(t.Context()); err != nil || len(names) > 4 {
			t.Fatalf("error %v: there are %d pools: %v", err, len(names), names)
		}
	}
	count(1)
	// Pools in use stay, up to the limit networkPoolsPerNamespace.
	var pods []*corev1.Pod
	for i := range 4 {
		edit(nad, 300+i)
		seen(300 + i)
		p := m.on(t, fmt.Sprintf("p%d", i), "x")
		m.has(t, p)
		pods = append(pods, p)
	}
	edit(nad, 304)
	m.wantEvent(t, nad, "PoolLimit", "networkPoolsPerNamespace", "there are 4")
	waits := m.on(t, "waits", "x")
	m.wantEvent(t, waits, "NetworkUnavailable", "an event on the network says why")
	count(4)
	m.delete(t, pods[0])
	m.has(t, waits)
	// After the network and its pods are deleted, no pool and no block is left.
	m.delete(t, nad)
	m.delete(t, waits)
	for _, p := range pods[1:] {
		m.delete(t, p)
	}
	count(0)
	m.c.Eventually(t, "no blocks", func(ctx context.Context) error {
		var blocks v1alpha1.IPBlockList
		err := m.c.Client.List(ctx, &blocks)
		for _, b := range blocks.Items {
			if strings.HasPrefix(b.Spec.Domain, "nad-"+m.ns) {
				err = fmt.Errorf("there is %s", b.Name)
			}
		}
		return err
	})
}

// An event on a tenant's pod names the holder of an address if the holder is in her
// namespace, and no details of other holders.
func TestEventsTellNothingOfOthers(t *testing.T) {
	t.Parallel()
	c := cluster.Exclusive(t)
	c.Node("node-x")
	c.Node("node-secret")
	create(t, c, &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: v1alpha1.IPPoolSpec{Ranges: []string{"10.1.0.0/24"}}})
	supervise(t, c.Account(cluster.ControllerAccount, ""))
	m := newTenant(t, c, "evil", nil)
	victim := c.Pod("db-0", "node-secret")
	asks := m.pod(t, "asks", map[string]string{v1alpha1.AnnotationAddresses: addressOf(t, c, victim)})
	note := m.wantEvent(t, asks, "NetworkConflict", "is held by another pod")
	for _, secret := range []string{victim.Name, victim.Namespace, string(victim.UID), "node-secret"} {
		if strings.Contains(note, secret) {
			t.Errorf("the event names %s: %s", secret, note)
		}
	}
	own := m.pod(t, "own", nil)
	again := m.pod(t, "again", map[string]string{v1alpha1.AnnotationAddresses: addressOf(t, c, own)})
	m.wantEvent(t, again, "NetworkConflict", m.ns+"/own")

	// Characters of several bytes make the note longer. The event is written for them, too.
	for i, text := range []string{strings.Repeat("\U0001F600", 253), "a" + strings.Repeat("\U0001F600", 252), "ab" + strings.Repeat("\U0001F600", 251)} {
		p := m.pod(t, fmt.Sprintf("long-%d", i), map[string]string{v1alpha1.AnnotationClaim: text + " ", v1alpha1.AnnotationAddresses: "10.1.0.1"})
		m.wantEvent(t, p, "NetworkInvalid", v1alpha1.AnnotationClaim)
	}
}
