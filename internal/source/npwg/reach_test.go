package npwg

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/whereabouts"
)

// operators returns a pool that a person wrote. It is open to namespaces of a team; to
// none if team is empty, and to all if it is "*".
func operators(name, domain, team string, ranges ...string) *v1alpha1.IPPool {
	p := &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.IPPoolSpec{Domain: domain, Ranges: ranges}}
	switch team {
	case "":
	case "*":
		p.Spec.NetworkNamespaceSelector = &metav1.LabelSelector{}
	default:
		p.Spec.NetworkNamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": team}}
	}
	return p
}

// A network draws from the pools that the operator opened to its namespace, otherwise
// from its own ranges in a domain of its namespace alone.
func TestReach(t *testing.T) {
	const lan = `"range":"10.60.0.0/24"`
	shop := `"network_name":"shop",` + lan
	private := func(namespace, network string) string {
		return "own " + whereabouts.NamespaceDomain(namespace, network)
	}
	c, _, err := whereabouts.Parse([]byte(`{"type":"whereabouts",`+shop+"}"), nil)
	if err != nil {
		t.Fatal(err)
	}
	same := whereabouts.PoolOf(c, c.Ranges[0], "shop").Name
	perNode := operators("routed", "shop", "*", "10.60.0.0/24")
	perNode.Spec.Placement = v1alpha1.PlacementPerNode
	foreign := operators("wb-x", whereabouts.NamespaceDomain("other", "shop"), "", "10.60.0.0/24")
	foreign.Labels = map[string]string{v1alpha1.LabelNetworkNamespace: "other"}
	for _, tc := range []struct {
		name      string
		pools     []*v1alpha1.IPPool
		namespace string
		section   string
		want      []string
		fails     []string
	}{
		{"named by itself", nil, "evil", shop, []string{private("evil", "shop")}, nil},
		{"unnamed", nil, "evil", lan, []string{private("evil", "")}, nil},
		{"unnamed, beside the default network", []*v1alpha1.IPPool{operators("default", "default", "", "10.128.0.0/16")}, "evil", lan, []string{private("evil", "")}, nil},
		{"another namespace has it for itself", []*v1alpha1.IPPool{foreign}, "evil", shop, []string{private("evil", "shop")}, nil},
		{"the name of another namespace's domain", []*v1alpha1.IPPool{foreign}, "evil", `"network_name":"` + foreign.Spec.Domain + `",` + lan, []string{private("evil", foreign.Spec.Domain)}, nil},

		{"the operator's, closed", []*v1alpha1.IPPool{operators("shop", "shop", "", "10.60.0.0/24")}, "evil", shop, nil, []string{"shop", "10.60.0.0/24", "spec.networkNamespaceSelector"}},
		{"the operator's, open to others", []*v1alpha1.IPPool{operators("shop", "shop", "shop", "10.60.0.0/24")}, "evil", shop, nil, []string{"namespace evil"}},
		{"the operator's, open to it", []*v1alpha1.IPPool{operators("shop", "shop", "shop", "10.60.0.0/24")}, "web", shop, []string{"shop"}, nil},
		{"the operator's, open to all", []*v1alpha1.IPPool{operators("shop", "shop", "*", "10.60.0.0/24")}, "evil", shop, []string{"shop"}, nil},
		{"a namespace that is not known", []*v1alpha1.IPPool{operators("shop", "shop", "*", "10.60.0.0/24")}, "nowhere", shop, nil, []string{"namespace nowhere"}},
		{"from the controller's namespace", []*v1alpha1.IPPool{operators("shop", "shop", "", "10.60.0.0/24")}, "fairlead-system", shop, []string{"shop"}, nil},
		{"open, with a part of the range", []*v1alpha1.IPPool{operators("shop", "shop", "*", "10.60.0.64/26")}, "evil", shop, []string{"shop"}, nil},
		{"open, with more than the range", []*v1alpha1.IPPool{operators("shop", "shop", "*", "10.60.0.0/16")}, "evil", shop, nil, []string{"10.60.0.0/24"}},
		{"open, elsewhere", []*v1alpha1.IPPool{operators("shop", "shop", "*", "10.61.0.0/24")}, "evil", shop, nil, []string{"10.60.0.0/24"}},
		{"open, but routed to nodes", []*v1alpha1.IPPool{perNode}, "evil", shop, nil, []string{"10.60.0.0/24"}},
		{"of several the one with the same configuration", []*v1alpha1.IPPool{operators("a", "shop", "*", "10.60.0.0/24"), operators(same, "shop", "*", "10.60.0.0/24")}, "evil", shop, []string{same}, nil},
		{"one for each range", []*v1alpha1.IPPool{operators("v4", "shop", "*", "10.60.0.0/24"), operators("v6", "shop", "*", "fd00::/64")}, "evil", shop + `,"ipRanges":[{"range":"fd00::/64"}]`, []string{"v4", "v6"}, nil},
		{"none for one of the ranges", []*v1alpha1.IPPool{operators("v4", "shop", "*", "10.60.0.0/24")}, "evil", shop + `,"ipRanges":[{"range":"fd00::/64"}]`, nil, []string{"fd00::/64"}},

		{"unnamed, opened", []*v1alpha1.IPPool{operators("lan", "default", "*", "10.60.0.0/24")}, "evil", lan, []string{"lan"}, nil},
		{"unnamed, not opened", []*v1alpha1.IPPool{operators("lan", "default", "shop", "10.60.0.0/24")}, "evil", lan, []string{private("evil", "")}, nil},
		{"addresses of the default network", []*v1alpha1.IPPool{operators("default", "default", "", "10.60.0.0/16")}, "evil", lan, nil, []string{"default network", "10.60.0.0/24"}},
		{"addresses of the default network, in another domain", []*v1alpha1.IPPool{operators("default", "pods", "", "10.60.0.0/16")}, "evil", shop, nil, []string{"default network"}},
		{"a range around the default network's, from the controller's namespace", []*v1alpha1.IPPool{operators("default", "default", "", "10.60.0.0/25")}, "fairlead-system", lan, nil, []string{"default network"}},
		{"the default network's, opened", []*v1alpha1.IPPool{operators("default", "default", "shop", "10.60.0.0/24")}, "web", lan, []string{"default"}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := New(Config{Namespace: "fairlead-system", DefaultPools: []string{"default"}})
			n.labels = map[string]map[string]string{"web": {"team": "shop"}, "evil": {"team": "evil"}, "fairlead-system": nil}
			for _, p := range tc.pools {
				n.observePool(p, true)
			}
			c, _, err := whereabouts.Parse([]byte(`{"type":"whereabouts",`+tc.section+"}"), nil)
			if err != nil {
				t.Fatal(err)
			}
			got, err := n.reachOf(tc.namespace, &c)
			if (err != nil) != (tc.fails != nil) || err != nil && driver.Result(err) != "Invalid" {
				t.Fatalf("%v: %+v", err, got)
			}
			for _, text := range tc.fails {
				if !strings.Contains(fmt.Sprint(err), text) {
					t.Errorf("%q is not in: %v", text, err)
				}
			}
			shown := got.pools
			if got.own != nil {
				shown = nil
				for _, p := range got.own {
					shown = append(shown, "own "+p.Spec.Domain)
					if p.Labels[v1alpha1.LabelNetworkNamespace] != tc.namespace {
						t.Errorf("pool %s has labels %v", p.Name, p.Labels)
					}
				}
			}
			if diff := cmp.Diff(tc.want, shown); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
