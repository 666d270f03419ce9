package hostnet

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"fairlead.dev/fairlead/internal/netdev/host"
	"fairlead.dev/fairlead/internal/nft/hostrules"
	"fairlead.dev/fairlead/internal/node/nodetest"
)

func TestPlanFlows(t *testing.T) {
	prefix, addr := netip.MustParsePrefix, netip.MustParseAddr
	up := uplinkAt("192.168.77.11/24", "fd00:77::11/64")
	packet := func(in, to, from, at string) hostrules.Packet {
		return hostrules.Packet{In: in, Out: to, Source: addr(from), Target: addr(at)}
	}
	got := planFlows(host.State{
		Bridge: "fairlead0", Uplink: "eth0",
		Local:  []host.LocalBlock{{Prefix: prefix("10.244.1.0/26")}, {Prefix: prefix("10.244.1.64/26")}, {Prefix: prefix("fd00:10::5/128")}},
		Peers:  []host.PeerBlock{{Prefix: prefix("10.244.2.0/26")}, {Prefix: prefix("10.244.3.0/26")}},
		Remote: []host.RemoteNode{remoteNode("n4", "192.168.78.14", "10.244.4.0/26", "fd00:14::/122")},
	}, up)
	want := []flow{
		{"from pod to pod here (IPv4)", packet("fairlead0", "fairlead0", "10.244.1.1", "10.244.1.2")},
		{"from pods here to the outside (IPv4)", packet("fairlead0", "eth0", "10.244.1.1", "192.0.2.1")},
		{"from pods here to other nodes (IPv4)", packet("fairlead0", "eth0", "10.244.1.1", "10.244.2.1")},
		{"from other nodes to pods here (IPv4)", packet("eth0", "fairlead0", "10.244.2.1", "10.244.1.1")},
		{"from pods here to other nodes through the tunnel (IPv4)", packet("fairlead0", "fairlead-vx4", "10.244.1.1", "10.244.4.1")},
		{"from other nodes through the tunnel to pods here (IPv4)", packet("fairlead-vx4", "fairlead0", "10.244.4.1", "10.244.1.1")},
		{"from other nodes themselves through the tunnel to pods here (IPv4)", packet("fairlead-vx4", "fairlead0", "192.168.78.14", "10.244.1.1")},
		{"from pod to pod here (IPv6)", packet("fairlead0", "fairlead0", "fd00:10::5", "fd00:10::5")},
		{"from pods here to the outside (IPv6)", packet("fairlead0", "eth0", "fd00:10::5", "2001:db8::1")},
		{"from pods here to other nodes through the tunnel (IPv6)", packet("fairlead0", "fairlead-vx4", "fd00:10::5", "fd00:14::1")},
		{"from other nodes through the tunnel to pods here (IPv6)", packet("fairlead-vx4", "fairlead0", "fd00:14::1", "fd00:10::5")},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(flow{}), nodetest.SameAddresses, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := planFlows(host.State{Bridge: "fairlead0", Uplink: "eth0"}, up); len(got) > 0 {
		t.Errorf("without a block: %v", got)
	}
}
