package native

import (
	"slices"
	"testing"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/test/blocktest"
	"fairlead.dev/fairlead/test/drivertest"
)

// own review 1: a pod of another namespace or name with the victim's UID got the victim's
// addresses, and its end released them while the victim ran.
func TestAnothersUID(t *testing.T) {
	api := blocktest.NewAPI()
	d := start(t, api, "a")
	d.pool("a", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.0/24"}})
	victim := drivertest.Request(1)
	has, err := d.Ensure(t.Context(), victim)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*driver.Owner){
		"another namespace": func(o *driver.Owner) { o.Namespace = "evil" },
		"another name":      func(o *driver.Owner) { o.PodName = "evil" },
	} {
		t.Run(name, func(t *testing.T) {
			evil := drivertest.Request(1)
			change(&evil.Owner)
			got, err := d.Ensure(t.Context(), evil)
			if err != nil {
				t.Fatal(err)
			}
			if slices.ContainsFunc(got.Interface.Addresses, func(a string) bool { return slices.Contains(has.Interface.Addresses, a) }) {
				t.Errorf("it is given %v, and the victim has %v", got.Interface.Addresses, has.Interface.Addresses)
			}
			for _, i := range []v1alpha1.Interface{got.Interface, has.Interface} {
				if err := d.Release(t.Context(), driver.Ref{Owner: evil.Owner, Interface: i}); err != nil {
					t.Fatal(err)
				}
			}
			next := start(t, api, "a") // has read the blocks
			listed := 0
			for ref, err := range next.List(t.Context()) {
				if err != nil {
					t.Fatal(err)
				}
				if listed++; ref.Owner != victim.Owner {
					t.Errorf("%+v has %v", ref.Owner, ref.Interface.Addresses)
				}
			}
			if listed != 1 {
				t.Errorf("%d interfaces are held, want the victim's", listed)
			}
		})
	}
}
