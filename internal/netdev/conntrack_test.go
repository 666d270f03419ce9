package netdev

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestFlowsTo(t *testing.T) {
	flow := func(protocol uint8, to string, port uint16) *netlink.ConntrackFlow {
		return &netlink.ConntrackFlow{Forward: netlink.IPTuple{Protocol: protocol, DstIP: net.ParseIP(to), DstPort: port}}
	}
	f := flowsTo{
		host: map[netip.Addr]bool{mustAddr("192.0.2.1"): true, mustAddr("2001:db8::1"): true},
		ports: map[uint16][]netip.Addr{
			53: {{}}, 54: {netip.IPv4Unspecified()}, 55: {mustAddr("192.0.2.9")},
		},
	}
	for _, c := range []struct {
		name string
		flow *netlink.ConntrackFlow
		want bool
	}{
		{"to the host", flow(unix.IPPROTO_UDP, "192.0.2.1", 53), true},
		{"to the host, IPv6", flow(unix.IPPROTO_UDP, "2001:db8::1", 53), true},
		{"to its loopback", flow(unix.IPPROTO_UDP, "127.0.0.1", 53), true},
		{"through the host", flow(unix.IPPROTO_UDP, "198.51.100.1", 53), false},
		{"another protocol", flow(unix.IPPROTO_TCP, "192.0.2.1", 53), false},
		{"another port", flow(unix.IPPROTO_UDP, "192.0.2.1", 52), false},
		{"all of IPv4", flow(unix.IPPROTO_UDP, "192.0.2.1", 54), true},
		{"all of IPv4, IPv6", flow(unix.IPPROTO_UDP, "2001:db8::1", 54), false},
		{"one address", flow(unix.IPPROTO_UDP, "192.0.2.9", 55), true},
		{"one address, another", flow(unix.IPPROTO_UDP, "192.0.2.1", 55), false},
	} {
		if got := f.MatchConntrackFlow(c.flow); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
