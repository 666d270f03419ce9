package host

import (
	"context"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
)

// formerBridge is the bridge of the default network of the versions before kind routed.
const formerBridge = "fairlead0"

// bridgeAlias is the alias of the bridges that Fairlead makes.
const bridgeAlias = link.AliasPrefix + "bridge"

// removeFormer removes the bridge of an earlier version. Pods that are still its ports have no network
// any more: the error counts them.
func (r *hostRun) removeFormer(ctx context.Context) {
	dev, err := r.host.LinkByName(formerBridge)
	if err != nil || dev.Attrs().Alias != bridgeAlias {
		return
	}
	all, err := link.Dump(ctx, "listing links", r.host.LinkList)
	if err != nil {
		r.failed(err)
		return
	}
	ports := 0
	for _, l := range all {
		if l.Attrs().MasterIndex == dev.Attrs().Index {
			ports++
		}
	}
	if ports > 0 {
		r.failed(fmt.Errorf("%d pods of an earlier version are still on bridge %s, and have no network: drain the node, or delete these pods", ports, formerBridge))
		return
	}
	if err := r.host.LinkDel(dev); err != nil && !link.IsNoLink(err) {
		r.failed(fmt.Errorf("removing bridge %s of an earlier version: %w", formerBridge, err))
		return
	}
	r.changed("removed bridge %s of an earlier version", formerBridge)
}

// netconfmsg is struct netconfmsg of linux/netconf.h.
type netconfmsg struct{ family uint8 }

func (netconfmsg) Len() int            { return sizeofNetconfmsg }
func (m netconfmsg) Serialize() []byte { return []byte{m.family, 0, 0, 0} }

// forwardEnds turns on IPv4 forwarding on host ends: a program that sets net.ipv4.ip_forward to 0
// turns it off on every link. It runs in the host namespace.
func (r *hostRun) forwardEnds() error {
	req := nl.NewNetlinkRequest(unix.RTM_GETNETCONF, unix.NLM_F_DUMP)
	req.AddData(netconfmsg{unix.AF_INET})
	all, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNETCONF)
	if err != nil {
		return fmt.Errorf("listing the forwarding of links: %w", err)
	}
	count := 0
	for _, raw := range all {
		at, forwarding, err := readNetconf(raw)
		if err != nil || at <= 0 || len(forwarding) < 4 || nl.NativeEndian().Uint32(forwarding) != 0 {
			continue // also the settings of all links, and of new ones
		}
		dev, err := r.host.LinkByIndex(at)
		if err != nil {
			if link.IsNoLink(err) {
				continue
			}
			return fmt.Errorf("looking at link %d: %w", at, err)
		}
		if group := dev.Attrs().Group; group != link.GroupRouted && group != link.GroupLeg {
			continue
		}
		if _, err := link.SetSysctl("net/ipv4/conf/"+dev.Attrs().Name+"/forwarding", "1"); err != nil {
			return err
		}
		count++
	}
	if count > 0 {
		r.changed("turned on forwarding on %d host ends", count)
	}
	return nil
}
