package native

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/test/blocktest"
	"fairlead.dev/fairlead/test/drivertest"
)

// onNetwork returns a request for an interface on a network of a namespace with labels.
func onNetwork(n int, namespace string, labels map[string]string, pools ...string) *driver.Request {
	r := drivertest.Request(n)
	r.Interface, r.Network, r.Default, r.AddressOnly = "net1", namespace+"/lan", false, true
	r.NetworkLabels, asks(r).Pools = labels, pools
	return r
}

// onPool returns a request for a further interface of a pod, on a pool that the pod names.
func onPool(n int, pool string) *driver.Request {
	r := drivertest.Request(n)
	r.Interface, r.Default = "net1", false
	asks(r).Pools = []string{pool}
	return r
}

// An additional pool has to serve the pod by its selectors and its quota, as a pool that
// the pod names for its default interface.
func TestAdditionalPoolServesThePod(t *testing.T) {
	d := start(t, blocktest.NewAPI(), "default")
	d.pool("default", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.0/24"}})
	d.pool("storage", v1alpha1.IPPoolSpec{Ranges: []string{"10.1.0.0/24"}, NamespaceSelector: selects("team", "db"), Quota: v1alpha1.Quota{PerNamespace: 1}})
	as := func(n int, team string) *driver.Request {
		r := onPool(n, "storage")
		r.NamespaceLabels = map[string]string{"team": team}
		return r
	}
	d.refused(as(1, "web"), "NotFound", "spec.namespaceSelector")
	if got := d.get(as(1, "db")); got != "storage 10.1.0.1/32" {
		t.Error(got)
	}
	d.refused(as(2, "db"), "Exhausted", "quota")
	d.refused(onPool(3, "missing"), "NotFound", `no IPPool "missing"`)
	d.refused(onPool(3, "default"), "Invalid", "packets to it would leave by two interfaces")
	a, err := d.Ensure(t.Context(), as(1, "db"))
	if err != nil {
		t.Fatal(err)
	}
	if i := a.Interface; i.Network != v1alpha1.DefaultNetwork || i.Default || i.Binding.Routed == nil {
		t.Errorf("not plugged like the default interface: %+v", i)
	}
}

// A pool serves the default network and the networks that the operator opened it to.
func TestPoolsAreOpenedToNetworks(t *testing.T) {
	shop := map[string]string{"team": "shop"}
	for _, tc := range []struct {
		name     string
		defaults []string
		opened   *metav1.LabelSelector
		labels   map[string]string
		ask      *driver.Request
		want     string
		says     string
	}{
		{"closed", nil, nil, nil, onNetwork(1, "evil", shop, "a"), "NotFound", "spec.networkNamespaceSelector"},
		{"closed, as the default pool of a network that names none", []string{"a"}, nil, nil, onNetwork(1, "evil", shop), "NotFound", "namespace evil"},
		{"closed, for each pool", nil, nil, nil, func() *driver.Request { r := onNetwork(1, "evil", shop, "a"); asks(r).EachPool = true; return r }(), "NotFound", "namespace evil"},
		{"the operator's own network", nil, nil, nil, onNetwork(1, "fairlead-system", nil, "a"), "OK", ""},
		{"the default network's own pool, from the operator's namespace", []string{"a"}, nil, nil, onNetwork(1, "fairlead-system", nil, "a"), "NotFound", "spec.networkNamespaceSelector"},
		{"the default network's own pool, opened", []string{"a"}, &metav1.LabelSelector{}, nil, onNetwork(1, "web", shop), "OK", ""},
		{"opened to its namespace", nil, selects("team", "shop"), nil, onNetwork(1, "web", shop, "a"), "OK", ""},
		{"opened to another", nil, selects("team", "shop"), nil, onNetwork(1, "evil", map[string]string{"team": "evil"}, "a"), "NotFound", "team=shop"},
		{"opened to all", nil, &metav1.LabelSelector{}, nil, onNetwork(1, "evil", map[string]string{}, "a"), "OK", ""},
		{"labels not known yet", nil, &metav1.LabelSelector{}, nil, onNetwork(1, "evil", nil, "a"), "Unavailable", "not known yet"},
		{"the default network", []string{"a"}, nil, nil, drivertest.Request(1), "OK", ""},
		{"an additional pool", nil, nil, nil, onPool(1, "a"), "OK", ""},
		{"an additional pool that was written for networks", nil, nil, map[string]string{v1alpha1.LabelNetworkNamespace: "web"}, onPool(1, "a"), "NotFound", "further networks"},
		{"written for its namespace", nil, nil, map[string]string{v1alpha1.LabelNetworkNamespace: "web"}, onNetwork(1, "web", shop, "a"), "OK", ""},
		{"written for another", nil, nil, map[string]string{v1alpha1.LabelNetworkNamespace: "web"}, onNetwork(1, "evil", shop, "a"), "NotFound", "namespace evil"},
		{"written for networks", []string{"a"}, nil, map[string]string{v1alpha1.LabelNetworkNamespace: "web"}, drivertest.Request(1), "NotFound", "further networks"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := start(t, blocktest.NewAPI(), tc.defaults...)
			d.cfg.Namespace = "fairlead-system"
			d.pools.observe(&v1alpha1.IPPool{
				ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: tc.labels},
				Spec:       v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.0/24"}, NetworkNamespaceSelector: tc.opened},
			})
			d.refused(tc.ask, tc.want, tc.says)
		})
	}
}

// An interface keeps its addresses if the pool is closed to its network.
func TestClosedPoolKeepsWhatIsHeld(t *testing.T) {
	d := start(t, blocktest.NewAPI(), "a")
	d.pool("a", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.0/24"}, NetworkNamespaceSelector: &metav1.LabelSelector{}})
	ask := onNetwork(1, "web", map[string]string{}, "a")
	had := d.get(ask)
	d.pool("a", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.0/24"}})
	if got := d.get(ask); got != had {
		t.Errorf("got %s, want %s", got, had)
	}
	d.refused(onNetwork(2, "web", map[string]string{}, "a"), "NotFound")
}
