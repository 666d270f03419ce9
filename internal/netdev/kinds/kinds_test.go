package kinds_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/kinds"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/test/nettest"
	"fairlead.dev/fairlead/test/plugtest"
)

func onBridge() plug.Interface {
	return plugtest.Default(v1alpha1.Binding{Bridge: &v1alpha1.BridgeBinding{Name: nettest.DefaultBridge}})
}

// lab returns a host, a pod with an interface on its bridge, the kinds of this build and
// the interface.
func lab(t *testing.T) (*link.Sockets, *link.Namespace, *kinds.Table, plug.Made) {
	t.Helper()
	host, pod := nettest.NewHost(t), nettest.NewNamespace(t)
	kinds := kinds.All(host)
	m, err := kinds.Plan(pod.Place(), onBridge())
	nettest.Must(t, err)
	nettest.Must(t, kinds.Make(t.Context(), pod, onBridge()))
	return host, pod, kinds, m
}

// The error about an unknown kind lists the known ones, in every method.
func TestUnknownKind(t *testing.T) {
	host, pod := nettest.NewHost(t), nettest.NewNamespace(t)
	kinds := kinds.All(host)
	nothing := plugtest.Default(v1alpha1.Binding{})
	m := plug.Made{Kind: "sriov", ContainerID: "c1", Name: "net1"}
	_, plan := kinds.Plan(pod.Place(), nothing)
	_, gone := kinds.Gone(t.Context(), m)
	_, differences := kinds.Differences(t.Context(), m, plug.Inspected{})
	_, repair := kinds.Repair(t.Context(), m)
	const binding, made = `binding ""`, `kind of interface net1 of container c1 "sriov"`
	for _, tt := range []struct {
		who, says string
		err       error
	}{
		{"Plan", binding, plan},
		{"Make", binding, kinds.Make(t.Context(), pod, nothing)},
		{"Remove", made, kinds.Remove(t.Context(), m)},
		{"Gone", made, gone},
		{"Differences", made, differences},
		{"Repair", made, repair},
	} {
		if !errors.Is(tt.err, link.ErrInvalid) || !strings.Contains(tt.err.Error(), tt.says+" must be one of addressOnly, bridge") {
			t.Errorf("%s: %v, want ErrInvalid with %s and the kinds that there are", tt.who, tt.err, tt.says)
		}
	}
	invalid := onBridge()
	invalid.MTU = 1
	if _, err := kinds.Plan(pod.Place(), invalid); !errors.Is(err, link.ErrInvalid) {
		t.Errorf("plan of what is invalid: %v", err)
	}
}

// An interface without a record is found, attributed and removed. Other links of the host
// are not.
func TestFound(t *testing.T) {
	host, pod, kinds, m := lab(t)
	nettest.AddBridge(t, host.Namespace(), "flbridgeofothrs", 1500)
	second := onBridge()
	second.Name, second.Addresses, second.Gateways = "net1", nil, nil
	nettest.Must(t, kinds.Make(t.Context(), pod, second))
	found, err := kinds.Found(t.Context())
	nettest.Must(t, err)
	slices.SortFunc(found, func(a, b plug.Found) int { return a.Index - b.Index })
	if len(found) != 2 || found[0].Name != "eth0" || found[1].Name != "net1" {
		t.Fatalf("found %+v, want eth0 and then net1", found)
	}
	want := m
	want.Namespace = link.Place{}
	if diff := cmp.Diff(want, found[0].Made); diff != "" {
		t.Errorf("found (-made +found):\n%s", diff)
	}

	h := nettest.OpenHandle(t, host.Namespace())
	nettest.Must(t, h.LinkSetDown(nettest.LinkNamed(t, host.Namespace(), m.HostLink)))
	nettest.Must(t, h.LinkSetNoMaster(nettest.LinkNamed(t, host.Namespace(), found[1].HostLink)))
	astray, err := kinds.Found(t.Context())
	nettest.Must(t, err)
	for n := range astray {
		if !astray[n].Astray(found[n].Made) {
			t.Errorf("%+v is not said to be astray", astray[n])
		}
	}
	if repaired, err := kinds.Repair(t.Context(), m); err != nil || !repaired {
		t.Errorf("Repair: %t, %v", repaired, err)
	}
	if repaired, err := kinds.Repair(t.Context(), found[1].Made); err != nil || !repaired {
		t.Errorf("Repair of what was found: %t, %v", repaired, err)
	}

	nettest.Must(t, kinds.RemoveUnknown(t.Context(), link.Place{}, "c1", "net1"))
	nettest.Must(t, kinds.RemoveUnknown(t.Context(), pod.Place(), "c2", "eth0"))
	if links := nettest.LinkNames(t, pod); !slices.Equal(links, []string{"eth0", "lo"}) {
		t.Errorf("links %v, want those of eth0", links)
	}
	nettest.Must(t, kinds.Remove(t.Context(), found[0].Made))
	if links := nettest.LinkNames(t, pod); !slices.Equal(links, []string{"lo"}) {
		t.Errorf("links %v after all", links)
	}
}

// A host end that is not found by its name is no evidence by itself.
func TestHostEndIsMissing(t *testing.T) {
	isGone := func(t *testing.T, kinds *kinds.Table, m plug.Made, want bool) {
		t.Helper()
		if gone, err := kinds.Gone(t.Context(), m); err != nil || gone != want {
			t.Errorf("gone is %t, %v; want %t", gone, err, want)
		}
	}
	t.Run("renamed", func(t *testing.T) {
		host, _, kinds, m := lab(t)
		h := nettest.OpenHandle(t, host.Namespace())
		end := nettest.LinkNamed(t, host.Namespace(), m.HostLink)
		nettest.Must(t, errors.Join(h.LinkSetDown(end), h.LinkSetName(end, "mine")))
		isGone(t, kinds, m, false)
		hidden := m
		hidden.Namespace.Path += "/hidden/ns"
		isGone(t, kinds, hidden, false)
	})
	t.Run("elsewhere", func(t *testing.T) {
		host, _, kinds, m := lab(t)
		elsewhere := nettest.NewNamespace(t)
		h := nettest.OpenHandle(t, host.Namespace())
		nettest.Must(t, h.LinkSetNsFd(nettest.LinkNamed(t, host.Namespace(), m.HostLink), elsewhere.FD()))
		isGone(t, kinds, m, false)
	})
	t.Run("removed", func(t *testing.T) {
		host, _, kinds, m := lab(t)
		h := nettest.OpenHandle(t, host.Namespace())
		nettest.Must(t, h.LinkDel(nettest.LinkNamed(t, host.Namespace(), m.HostLink)))
		isGone(t, kinds, m, true)
		hidden := m
		hidden.Namespace.Path += "/hidden/ns" // as the path of a process that has ended
		isGone(t, kinds, hidden, true)
		found := m
		found.Namespace = link.Place{}
		isGone(t, kinds, found, true)
	})
}

// Kinds whose interfaces have the MAC of another link get no random one.
func TestRandomMAC(t *testing.T) {
	kinds := kinds.All(nettest.NewNode(t))
	for _, tt := range []struct {
		name string
		b    v1alpha1.Binding
		want bool
	}{
		{"bridge", v1alpha1.Binding{Bridge: &v1alpha1.BridgeBinding{}}, true},
		{"macvlan", v1alpha1.Binding{Macvlan: &v1alpha1.MacvlanBinding{Parent: "p0", Mode: "bridge"}}, true},
		{"macvlan passthru", v1alpha1.Binding{Macvlan: &v1alpha1.MacvlanBinding{Parent: "p0", Mode: "passthru"}}, false},
		{"ipvlan", v1alpha1.Binding{IPVLAN: &v1alpha1.IPVLANBinding{Parent: "p0", Mode: "l2"}}, false},
		{"vlan", v1alpha1.Binding{VLAN: &v1alpha1.VLANBinding{Parent: "p0", ID: 5}}, false},
		{"hostDevice", v1alpha1.Binding{HostDevice: &v1alpha1.HostDeviceBinding{Name: "eth5"}}, false},
		{"nothing", v1alpha1.Binding{}, false},
	} {
		if got := kinds.RandomMAC(tt.b); got != tt.want {
			t.Errorf("%s: %t, want %t", tt.name, got, tt.want)
		}
	}
}

// Interfaces with a link on the host can all be found there. A device is found only after
// it came back.
func TestFinds(t *testing.T) {
	kinds := kinds.All(nettest.NewNode(t))
	for name, b := range map[string]v1alpha1.Binding{
		"macvlan": {Macvlan: &v1alpha1.MacvlanBinding{Parent: "p0", Mode: "bridge"}}, "ipvlan": {IPVLAN: &v1alpha1.IPVLANBinding{Parent: "p0", Mode: "l2"}}, "vlan": {VLAN: &v1alpha1.VLANBinding{Parent: "p0", ID: 5}}, "addressOnly": {AddressOnly: &v1alpha1.AddressOnlyBinding{}},
		"hostDevice": {HostDevice: &v1alpha1.HostDeviceBinding{Name: "eth5"}}, "nothing": {},
	} {
		if kinds.Finds(b) {
			t.Errorf("%s: every interface is said to be found", name)
		}
	}
	if !kinds.Finds(v1alpha1.Binding{Bridge: &v1alpha1.BridgeBinding{Name: "br1"}}) {
		t.Error("bridge: not every interface is said to be found")
	}
}
