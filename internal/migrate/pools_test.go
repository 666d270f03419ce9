package migrate

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/whereabouts"
)

// copies returns one network in several namespaces.
func copies(space string, namespaces ...string) (out []Network) {
	for _, namespace := range namespaces {
		n := network(namespace+"/lan", space, "10.0.0.0/24")
		n.Own = whereabouts.NamespaceDomain(namespace, space)
		out = append(out, n)
	}
	return out
}

// In whereabouts, copies of a network in several namespaces share one address space. They
// keep it: their pool is open to all of these namespaces, and to no other.
func TestMakePoolsOpensThem(t *testing.T) {
	s := state([]Pool{recorded("1 web")}, nil, running("web", lan, "10.0.0.1"))
	s.Networks = append(copies("", "default", "shop", "default"), copies("blue", "shop")...)
	s.NamespaceLabels = map[string]map[string]string{"default": {"kubernetes.io/metadata.name": "default"}, "shop": {"kubernetes.io/metadata.name": "shop"}}
	plan, err := Make(s, false)
	if err != nil || len(plan.Pools) != 2 || len(plan.Refused()) != 0 {
		t.Fatalf("error %v, pools %+v, findings %+v", err, plan.Pools, plan.Findings)
	}
	for i, want := range [][]string{{"default", "shop"}, {"shop"}} {
		p := plan.Pools[i]
		if got := p.Spec.NetworkNamespaceSelector.MatchExpressions[0]; !cmp.Equal(got.Values, want) || got.Key != "kubernetes.io/metadata.name" || got.Operator != "In" {
			t.Errorf("pool %s is open to %+v, want %v", p.Name, got, want)
		}
		if p.Labels[v1alpha1.LabelNetworkNamespace] != "" {
			t.Errorf("pool %s has labels %v: it would go with its networks", p.Name, p.Labels)
		}
	}
	// A second plan, after the writes of the first.
	s.IPPools = plan.Pools
	if again, err := Make(s, false); err != nil || len(again.Pools) != 0 || len(again.Refused()) != 0 {
		t.Errorf("error %v, pools %+v, findings %+v", err, again.Pools, again.Findings)
	}
	// A pool that exists and is closed to a network would separate the network from its
	// addresses.
	s.IPPools[0].Spec.NetworkNamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": "default"}}
	plan, err = Make(s, false)
	if err != nil {
		t.Fatal(err)
	}
	if got := plan.Refused(); len(got) != 1 || got[0].Kind != NotOpened || got[0].Address != s.IPPools[0].Name {
		t.Errorf("findings %+v", got)
	}
}

// ownBlock returns a block with the addresses of a network in the domain of its
// namespace.
func ownBlock(n Network, slots ...string) v1alpha1.IPBlock {
	return v1alpha1.IPBlock{
		ObjectMeta: metav1.ObjectMeta{Name: n.Own + ".4-0a000000"},
		Spec:       v1alpha1.IPBlockSpec{Domain: n.Own, CIDR: "10.0.0.0/26", Slots: slots},
	}
}

// An address that Fairlead gave in the domain of the network's namespace before the
// import counts as given.
func TestMakeRefusesWhatIsGivenInItsNamespace(t *testing.T) {
	s := state([]Pool{recorded("1 web")}, nil, running("web", lan, "10.0.0.1"))
	s.Networks = copies("", "default", "shop")
	s.Blocks = []v1alpha1.IPBlock{ownBlock(s.Networks[1], "1 A 1 1700000000000 other-uid shop/other/net1 node1")}
	plan, err := Make(s, false)
	if err != nil || len(plan.Refused()) != 1 || plan.Refused()[0].Kind != Taken {
		t.Fatalf("%v, findings %+v", err, plan.Findings)
	}
}

// A rollback also covers addresses in the domains of networks' namespaces.
func TestMakeExportOfNamespaces(t *testing.T) {
	s := state([]Pool{recorded("1 old", "3 gone")}, []Reservation{reserved("10.0.0.1", "old"), reserved("10.0.0.3", "gone")})
	s.Networks = copies("", "default", "shop")
	s.Blocks = []v1alpha1.IPBlock{
		blockWith("1 F 2 1700000000000", "3 F 2 1700000000000", "7 A 1 1700000000000 a-uid default/a/net1 node1"),
		ownBlock(s.Networks[1], "1 A 1 1700000000000 b-uid shop/b/net1 node1", "7 A 1 1700000000000 c-uid shop/c/net1 node1"),
	}
	got, err := MakeExport(s, "kube-system")
	if err != nil || len(got.Pools) != 1 {
		t.Fatalf("%v, %+v", err, got)
	}
	refs := map[string]string{}
	for offset, a := range got.Pools[0].Allocations {
		refs[offset] = a.PodRef
	}
	// 10.0.0.7 is given in both: whereabouts has one entry for it.
	if diff := cmp.Diff(map[string]string{"1": "shop/b", "7": "default/a"}, refs); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	found := false
	for _, f := range got.Findings {
		found = found || f.Kind == NotWritten && f.Address == "10.0.0.7"
	}
	if !found {
		t.Errorf("findings %+v", got.Findings)
	}
	if len(got.Delete) != 1 || got.Delete[0].Name != "10.0.0.3" {
		t.Errorf("reservations to delete %+v", got.Delete)
	}
}
