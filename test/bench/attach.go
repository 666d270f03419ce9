package main

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"fairlead.dev/fairlead/test/netlab"
)

const (
	rawBridge = "raw0"
	// rawMTU sets the veth to a size that is not the kernel's default, as a node's uplink
	// does.
	rawMTU = 1500
)

// rawHost is a host whose pods are plugged with the netlink library alone: the least cost
// of plugging.
type rawHost struct {
	*netlab.Namespace
	bridge int
}

func newRawHost() (*rawHost, error) {
	ns, err := netlab.NewNamespace()
	if err != nil {
		return nil, err
	}
	handle, err := ns.Netlink()
	if err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	defer handle.Close()
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: rawBridge}}
	err = handle.LinkAdd(bridge)
	if err == nil {
		err = errors.Join(
			handle.AddrAdd(bridge, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(169, 254, 1, 1), Mask: net.CIDRMask(32, 32)}}),
			handle.LinkSetUp(bridge))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("bridge of the baseline: %w", err), ns.Close())
	}
	return &rawHost{Namespace: ns, bridge: bridge.Attrs().Index}, nil
}

func rawName(i int) string { return fmt.Sprintf("raw%d", i+1) }

// attach makes the same objects as our Attach, each with one message, and checks nothing
// twice: a veth whose peer is created in the sandbox under its final name and whose host
// end is created on the bridge; one address; the default route; all up. The host's handle
// is open already, as in the daemon.
func (r *rawHost) attach(host *netlink.Handle, s sandbox, i int) error {
	guest, err := s.Netlink()
	if err != nil {
		return err
	}
	defer guest.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.MasterIndex = rawName(i), rawMTU, r.bridge
	attrs.NumTxQueues, attrs.NumRxQueues = 1, 1 // of both ends
	at, err := s.open()
	if err != nil {
		return err
	}
	defer at.Close()
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(at)}
	if err := host.LinkAdd(veth); err != nil {
		return fmt.Errorf("raw veth: %w", err)
	}
	eth, err := guest.LinkByName("eth0")
	if err != nil {
		return err
	}
	lo, err := guest.LinkByName("lo")
	if err != nil {
		return err
	}
	addr := &net.IPNet{IP: net.IPv4(10, 245, byte(i>>8), byte(i)), Mask: net.CIDRMask(32, 32)}
	for _, step := range []func() error{
		func() error { return guest.LinkSetUp(lo) },
		func() error { return guest.AddrAdd(eth, &netlink.Addr{IPNet: addr}) },
		func() error { return guest.LinkSetUp(eth) },
		func() error {
			return guest.RouteAdd(&netlink.Route{LinkIndex: eth.Attrs().Index, Gw: net.IPv4(169, 254, 1, 1), Flags: int(netlink.FLAG_ONLINK)})
		},
		func() error { return host.LinkSetUp(veth) },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("raw attach: %w", err)
		}
	}
	return nil
}

// open opens the sandbox's namespace by its path, as a plugin must.
func (s sandbox) open() (netns.NsHandle, error) { return netns.GetFromPath(s.Path()) }

// detach removes links in parallel, because each makes its caller wait.
func (r *rawHost) detach(all ...int) error {
	results := make(chan error, len(all))
	for _, i := range all {
		go func() {
			handle, err := r.Netlink()
			if err != nil {
				results <- err
				return
			}
			defer handle.Close()
			link, err := handle.LinkByName(rawName(i))
			if err == nil {
				err = handle.LinkDel(link)
			}
			results <- err
		}()
	}
	var errs []error
	for range all {
		errs = append(errs, <-results)
	}
	return errors.Join(errs...)
}
