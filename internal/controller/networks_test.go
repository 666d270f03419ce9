package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/nad"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/internal/source/npwg"
	"fairlead.dev/fairlead/internal/whereabouts"
	"fairlead.dev/fairlead/test/cluster"
	"fairlead.dev/fairlead/test/drivertest"
)

// startNetworks runs a controller with the source npwg, for which no pool is in use.
func startNetworks(t *testing.T, c *cluster.Cluster, with ...func(*Config, ctrl.Manager)) (*harness, *npwg.Networks) {
	t.Helper()
	return startNetworksIf(t, c, func() bool { return true }, with...)
}

// maxPools is how many pools a namespace of the tests may have for its networks.
const maxPools = 3

// startNetworksIf is startNetworks with a function that reports whether a pool is vacant.
func startNetworksIf(t *testing.T, c *cluster.Cluster, vacant func() bool, with ...func(*Config, ctrl.Manager)) (*harness, *npwg.Networks) {
	t.Helper()
	c.Networks()
	var networks *npwg.Networks
	npwg := func(cfg *Config, mgr ctrl.Manager) {
		networks = npwg.New(npwg.Config{
			Informers: mgr.GetCache(), Client: mgr.GetClient(), Warnings: WarningsOf(mgr.GetClient()), Namespace: "fairlead-system", MaxPools: maxPools,
			Drivers: map[string]string{nad.Type: driverName, whereabouts.Type: driverName},
			Vacant: func(context.Context, *v1alpha1.IPPool) (bool, time.Duration, error) {
				if vacant() {
					return true, 0, nil
				}
				return false, 20 * time.Millisecond, nil
			},
		})
		cfg.Rules.Sources, cfg.Rules.Chosen, cfg.Retry = append(cfg.Rules.Sources, networks.Source), networks.Chosen, networks.Watch
		always := func(ctx context.Context, f func(context.Context) error) error { return f(ctx) }
		if err := mgr.Add(manager.RunnableFunc(func(ctx context.Context) error { return networks.Run(ctx, always) })); err != nil {
			t.Fatal(err)
		}
	}
	return start(t, c, drivertest.NewMemory(driverName, 64), append(with, npwg)...), networks
}

func onNetworks(text string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations = map[string]string{pod.AnnotationNetworks: text} }
}

// shape lists the interfaces of a record: name, network, and whether another plugin makes
// it.
func shape(record *v1alpha1.PodAttachment) []string {
	var out []string
	for _, i := range record.Spec.Interfaces {
		text := i.Name + " " + i.Network
		if i.Binding.AddressOnly != nil {
			text += " addressOnly"
		}
		out = append(out, text)
	}
	return out
}

func TestNetworksOfAPod(t *testing.T) {
	h, _ := startNetworks(t, cluster.New(t))
	h.Network("ours", `{"type":"bridge","ipam":{"type":"fairlead-ipam","pools":["a"]}}`)
	// whereabouts#704: networks of others break nothing, and are left alone.
	h.Network("foreign", `{"type":"macvlan","ipam":{"type":"host-local"}}`)
	h.Network("wrong", `{"type":"macvlan","ipam":{"type":"whereabouts","range":"10.0.0"}}`)

	p := h.Pod("both", h.node, onNetworks("foreign,ours,ours@fast"))
	want := []string{"eth0 default", "net2 " + h.Namespace + "/ours addressOnly", "fast " + h.Namespace + "/ours addressOnly"}
	if diff := cmp.Diff(want, shape(h.record(p))); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	p = h.Pod("foreign-only", h.node, onNetworks("foreign"))
	if diff := cmp.Diff([]string{"eth0 default"}, shape(h.record(p))); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if note := h.event(h.Pod("bad", h.node, onNetworks("a/b/c")), "NetworkInvalid"); !strings.Contains(note, pod.AnnotationNetworks) {
		t.Error(note)
	}
	if note := h.event(h.Pod("wrong", h.node, onNetworks("wrong")), "NetworkInvalid"); !strings.Contains(note, "ipam.range") {
		t.Error(note)
	}

	// A request that is not served is an error on a network with addresses from Fairlead;
	// networks of others are left alone.
	for name, ask := range map[string]string{
		"claims-with-ips": `[{"name":"ours","ips":["10.0.0.7"],"ipam-claim-reference":"vm.ours"}]`,
	} {
		if note := h.event(h.Pod(name, h.node, onNetworks(ask)), "NetworkInvalid"); !strings.Contains(note, "ipam-claim-reference") || !strings.Contains(note, "vm.ours") {
			t.Error(note)
		}
	}
	h.record(h.Pod("claims-of-others", h.node, onNetworks(`[{"name":"foreign","ipam-claim-reference":"vm.foreign"}]`)))

	// A network that comes after its pod.
	late := h.Pod("late", h.node, onNetworks("late"))
	if note := h.event(late, "NetworkNotFound"); !strings.Contains(note, h.Namespace+"/late") {
		t.Error(note)
	}
	h.Network("late", `{"plugins":[{"type":"bridge","ipam":{"type":"fairlead-ipam","pools":["a"]}}]}`)
	h.record(late)
}

func choosing(network string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations = map[string]string{pod.AnnotationDefaultNetwork: network} }
}

// Where another plugin makes the default interface, Multus uses the network that the pod
// chooses. The pod gets that network's addresses, or none from Fairlead.
func TestChosenDefaultNetwork(t *testing.T) {
	h, _ := startNetworks(t, cluster.New(t), func(cfg *Config, _ ctrl.Manager) { cfg.Rules.AddressOnly = true })
	h.Network("ours", `{"type":"bridge","ipam":{"type":"fairlead-ipam","pools":["a"]}}`)
	h.Network("foreign", `{"type":"macvlan","ipam":{"type":"host-local"}}`)
	h.Network("file", "")
	chosen := func(name string) string { return h.Namespace + "/" + name }
	and := func(further string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Annotations[pod.AnnotationNetworks] = further }
	}
	for _, tc := range []struct {
		pod  *corev1.Pod
		want []string
	}{
		{h.Pod("none", h.node), []string{"eth0 default addressOnly"}},
		{h.Pod("ours", h.node, choosing(chosen("ours"))), []string{"eth0 " + chosen("ours") + " addressOnly"}},
		{h.Pod("file", h.node, choosing(chosen("file"))), []string{"eth0 default addressOnly"}},
		{h.Pod("foreign", h.node, choosing(chosen("foreign")), and("ours")), []string{"net1 " + chosen("ours") + " addressOnly"}},
	} {
		record := h.record(tc.pod)
		if diff := cmp.Diff(tc.want, shape(record)); diff != "" {
			t.Errorf("pod %s: -want +got:\n%s", tc.pod.Name, diff)
		}
		if first := record.Spec.Interfaces[0]; first.Default != (first.Name == "eth0") {
			t.Errorf("pod %s: %+v", tc.pod.Name, first)
		}
	}
	if note := h.event(h.Pod("missing", h.node, choosing("missing")), "NetworkNotFound"); !strings.Contains(note, "kube-system/missing") || !strings.Contains(note, pod.AnnotationDefaultNetwork) {
		t.Error(note)
	}
}

// A choice that cannot be served is an error, and the pod gets no address of another
// network.
func TestChosenIsNeverIgnored(t *testing.T) {
	own := func(_ *corev1.Pod, s pod.Selection) ([]pod.Interface, error) {
		return []pod.Interface{{Name: s.Interface, Network: s.Network(), Default: true, AddressOnly: true, Pools: []string{"a"}}}, nil
	}
	for _, tc := range []struct {
		name        string
		addressOnly bool
		chosen      func(*corev1.Pod, pod.Selection) ([]pod.Interface, error)
		annotations map[string]string
		want        string
		fails       []string
	}{
		{"nothing chosen", true, own, nil, "default", nil},
		{"chosen", true, own, map[string]string{pod.AnnotationDefaultNetwork: "blue/net-a"}, "blue/net-a", nil},
		{"our own interface, which Multus would make too", false, own, map[string]string{pod.AnnotationDefaultNetwork: "blue/net-a"}, "", []string{pod.AnnotationDefaultNetwork, "blue/net-a", "remove the annotation"}},
		{"our own interface, and not to be read", false, own, map[string]string{pod.AnnotationDefaultNetwork: "a,b"}, "", []string{pod.AnnotationDefaultNetwork, "remove the annotation"}},
		{"networks are not read", true, nil, map[string]string{pod.AnnotationDefaultNetwork: "blue/net-a"}, "", []string{pod.AnnotationDefaultNetwork, "multiVIFSources"}},
		{"not to be read", true, own, map[string]string{pod.AnnotationDefaultNetwork: "a,b"}, "", []string{pod.AnnotationDefaultNetwork, "must name one"}},
		{"an address of the other network", true, own, map[string]string{pod.AnnotationDefaultNetwork: "blue/net-a", v1alpha1.AnnotationAddresses: "10.0.0.7"}, "", []string{v1alpha1.AnnotationAddresses, "blue/net-a"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := New(Config{DefaultDriver: driverName, Rules: pod.Rules{AddressOnly: tc.addressOnly, Chosen: tc.chosen}, Client: nothingCached{}})
			p := &corev1.Pod{}
			p.Annotations = tc.annotations
			got, err := r.ensurer.requests.wanted(p)
			if len(tc.fails) > 0 {
				for _, want := range tc.fails {
					if driver.Result(err) != "Invalid" || !strings.Contains(err.Error(), want) {
						t.Errorf("%s: %v", driver.Result(err), err)
					}
				}
				return
			}
			if err != nil || len(got) != 1 || got[0].Network != tc.want || got[0].Name != "eth0" {
				t.Fatalf("%v, %+v", err, got)
			}
			r.ensurer.requests.drivers = driver.Table{driverName: {Networks: driver.Networks{Read: func(_ *corev1.Pod, i *pod.Interface) (any, error) { return i.Pools, nil }}}}
			request, err := r.ensurer.requests.request(t.Context(), p, &driver.Request{}, &got[0])
			if err != nil || !request.Default {
				t.Fatalf("%v, %+v", err, request)
			}
			if want := map[bool][]string{true: nil, false: {"a"}}[tc.want == "default"]; !slices.Equal(request.Asks.([]string), want) {
				t.Errorf("it draws from %v", request.Asks)
			}
		})
	}
}

// Where Fairlead attaches pods to networks, it makes the chosen one as the default
// interface, also if it makes that interface otherwise.
func TestChosenWhereFairleadAttaches(t *testing.T) {
	r := New(Config{
		DefaultDriver: driverName,
		Rules: pod.Rules{
			Chosen: func(_ *corev1.Pod, s pod.Selection) ([]pod.Interface, error) {
				return []pod.Interface{{Name: s.Interface, Network: s.Network(), Default: true}}, nil
			},
			Attaches: func(p *corev1.Pod) bool { return p.Spec.NodeName == "ours" },
		},
	})
	p := &corev1.Pod{}
	p.Annotations = map[string]string{pod.AnnotationDefaultNetwork: "blue/net-a"}
	if got, err := r.ensurer.requests.wanted(p); driver.Result(err) != "Invalid" {
		t.Errorf("on a node of Multus: %+v, %v", got, err)
	}
	p.Spec.NodeName = "ours"
	got, err := r.ensurer.requests.wanted(p)
	if err != nil || len(got) != 1 || got[0].Network != "blue/net-a" {
		t.Errorf("on a node of Fairlead: %+v, %v", got, err)
	}
	// The configuration chooses for the others.
	r.ensurer.requests.rules.Network = pod.Selection{Namespace: "kube-system", Name: "cilium", Interface: "eth0"}
	for node, want := range map[string]string{"ours": "kube-system/cilium", "others": v1alpha1.DefaultNetwork} {
		p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: node}}
		if got, err := r.ensurer.requests.wanted(p); err != nil || len(got) != 1 || got[0].Network != want {
			t.Errorf("on node %s: %+v, %v", node, got, err)
		}
	}
}

// nothingCached is a cache that has nothing.
type nothingCached struct{ client.Client }

func (nothingCached) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

// Where Fairlead serves no default interface, a choice of a network with addresses from
// Fairlead is refused; every other choice is left to Multus.
func TestChosenOfOthers(t *testing.T) {
	ours := func(_ *corev1.Pod, s pod.Selection) ([]pod.Interface, error) {
		switch s.Name {
		case "ours":
			return []pod.Interface{{Name: s.Interface, Network: s.Network(), Default: true}}, nil
		case "file":
			return []pod.Interface{pod.Default(true)}, nil
		case "missing":
			return nil, fault.ErrNotFound
		}
		return nil, nil
	}
	for chosen, refused := range map[string]bool{"": false, "blue/ours": true, "blue/file": false, "blue/missing": false, "blue/foreign": false, "a,b": false} {
		r := New(Config{Rules: pod.Rules{Chosen: ours}})
		p := &corev1.Pod{}
		p.Annotations = map[string]string{pod.AnnotationDefaultNetwork: chosen}
		got, err := r.ensurer.requests.wanted(p)
		if len(got) != 0 || (err != nil) != refused || refused && (driver.Result(err) != "Invalid" || !strings.Contains(err.Error(), "addressOnly")) {
			t.Errorf("%q: %v, %+v", chosen, err, got)
		}
	}
}

// Deletion of a pod gives back its addresses on every network, with an event for each
// network other than the default one, also if the network is gone: the control loop of
// whereabouts frees nothing then (ipam.md 1.6).
func TestDeletionGivesBackOnEveryNetwork(t *testing.T) {
	h, _ := startNetworks(t, cluster.New(t))
	network := h.Network("blue", `{"type":"bridge","ipam":{"type":"fairlead-ipam","pools":["a"]}}`)
	h.driver.FailWith(func(method string, o driver.Owner) error {
		if method == "release" && o.PodName == "web" && o.Interface == "net1" {
			return fmt.Errorf("%w: on fire", fault.ErrUnavailable)
		}
		return nil
	})
	p := h.Pod("web", h.node, onNetworks("blue,blue"))
	record := h.record(p)
	if len(record.Spec.Interfaces) != 3 {
		t.Fatalf("interfaces %v", shape(record))
	}
	if err := h.Client.Delete(t.Context(), network); err != nil {
		t.Fatal(err)
	}
	h.delete(p)
	h.waitState(p, "deleting")
	h.setSandbox(p, v1alpha1.SandboxDetached)

	first, _, _ := strings.Cut(record.Spec.Interfaces[1].Addresses[0], "/")
	note := h.event(p, "IPAddressGarbageCollectionFailed")
	if !strings.Contains(note, first) || !strings.Contains(note, h.Namespace+"/blue") || !strings.Contains(note, "on fire") {
		t.Errorf("event %q does not name address %s, its network and why", note, first)
	}
	h.driver.FailWith(nil)
	h.waitState(p, "absent")
	if n := h.heldBy(p); n != 0 {
		t.Errorf("%d interfaces still held", n)
	}
	note = h.event(p, "IPAddressGarbageCollected")
	if !strings.Contains(note, "192.0.2.") || !strings.Contains(note, "of network") {
		t.Errorf("event %q names no address and network", note)
	}
}

// Where Fairlead does not serve the default network, only pods with further networks have
// a record.
func TestNoDefaultNetwork(t *testing.T) {
	h, _ := startNetworks(t, cluster.New(t), func(c *Config, _ ctrl.Manager) { c.DefaultDriver = "" })
	h.Network("blue", `{"type":"bridge","ipam":{"type":"fairlead-ipam","pools":["a"]}}`)
	plain := h.Pod("plain", h.node)
	p := h.Pod("web", h.node, onNetworks("blue"))
	if diff := cmp.Diff([]string{"net1 " + h.Namespace + "/blue addressOnly"}, shape(h.record(p))); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got := h.state(t.Context(), plain); got != "absent" {
		t.Errorf("the record of a pod on the default network is %s", got)
	}
	h.delete(p)
	h.waitState(p, "deleting")
	h.setSandbox(p, v1alpha1.SandboxDetached)
	h.waitState(p, "absent")
}

func TestDefaultNetworkByAnotherPlugin(t *testing.T) {
	h := start(t, cluster.New(t), drivertest.NewMemory(driverName, 8), func(c *Config, _ ctrl.Manager) { c.Rules.AddressOnly = true })
	record := h.record(h.Pod("web", h.node))
	if diff := cmp.Diff([]string{"eth0 default addressOnly"}, shape(record)); diff != "" || !record.Spec.Interfaces[0].Default {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// poolsOf returns the pools written for networks of the test's namespace, by name.
func (h *harness) poolsOf(ctx context.Context) (names []string, err error) {
	var pools v1alpha1.IPPoolList
	err = h.Client.List(ctx, &pools, client.MatchingLabels{v1alpha1.LabelNetworkNamespace: h.Namespace})
	for _, p := range pools.Items {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return names, err
}

// count waits until so many pools are written for networks of the test's namespace.
func (h *harness) count(n int) {
	h.t.Helper()
	h.Eventually(h.t, fmt.Sprintf("%d pools", n), func(ctx context.Context) error {
		names, err := h.poolsOf(ctx)
		if err == nil && len(names) != n {
			err = fmt.Errorf("there are %v", names)
		}
		return err
	})
}

// networkEvent waits for an event on a network whose text has all of the words.
func (h *harness) networkEvent(name, reason string, says ...string) {
	h.t.Helper()
	h.Eventually(h.t, "the event "+reason+" on network "+name, func(ctx context.Context) error {
		var list eventsv1.EventList
		if err := h.Client.List(ctx, &list, client.InNamespace(h.Namespace)); err != nil {
			return err
		}
		var seen []string
		for _, e := range list.Items {
			if e.Regarding.Kind != "NetworkAttachmentDefinition" || e.Regarding.Name != name {
				continue
			}
			seen = append(seen, e.Reason+": "+e.Note)
			if e.Reason == reason && !slices.ContainsFunc(says, func(s string) bool { return !strings.Contains(e.Note, s) }) {
				return nil
			}
		}
		return fmt.Errorf("none says %q, seen: %q", says, seen)
	})
}

// edit changes a network's configuration.
func (h *harness) edit(network *unstructured.Unstructured, config string) {
	h.t.Helper()
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"config": config}})
	if err == nil {
		err = h.Client.Patch(h.t.Context(), network, client.RawPatch(types.MergePatchType, patch))
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

func onRange(network, text string) string {
	return fmt.Sprintf(`{"type":"macvlan","ipam":{"type":"whereabouts","network_name":%q,"range":%q}}`, network, text)
}

// The pools of a network with the configuration of whereabouts are written before a pod
// needs them, and again after a deletion by hand.
func TestPoolsOfWhereabouts(t *testing.T) {
	c := cluster.New(t)
	var vacant atomic.Bool
	h, networks := startNetworksIf(t, c, vacant.Load)
	network := h.Network("wb", `{"type":"macvlan","ipam":{"type":"whereabouts","network_name":"`+h.Namespace+`","range":"10.0.0.0/24",
		"exclude":["10.0.0.0/28"],"gateway":"10.0.0.1","ipRanges":[{"range":"fd00::/64"}],"routes":[{"dst":"10.8.0.0/16"}],"node_slice_size":"/28"}}`)
	h.count(2)
	var pools v1alpha1.IPPoolList
	if err := h.Client.List(t.Context(), &pools, client.MatchingLabels{v1alpha1.LabelNetworkNamespace: h.Namespace}); err != nil {
		t.Fatal(err)
	}
	for _, p := range pools.Items {
		if p.Labels["app.kubernetes.io/managed-by"] != "fairlead-controller" {
			t.Errorf("pool %s has labels %v", p.Name, p.Labels)
		}
		if want := whereabouts.NamespaceDomain(h.Namespace, h.Namespace); p.Spec.Domain != want {
			t.Errorf("pool %s is of domain %s, want %s", p.Name, p.Spec.Domain, want)
		}
	}
	if err := h.Client.Delete(t.Context(), &pools.Items[0]); err != nil {
		t.Fatal(err)
	}
	h.count(2)

	record := h.record(h.Pod("web", h.node, onNetworks("wb")))
	i := record.Spec.Interfaces[1]
	if i.Gateways[0] != "10.0.0.1" || i.Routes[0].Destination != "10.8.0.0/16" {
		t.Errorf("interface %+v", i)
	}
	asks := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: h.Namespace}}
	onNetworks("wb")(asks)
	w, err := networks.Source(asks)
	if err != nil || len(w) != 1 || len(w[0].Pools) != 2 || !w[0].EachPool || w[0].Driver != driverName {
		t.Errorf("error %v, interfaces %+v", err, w)
	}
	if err := h.Client.Delete(t.Context(), network); err != nil {
		t.Fatal(err)
	}
	h.Eventually(t, "the network to be forgotten", func(context.Context) error {
		if _, err := networks.Source(asks); driver.Result(err) != "NotFound" {
			return fmt.Errorf("it is still known")
		}
		return nil
	})
	if names, err := h.poolsOf(t.Context()); err != nil || len(names) != 2 {
		t.Errorf("error %v: pools in use went with their network: there are %v", err, names)
	}
	vacant.Store(true)
	h.count(0)
}

// A network that changes again and again leaves no pools behind. A namespace has no more
// pools than its limit, and an event on the network reports the limit.
func TestPoolsOfNetworksAreBounded(t *testing.T) {
	var vacant atomic.Bool
	vacant.Store(true)
	h, _ := startNetworksIf(t, cluster.New(t), vacant.Load)
	network := h.Network("x", onRange("n", "10.0.0.0/24"))
	for i := range 30 {
		h.edit(network, onRange(fmt.Sprintf("n%d", i), fmt.Sprintf("10.%d.0.0/24", i)))
	}
	h.count(1)
	vacant.Store(false)
	for i := range 30 {
		h.edit(network, onRange(fmt.Sprintf("m%d", i), fmt.Sprintf("10.%d.1.0/24", i)))
	}
	h.networkEvent("x", "PoolLimit", "networkPoolsPerNamespace", "there are 3", h.Namespace)
	h.count(maxPools)
	if note := h.event(h.Pod("waits", h.node, onNetworks("x")), "NetworkUnavailable"); !strings.Contains(note, "an event on the network says why") {
		t.Error(note)
	}
	vacant.Store(true)
	h.count(1)
	h.record(h.Pod("served", h.node, onNetworks("x")))
	if err := h.Client.Delete(t.Context(), network); err != nil {
		t.Fatal(err)
	}
	h.count(0)
}
