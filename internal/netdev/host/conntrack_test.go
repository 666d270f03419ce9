package host

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/test/nettest"
)

func TestFlowTo(t *testing.T) {
	host := map[netip.Addr]bool{nettest.Addr("192.0.2.1"): true, nettest.Addr("2001:db8::1"): true}
	to := func(protocol uint8, at netip.Addr, port uint16) FlowTo {
		return FlowTo{protocol, netip.AddrPortFrom(at, port)}
	}
	every, all4, one := to(unix.IPPROTO_UDP, netip.Addr{}, 53), to(unix.IPPROTO_UDP, netip.IPv4Unspecified(), 53), to(unix.IPPROTO_UDP, nettest.Addr("192.0.2.9"), 53)
	for _, c := range []struct {
		name     string
		ports    FlowTo
		protocol uint8
		at       string
		port     uint16
		want     bool
	}{
		{"to the host", every, unix.IPPROTO_UDP, "192.0.2.1", 53, true},
		{"to the host, IPv6", every, unix.IPPROTO_UDP, "2001:db8::1", 53, true},
		{"to its loopback", every, unix.IPPROTO_UDP, "127.0.0.1", 53, true},
		{"through the host", every, unix.IPPROTO_UDP, "198.51.100.1", 53, false},
		{"another protocol", every, unix.IPPROTO_SCTP, "192.0.2.1", 53, false},
		{"another port", every, unix.IPPROTO_UDP, "192.0.2.1", 52, false},
		{"all of IPv4", all4, unix.IPPROTO_UDP, "192.0.2.1", 53, true},
		{"all of IPv4, IPv6", all4, unix.IPPROTO_UDP, "2001:db8::1", 53, false},
		{"one address", one, unix.IPPROTO_UDP, "192.0.2.9", 53, true},
		{"one address, another", one, unix.IPPROTO_UDP, "192.0.2.1", 53, false},
	} {
		if got := c.ports.has(to(c.protocol, nettest.Addr(c.at), c.port), host); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// The kernel forgets the flows to the ports of a pod that is gone, of UDP and of SCTP, in both
// families, and no other.
func TestForgetFlows(t *testing.T) {
	s := nettest.NewHost(t)
	k := New(s)
	h, err := k.flows()
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	lo, err := h.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range []string{"192.0.2.1/32", "2001:db8::1/128"} {
		if err := h.AddrAdd(lo, &netlink.Addr{IPNet: link.ToIPNet(nettest.Prefix(a)), Flags: unix.IFA_F_NODAD}); err != nil {
			t.Fatal(err)
		}
	}
	add := func(protocol uint8, to string, port uint16) string {
		t.Helper()
		family, from, dst := netlink.InetFamily(unix.AF_INET), net.ParseIP("192.0.2.200").To4(), net.IP(nettest.Addr(to).AsSlice())
		if nettest.Addr(to).Is6() {
			family, from = unix.AF_INET6, net.ParseIP("2001:db8::200")
		}
		f := &netlink.ConntrackFlow{
			FamilyType: uint8(family), TimeOut: 100,
			Forward: netlink.IPTuple{Protocol: protocol, SrcIP: from, DstIP: dst, SrcPort: 1000, DstPort: port},
			Reverse: netlink.IPTuple{Protocol: protocol, SrcIP: dst, DstIP: from, SrcPort: port, DstPort: 1000},
		}
		if err := h.ConntrackCreate(netlink.ConntrackTable, family, f); err != nil {
			t.Fatalf("flow of protocol %d to %s port %d: %v", protocol, to, port, err)
		}
		return fmt.Sprint(protocol, " ", to, " ", port)
	}
	var stay []string
	for _, at := range []string{"192.0.2.1", "2001:db8::1", "127.0.0.1"} {
		add(unix.IPPROTO_UDP, at, 53)
		add(unix.IPPROTO_UDP, at, 55)
		add(unix.IPPROTO_SCTP, at, 54)
		stay = append(stay, add(unix.IPPROTO_UDP, at, 54), add(unix.IPPROTO_SCTP, at, 53))
	}
	for _, at := range []string{"198.51.100.1", "2001:db8:1::1"} { // elsewhere, through the host
		stay = append(stay, add(unix.IPPROTO_UDP, at, 53), add(unix.IPPROTO_SCTP, at, 54))
	}
	ports := []FlowTo{
		{unix.IPPROTO_UDP, netip.AddrPortFrom(netip.Addr{}, 53)},
		{unix.IPPROTO_UDP, netip.AddrPortFrom(netip.Addr{}, 55)},
		{unix.IPPROTO_SCTP, netip.AddrPortFrom(netip.Addr{}, 54)},
	}
	if err := k.ForgetFlows(t.Context(), ports); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		err := k.In(func() error {
			all, err := conntrack(nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP, family).Execute(unix.NETLINK_NETFILTER, 0)
			for _, raw := range all {
				f, _ := flowOf(raw)
				got = append(got, fmt.Sprint(f.Protocol, " ", f.Addr(), " ", f.Port()))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(stay)
	slices.Sort(got)
	if diff := cmp.Diff(stay, got); diff != "" {
		t.Errorf("flows that are left (-want +got):\n%s", diff)
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
