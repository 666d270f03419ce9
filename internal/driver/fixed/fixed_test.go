package fixed

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/pod"
)

var macvlan = v1alpha1.Binding{Macvlan: &v1alpha1.MacvlanBinding{Parent: "bond0", Mode: "bridge"}}

func request(t *testing.T, i pod.Interface, addresses ...string) *driver.Request {
	t.Helper()
	asks, err := Parts().Networks.Read(&corev1.Pod{}, &i)
	if err != nil {
		t.Fatal(err)
	}
	r := &driver.Request{Owner: driver.Owner{Interface: "net1"}, Network: "blue/lan", Asks: asks, Binding: i.Binding}
	for _, a := range addresses {
		r.Addresses = append(r.Addresses, netip.MustParseAddr(a))
	}
	return r
}

func TestEnsure(t *testing.T) {
	named := []netip.Prefix{netip.MustParsePrefix("10.0.0.5/24"), netip.MustParsePrefix("fd00::5/64")}
	for _, tc := range []struct {
		name    string
		fixed   []netip.Prefix
		binding v1alpha1.Binding
		asks    []string
		want    []string
		err     string
	}{
		{name: "no address", binding: macvlan},
		{name: "the network's", fixed: named, binding: macvlan, want: []string{"10.0.0.5/24", "fd00::5/64"}},
		{name: "one of these", fixed: named, binding: macvlan, asks: []string{"fd00::5"}, want: []string{"fd00::5/64"}},
		{name: "another", fixed: named, binding: macvlan, asks: []string{"10.0.0.6"}, err: "ips: 10.0.0.6: network blue/lan names its addresses itself"},
		{
			name: "a delegate chooses", binding: v1alpha1.Binding{Delegate: &v1alpha1.PluginList{Name: "x", CNIVersion: "1.0.0", Plugins: []string{"{}"}}},
			asks: []string{"10.0.0.6"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, err := Driver{}.Ensure(t.Context(), request(t, pod.Interface{Network: "blue/lan", Binding: &tc.binding, Fixed: tc.fixed}, tc.asks...))
			if tc.err != "" {
				if !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("error %v, want %s", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := v1alpha1.Interface{Name: "net1", Network: "blue/lan", Driver: Name, Addresses: tc.want, Binding: tc.binding}
			if diff := cmp.Diff(want, a.Interface); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The record is validated before anything is given, as with any driver.
func TestEnsureIsWritable(t *testing.T) {
	r := request(t, pod.Interface{Network: "blue/lan", Binding: &macvlan})
	r.Writable = func(i v1alpha1.Interface) error { return i.Validate() }
	r.Interface = "no/name"
	if _, err := (Driver{}).Ensure(t.Context(), r); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("error %v", err)
	}
}

func TestReadNeedsABinding(t *testing.T) {
	if _, err := Parts().Networks.Read(&corev1.Pod{}, &pod.Interface{Network: "blue/lan"}); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("error %v", err)
	}
}

func TestNothingIsHeld(t *testing.T) {
	d := Driver{}
	ref := driver.Ref{Interface: v1alpha1.Interface{Name: "net1"}}
	if err := d.Release(t.Context(), ref); err != nil {
		t.Error(err)
	}
	for ref, err := range d.List(t.Context()) {
		t.Errorf("List has %v, error %v", ref, err)
	}
	if _, err := d.Confirm(t.Context(), ref); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("error %v", err)
	}
}
