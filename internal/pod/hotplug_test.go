package pod

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
)

func TestChanges(t *testing.T) {
	for _, tc := range []struct {
		name string
		// has lists interfaces as "net1=lan" or "net1=lan:10.0.0.7/24".
		has, asks string
		add, drop []string
	}{
		{name: "nothing further"},
		{name: "as it is", has: "net1=lan net2=wan", asks: "lan,wan"},
		{name: "one more", has: "net1=lan", asks: "lan,wan", add: []string{"net2=wan"}},
		{name: "the same network once more", has: "net1=lan", asks: "lan,lan", add: []string{"net2=lan"}},
		{name: "one more, put first", has: "net1=lan", asks: "wan,lan", add: []string{"net2=wan"}},
		{name: "the first goes, the second stays as it is", has: "net1=lan net2=wan", asks: "wan", drop: []string{"net1"}},
		{name: "both change places", has: "net1=lan net2=wan", asks: "wan,lan"},
		{name: "all go", has: "net1=lan net2=wan", drop: []string{"net1", "net2"}},
		{name: "another network in place of one waits for the name", has: "net1=lan", asks: "wan", drop: []string{"net1"}},
		{name: "another network in place of the first", has: "net1=lan net2=lan", asks: "wan,lan", drop: []string{"net1"}},
		{name: "another network under the same name waits for the name", has: "db0=lan", asks: "wan@db0", drop: []string{"db0"}},
		{name: "the name is free", asks: "wan@db0", add: []string{"db0=wan"}},
		{name: "a name for an interface that had none", has: "net1=lan", asks: "lan@db0", add: []string{"db0=lan"}, drop: []string{"net1"}},
		{name: "a requested name of the other form", has: "net1=lan", asks: "lan,wan@net2,lan", add: []string{"net2=wan", "net3=lan"}},
		{name: "a name that an element without a name has", has: "net1=lan", asks: "wan@net1,lan", add: []string{"net2=lan"}, drop: []string{"net1"}},
		{name: "named comes first", has: "net1=lan net2=lan", asks: "lan,lan@net1"},
		{name: "the requested address is there", has: "net1=lan:10.0.0.7/24", asks: `[{"name":"lan","ips":["10.0.0.7"]}]`},
		{
			name: "another address", has: "net1=lan:10.0.0.7/24", asks: `[{"name":"lan","ips":["10.0.0.8"]}]`,
			drop: []string{"net1"},
		},
		{name: "eth0 is no further interface", asks: "lan@eth0"},
		{name: "an additional pool stays", has: "net1=default net2=lan", asks: "lan"},
		{name: "a device of a device plugin stays", has: "net1=vf net2=lan", asks: "wan@db0", add: []string{"db0=wan"}, drop: []string{"net2"}},
		{name: "a device that is selected later", has: "net1=vf", asks: "vf"},
		{name: "a network beside an additional pool", has: "net1=default", asks: "lan", add: []string{"net2=lan"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			has := []v1alpha1.Interface{{Name: "eth0", Network: v1alpha1.DefaultNetwork, Default: true}}
			for text := range strings.FieldsSeq(tc.has) {
				name, network, _ := strings.Cut(text, "=")
				network, address, found := strings.Cut(network, ":")
				i := v1alpha1.Interface{Name: name, Network: "blue/" + network}
				if network == "vf" {
					i.Binding.HostDevice = &v1alpha1.HostDeviceBinding{Resource: &v1alpha1.DeviceResource{Name: "intel.com/a"}}
				}
				if network == v1alpha1.DefaultNetwork {
					i.Network = network
				}
				if found {
					i.Addresses = []string{netip.MustParsePrefix(address).String()}
				}
				has = append(has, i)
			}
			selected, err := Networks(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Annotations: map[string]string{AnnotationNetworks: tc.asks}}})
			if err != nil {
				t.Fatal(err)
			}
			add, drop := Changes(selected, has)
			var added []string
			for _, s := range add {
				added = append(added, s.Interface+"="+s.Name)
			}
			if diff := cmp.Diff(tc.add, added); diff != "" {
				t.Errorf("add (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.drop, drop); diff != "" {
				t.Errorf("drop (-want +got):\n%s", diff)
			}
		})
	}
}

// Applied again and again, Changes ends: nothing is left to add or to drop, and an
// interface that is wanted throughout is never dropped.
func FuzzChanges(f *testing.F) {
	f.Add("lan,wan", "wan,lan@net1,lan")
	f.Add("lan@net2", "lan,lan,lan")
	f.Fuzz(func(t *testing.T, before, after string) {
		has := []v1alpha1.Interface{{Name: "eth0", Network: v1alpha1.DefaultNetwork, Default: true}}
		for _, text := range []string{before, after} {
			selected, err := Networks(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Annotations: map[string]string{AnnotationNetworks: text}}})
			if err != nil || invalidNames(selected) {
				return
			}
			for round := 0; ; round++ {
				add, drop := Changes(selected, has)
				if len(add) == 0 && len(drop) == 0 {
					break
				}
				if round > 3 {
					t.Fatalf("%q after %q does not end: add %v, drop %v", text, before, add, drop)
				}
				has = slices.DeleteFunc(has, func(i v1alpha1.Interface) bool { return slices.Contains(drop, i.Name) })
				for _, s := range add {
					i := v1alpha1.Interface{Name: s.Interface, Network: s.Network(), MAC: s.MAC}
					for _, a := range s.Addresses {
						i.Addresses = append(i.Addresses, netip.PrefixFrom(a, a.BitLen()).String())
					}
					has = append(has, i)
				}
			}
			names := map[string]bool{}
			for _, i := range has {
				if names[i.Name] {
					t.Fatalf("two interfaces are called %s", i.Name)
				}
				names[i.Name] = true
			}
			if len(has)-1 != len(selected) {
				t.Fatalf("%q: %d interfaces for %d selections", text, len(has)-1, len(selected))
			}
		}
	})
}

// invalidNames reports whether selections have names that a pod cannot have: twice, or
// that of the default interface.
func invalidNames(selected []Selection) bool {
	names := map[string]bool{v1alpha1.DefaultInterface: true}
	for _, s := range selected {
		if s.Named && names[s.Interface] {
			return true
		}
		names[s.Interface] = s.Named || names[s.Interface]
	}
	return false
}
