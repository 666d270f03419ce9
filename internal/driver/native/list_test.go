package native

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/test/blocktest"
	"fairlead.dev/fairlead/test/drivertest"
)

// List fills in only the fields that follow from the blocks and the pools.
func TestListOfOrphans(t *testing.T) {
	d := start(t, blocktest.NewAPI(), "default")
	d.pool("default", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.1", "fd00::1"}})
	d.pool("lab", v1alpha1.IPPoolSpec{Domain: "lab", Ranges: []string{"10.0.0.1"}})
	d.pool("narrow", one("10.1.0.1"))
	d.pool("wide", one("10.1.0.0/24"))
	d.get(drivertest.Request(1))
	for _, r := range []*driver.Request{further(1, "narrow"), further(2, "lab")} {
		d.get(r)
	}
	d.pool("wrong", one("10.0.0.1/24"))
	var got []driver.Ref
	for ref, err := range d.List(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, ref)
	}
	routed := v1alpha1.Binding{Routed: &v1alpha1.RoutedBinding{}}
	addressOnly := v1alpha1.Binding{AddressOnly: &v1alpha1.AddressOnlyBinding{}}
	want := []driver.Ref{
		{Owner: drivertest.Request(1).Owner, Interface: v1alpha1.Interface{
			Name: "eth0", Network: "default", Driver: Name, Domain: "default", Pool: "default", Addresses: []string{"10.0.0.1/32", "fd00::1/128"}, Binding: routed,
		}},
		{Owner: further(1).Owner, Interface: v1alpha1.Interface{
			Name: "net1", Network: "unknown", Driver: Name, Domain: "default", Addresses: []string{"10.1.0.1/32"}, Binding: addressOnly,
		}},
		{Owner: further(2).Owner, Interface: v1alpha1.Interface{
			Name: "net1", Network: "unknown", Driver: Name, Domain: "lab", Pool: "lab", Addresses: []string{"10.0.0.1/32"}, Binding: addressOnly,
		}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
