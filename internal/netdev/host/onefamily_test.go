package host

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/test/nettest"
)

// ofFamily returns the part of a state that is of one family.
func ofFamily(s State, is func(netip.Addr) bool) State {
	s.IPv4, s.IPv6 = s.IPv4 && is(nettest.Addr("192.0.2.1")), s.IPv6 && is(nettest.Addr("fd00::1"))
	s.Local = slices.DeleteFunc(slices.Clone(s.Local), func(b netip.Prefix) bool { return !is(b.Addr()) })
	s.Sources = slices.DeleteFunc(slices.Clone(s.Sources), func(a netip.Addr) bool { return !is(a) })
	s.Peers = slices.DeleteFunc(slices.Clone(s.Peers), func(b PeerBlock) bool { return !is(b.Prefix.Addr()) })
	s.Remote = slices.Clone(s.Remote)
	for i, n := range s.Remote {
		s.Remote[i].Blocks = slices.DeleteFunc(slices.Clone(n.Blocks), func(b netip.Prefix) bool { return !is(b.Addr()) })
	}
	return s
}

// A family without blocks is left as it is: the host does not become a router for it.
func TestApplyHostOfOneFamily(t *testing.T) {
	tests := []struct {
		name           string
		of             func(netip.Addr) bool
		stays, becomes map[string]string
	}{
		{
			name: "IPv4", of: netip.Addr.Is4,
			stays: map[string]string{
				"net/ipv6/conf/all/forwarding": "0", "net/ipv6/conf/up0/forwarding": "0", "net/ipv6/conf/up0/accept_ra": "1",
			},
			becomes: map[string]string{"net/ipv4/conf/up0/forwarding": "1"},
		},
		{
			name: "IPv6", of: netip.Addr.Is6,
			stays:   map[string]string{"net/ipv4/conf/up0/forwarding": "0"},
			becomes: map[string]string{"net/ipv6/conf/all/forwarding": "1", "net/ipv6/conf/up0/accept_ra": "2"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			k := newCable(t, 1)[0]
			nettest.In(t, k.Namespace(), func() error {
				var errs []error
				for name, value := range map[string]string{
					"net/ipv4/ip_forward": "0", "net/ipv4/conf/up0/forwarding": "0", "net/ipv6/conf/all/forwarding": "0", "net/ipv6/conf/up0/accept_ra": "1",
				} {
					_, err := link.SetSysctl(name, value)
					errs = append(errs, err)
				}
				return errors.Join(errs...)
			})
			state := ofFamily(stateOf(0, 2), tt.of)
			apply(t, k, state)
			settled(t, k, state)
			nettest.In(t, k.Namespace(), func() error {
				for name, want := range merged(tt.stays, tt.becomes) {
					if got, err := link.ReadSysctl(name); err != nil || got != want {
						t.Errorf("%s is %q, %v; want %s", name, got, err, want)
					}
				}
				return nil
			})

			// The first block of the other family comes later.
			apply(t, k, stateOf(0, 2))
			settled(t, k, stateOf(0, 2))
			pod := nettest.NewNamespace(t)
			if err := kindsOf(k).Make(t.Context(), pod, podPlug("c1", "10.244.1.5/32", "fd00:1:1::5/128")); err != nil {
				t.Fatal(err)
			}
			for _, is := range []func(netip.Addr) bool{netip.Addr.Is4, netip.Addr.Is6} {
				nettest.Reaches(t, pod, k.Namespace(), nodeIP(0, is))
			}
		})
	}
}

// Nodes with IPv4 alone reach each other, over one link and through the tunnel, on a
// kernel without IPv6 (ipv6.disable=1), which would refuse all IPv6 requests. A kernel
// with IPv6 imitates one without, as far as it can.
func TestNodesWithoutIPv6(t *testing.T) {
	is4 := netip.Addr.Is4
	for _, tt := range []struct {
		name  string
		nodes func() []*Kernel
		state func(i int) State
		ip    func(i int, of func(netip.Addr) bool) netip.Addr
	}{
		{"one link", func() []*Kernel { return newCableOf(t, 2, is4) }, func(i int) State { return stateOf(i, 2) }, nodeIP},
		{
			"behind a router", func() []*Kernel { nodes, _ := newRouted(t, 2, is4); return nodes },
			func(i int) State { return routedState(i, is4) }, routedIP,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			nodes := tt.nodes()
			var pods []*link.Namespace
			var ips []netip.Addr
			for i, k := range nodes {
				k.IPv6 = false
				state := ofFamily(tt.state(i), is4)
				if changes := strings.Join(apply(t, k, state), "\n"); strings.Contains(changes, "ipv6") {
					t.Errorf("changes:\n%s", changes)
				}
				ns, addresses := podOn(t, k, i, 1450)
				pods, ips = append(pods, ns), append(ips, addresses...)
				settled(t, k, state)
				if up, err := k.Uplink(t.Context(), ""); err != nil || len(up.Addresses) != 1 || up.Addresses[0].Addr() != tt.ip(i, is4) {
					t.Errorf("uplink %+v, %v", up, err)
				}
			}
			for i, pod := range pods {
				nettest.Reaches(t, pod, pods[1-i], ips[1-i])
				nettest.Reaches(t, pod, nodes[1-i].Namespace(), tt.ip(1-i, is4))
				nettest.Reaches(t, nodes[i].Namespace(), pod, ips[i])
			}
			state := stateOf(0, 2)
			if _, err := nodes[0].ApplyHost(t.Context(), state); err == nil || !strings.Contains(err.Error(), "this kernel has no IPv6") {
				t.Errorf("blocks of IPv6: %v", err)
			}
			for _, k := range nodes {
				cleansUp(t, k)
			}
		})
	}
}

func merged(a, b map[string]string) map[string]string {
	a = maps.Clone(a)
	maps.Copy(a, b)
	return a
}
