package nft

import (
	"net"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func prefixes(s ...string) (out []netip.Prefix) {
	for _, p := range s {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

func addrs(s ...string) (out []netip.Addr) {
	for _, a := range s {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func mac(t *testing.T, s string) net.HardwareAddr {
	t.Helper()
	m, err := net.ParseMAC(s)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestPodElements(t *testing.T) {
	station := mac(t, "0a:58:0a:f4:00:05")
	got := podElements(Pod{
		Links: []Link{
			{Name: "flabc", MAC: station, Addresses: addrs("10.244.0.5", "fd00::5")},
			{Name: "fllost", Check: CheckLost},
			{Name: "flmac", MAC: station, Addresses: addrs("10.9.0.5"), Check: CheckMAC},
			{Name: "flnone", MAC: station, Check: CheckNone},
			{Name: "flsilent", MAC: station},
			{Name: "fltrunk", MAC: station, Tagged: true},
		},
		Addresses: addrs("10.244.0.5", "fd00::5"),
		Ports: []Port{
			{Protocol: "tcp", HostPort: 80, ContainerPort: 8080},
			{Protocol: "udp", HostIP: netip.MustParseAddr("0.0.0.0"), HostPort: 53, ContainerPort: 53},
			{Protocol: "sctp", HostIP: netip.MustParseAddr("127.0.0.1"), HostPort: 9, ContainerPort: 10},
			{Protocol: "tcp", HostIP: netip.MustParseAddr("::"), HostPort: 81, ContainerPort: 81},
		},
	})
	const link = `"flabc" . 0a:58:0a:f4:00:05`
	want := elements{
		{"bridge", "stations", link}:                                          "",
		{"bridge", "sources4", link + " . 10.244.0.5"}:                        "",
		{"bridge", "sources6", link + " . fd00::5"}:                           "",
		{"bridge", "sources6", link + " . fe80::858:aff:fef4:5"}:              "",
		{"bridge", "targets", link + " . 0xfd000000000000000000000000000005"}: "",
		{"bridge", "targets", link + " . 0xfe8000000000000008580afffef40005"}: "",
		{"bridge", "macs", `"flmac" . 0a:58:0a:f4:00:05`}:                     "",
		{"bridge", "trunks", `"fltrunk" . 0a:58:0a:f4:00:05`}:                 "",
		{"bridge", "trusted", `"flnone"`}:                                     "",
		{"bridge", "unchecked", `"fllost"`}:                                   "",
		{"inet", "ports4", "tcp . 80"}:                                        "10.244.0.5 . 8080",
		{"inet", "ports6", "tcp . 80"}:                                        "fd00::5 . 8080",
		{"inet", "ports4", "udp . 53"}:                                        "10.244.0.5 . 53",
		{"inet", "ports4at", "127.0.0.1 . sctp . 9"}:                          "10.244.0.5 . 10",
		{"inet", "ports6", "tcp . 81"}:                                        "fd00::5 . 81",
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(place{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestOverlaps(t *testing.T) {
	port := func(protocol, ip string, n uint16) Port {
		p := Port{Protocol: protocol, HostPort: n}
		if ip != "" {
			p.HostIP = netip.MustParseAddr(ip)
		}
		return p
	}
	for _, c := range []struct {
		name string
		a, b Port
		want bool
	}{
		{"the same", port("tcp", "", 80), port("tcp", "", 80), true},
		{"another port", port("tcp", "", 80), port("tcp", "", 81), false},
		{"another protocol", port("tcp", "", 80), port("udp", "", 80), false},
		{"all and one", port("tcp", "", 80), port("tcp", "192.0.2.1", 80), true},
		{"all of IPv4 and one", port("tcp", "0.0.0.0", 80), port("tcp", "192.0.2.1", 80), true},
		{"two addresses", port("tcp", "192.0.2.2", 80), port("tcp", "192.0.2.1", 80), false},
		{"all of IPv4 and all of IPv6", port("tcp", "0.0.0.0", 80), port("tcp", "::", 80), false},
		{"all and all of IPv6", port("tcp", "", 80), port("tcp", "::", 80), true},
	} {
		if c.a.Overlaps(c.b) != c.want || c.b.Overlaps(c.a) != c.want {
			t.Errorf("%s: want %v", c.name, c.want)
		}
	}
}
