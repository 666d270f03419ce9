package host

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/test/nettest"
)

func TestFlowsTo(t *testing.T) {
	flow := func(protocol uint8, to string, port uint16) *netlink.ConntrackFlow {
		return &netlink.ConntrackFlow{Forward: netlink.IPTuple{Protocol: protocol, DstIP: net.ParseIP(to), DstPort: port}}
	}
	f := flowsTo{
		host: map[netip.Addr]bool{nettest.Addr("192.0.2.1"): true, nettest.Addr("2001:db8::1"): true},
		ports: map[uint16][]netip.Addr{
			53: {{}}, 54: {netip.IPv4Unspecified()}, 55: {nettest.Addr("192.0.2.9")},
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

func TestMasqueraded(t *testing.T) {
	const pod, node, theirs, service = "10.1.0.5", "192.0.2.1", "10.1.0.70", "10.96.0.1"
	flow := func(protocol uint8, src, dst, answers, to string) *netlink.ConntrackFlow {
		return &netlink.ConntrackFlow{
			Forward: netlink.IPTuple{Protocol: protocol, SrcIP: net.ParseIP(src), DstIP: net.ParseIP(dst)},
			Reverse: netlink.IPTuple{Protocol: protocol, SrcIP: net.ParseIP(answers), DstIP: net.ParseIP(to)},
		}
	}
	tcp := func(state uint8) *netlink.ConntrackFlow {
		f := flow(unix.IPPROTO_TCP, pod, theirs, theirs, node)
		f.ProtoInfo = &netlink.ProtoInfoTCP{State: state}
		return f
	}
	f := masqueraded{
		from: []netip.Prefix{nettest.Prefix("10.1.0.0/26"), nettest.Prefix("fd00::/122")},
		to:   []netip.Prefix{nettest.Prefix("10.1.0.64/26"), nettest.Prefix("fd00::40/122")},
	}
	for _, c := range []struct {
		name string
		flow *netlink.ConntrackFlow
		want bool
	}{
		{"UDP", flow(unix.IPPROTO_UDP, pod, theirs, theirs, node), true},
		{"UDP, IPv6", flow(unix.IPPROTO_UDP, "fd00::5", "fd00::45", "fd00::45", "2001:db8::1"), true},
		{"ping", flow(unix.IPPROTO_ICMP, pod, theirs, theirs, node), true},
		{"through a Service", flow(unix.IPPROTO_UDP, pod, service, theirs, node), true},
		{"not translated", flow(unix.IPPROTO_UDP, pod, theirs, theirs, pod), false},
		{"only to another address", flow(unix.IPPROTO_UDP, pod, service, theirs, pod), false},
		{"from the node", flow(unix.IPPROTO_UDP, node, theirs, theirs, "192.0.2.2"), false},
		{"to elsewhere", flow(unix.IPPROTO_UDP, pod, "198.51.100.1", "198.51.100.1", node), false},
		{"TCP that opens", tcp(tcpOpening), true},
		{"TCP that is established", tcp(3), false},
		{"TCP in a state that is not known", flow(unix.IPPROTO_TCP, pod, theirs, theirs, node), false},
		{"SCTP", flow(unix.IPPROTO_SCTP, pod, theirs, theirs, node), false},
	} {
		if got := f.MatchConntrackFlow(c.flow); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
