package nft

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"strconv"

	"fairlead.dev/fairlead/internal/cidr"
	"fairlead.dev/fairlead/internal/netdev/link"
)

// place locates an element: its family, its set or map, and its key.
type place struct{ family, set, key string }

// elements are the elements of a pod, or of the node, with their values in maps.
type elements map[place]string

const (
	familyInet   = "inet"
	familyARP    = "arp"
	familyBridge = "bridge"
	familyNetdev = "netdev"
)

// nodeElements returns the elements that belong to the node.
func nodeElements(n *Node) elements {
	out := elements{}
	for _, s := range []struct {
		name     string
		prefixes []netip.Prefix
	}{{"local", n.Local}, {"cluster", n.Cluster}} {
		for _, p := range cidr.Aggregate(s.prefixes, 0) {
			out[place{familyInet, s.name + digit(p.Addr()), p.String()}] = ""
		}
	}
	for _, s := range []struct {
		name      string
		addresses []netip.Addr
	}{{"tunnel", n.Underlay}, {"peers", n.Peers}, {"own", n.Own}} {
		for _, a := range s.addresses {
			out[place{familyInet, s.name + digit(a), a.String()}] = ""
		}
	}
	return out
}

// podElements returns the elements of one sandbox.
func podElements(p Pod) elements {
	out := elements{}
	for _, l := range p.Links {
		linkElements(l, out)
	}
	for _, a := range p.Addresses {
		for _, port := range p.Ports {
			if !port.serves(a.Is4()) {
				continue
			}
			set, key := "ports"+digit(a), fmt.Sprintf("%s . %d", port.Protocol, port.HostPort)
			if port.HostIP.IsValid() && !port.HostIP.IsUnspecified() {
				set, key = "ports"+digit(a)+"at", port.HostIP.String()+" . "+key
			}
			out[place{familyInet, set, key}] = fmt.Sprintf("%s . %d", a, port.ContainerPort)
		}
	}
	return out
}

func linkElements(l Link, out elements) {
	name := strconv.Quote(l.Name)
	station := name + " . " + l.MAC.String()
	switch l.Check {
	case CheckLost:
		out[place{familyBridge, "unchecked", name}] = ""
		return
	case CheckNone:
		out[place{familyBridge, "trusted", name}] = ""
		return
	case CheckMAC:
		out[place{familyBridge, "macs", station}] = ""
		return
	case CheckFull:
	}
	if l.Tagged {
		out[place{familyBridge, "trunks", station}] = ""
	}
	if len(l.Addresses) == 0 {
		return // every packet without a tag is dropped
	}
	out[place{familyBridge, "stations", station}] = ""
	for _, a := range append([]netip.Addr{link.EUI64(l.MAC)}, l.Addresses...) {
		out[place{familyBridge, "sources" + digit(a), station + " . " + a.String()}] = ""
		if a.Is6() {
			// The set's key is raw payload, which has no type.
			out[place{familyBridge, "targets", station + " . 0x" + hex.EncodeToString(a.AsSlice())}] = ""
		}
	}
}

func digit(a netip.Addr) string {
	if a.Is4() {
		return "4"
	}
	return "6"
}
