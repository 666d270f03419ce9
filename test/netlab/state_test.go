package netlab_test

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/test/netlab"
)

func TestState(t *testing.T) {
	needRoot(t)
	lab := newLab(t, netlab.Config{Nodes: 1, IPv4Only: true})
	node := lab.Nodes[0]
	before, err := node.State()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"0.0.0.0/0 via 192.168.77.1 dev eth0", "192.168.77.0/24 dev eth0"}
	if diff := cmp.Diff(want, before.Routes); diff != "" {
		t.Errorf("routes (-want +got):\n%s", diff)
	}
	want = []string{"link leak0", "link leak1", "route 198.51.100.0/24 via 192.168.77.9 dev eth0"}
	if err := addLinkAndRoute(node.Namespace); err != nil {
		t.Fatal(err)
	}
	switch err := addTable(node.Namespace, "leak"); {
	case errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EINVAL):
		t.Logf("this kernel has no nftables: %v", err)
	case err != nil:
		t.Fatal(err)
	default:
		want = append(want, "nft table inet leak")
	}
	after, err := node.State()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, after.Since(before).All()); diff != "" {
		t.Errorf("new (-want +got):\n%s", diff)
	}
	if again := before.Since(after).All(); len(again) > 0 {
		t.Errorf("gone: %v; want nothing", again)
	}
}

func addLinkAndRoute(ns *netlab.Namespace) error {
	handle, err := ns.Netlink()
	if err != nil {
		return err
	}
	defer handle.Close()
	_, destination, err := net.ParseCIDR("198.51.100.0/24")
	return errors.Join(err,
		handle.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "leak0"}, PeerName: "leak1"}),
		handle.RouteAdd(&netlink.Route{Dst: destination, Gw: net.IPv4(192, 168, 77, 9)}),
	)
}

// addTable creates an nftable of the family inet; such changes are sent in batches.
func addTable(ns *netlab.Namespace, name string) error {
	const inet, batchBegin, batchEnd = unix.NFPROTO_INET, unix.NFNL_MSG_BATCH_BEGIN, unix.NFNL_MSG_BATCH_END
	begin := nl.NewNetlinkRequest(batchBegin, 0)
	begin.AddData(&nl.Nfgenmsg{ResId: 10 << 8}) // NFNL_SUBSYS_NFTABLES, big endian
	table := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE|unix.NLM_F_ACK)
	table.AddData(&nl.Nfgenmsg{NfgenFamily: inet})
	table.AddData(nl.NewRtAttr(unix.NFTA_TABLE_NAME, nl.ZeroTerminated(name)))
	end := nl.NewNetlinkRequest(batchEnd, 0)
	end.AddData(&nl.Nfgenmsg{ResId: 10 << 8})
	batch := slices.Concat(begin.Serialize(), table.Serialize(), end.Serialize())
	return ns.Do(func() error {
		socket, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		defer unix.Close(socket)
		if err := unix.Sendto(socket, batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
			return err
		}
		answer := make([]byte, 4096)
		n, _, err := unix.Recvfrom(socket, answer, 0)
		if err != nil {
			return err
		}
		if n < unix.SizeofNlMsghdr+4 {
			return fmt.Errorf("answer of %d bytes", n)
		}
		if code := int32(nl.NativeEndian().Uint32(answer[unix.SizeofNlMsghdr:])); code != 0 {
			return unix.Errno(-code)
		}
		return nil
	})
}
