package netlab

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// State is the configuration of a network namespace, in words that can be compared. Tests
// find leaks by it.
type State struct {
	// Links are the interfaces by name.
	Links []string
	// Routes are the routes of the main table, without those that the kernel adds for
	// link-local and multicast addresses.
	Routes []string
	// Tables are the nftables by family and name.
	Tables []string
}

// Since returns the things in the state that an earlier state did not have.
func (s State) Since(earlier State) State {
	return State{
		Links:  without(s.Links, earlier.Links),
		Routes: without(s.Routes, earlier.Routes),
		Tables: without(s.Tables, earlier.Tables),
	}
}

// All returns everything in the state, one thing in each string.
func (s State) All() []string {
	var out []string
	for _, part := range []struct {
		kind  string
		names []string
	}{{"link", s.Links}, {"route", s.Routes}, {"nft table", s.Tables}} {
		for _, name := range part.names {
			out = append(out, part.kind+" "+name)
		}
	}
	return out
}

func without(all, these []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return slices.Contains(these, s) })
}

// readings is how often a state is read again if it changes meanwhile.
const readings = 100

// State reads the state of the namespace.
func (n *Namespace) State() (s State, err error) {
	for range readings {
		if s, err = n.read(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return s, err
		}
	}
	return s, err
}

func (n *Namespace) read() (State, error) {
	handle, err := n.Netlink()
	if err != nil {
		return State{}, err
	}
	defer handle.Close()
	links, err := handle.LinkList()
	if err != nil {
		return State{}, fmt.Errorf("list links: %w", err)
	}
	names := map[int]string{}
	var out State
	for _, link := range links {
		names[link.Attrs().Index] = link.Attrs().Name
		out.Links = append(out.Links, link.Attrs().Name)
	}
	routes, err := handle.RouteList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return State{}, fmt.Errorf("list routes: %w", err)
	}
	for _, route := range routes {
		if route.Dst != nil && (route.Dst.IP.IsLinkLocalUnicast() && route.Dst.IP.To4() == nil || route.Dst.IP.IsMulticast()) {
			continue
		}
		out.Routes = append(out.Routes, describe(route, names))
	}
	if out.Tables, err = n.tables(); err != nil {
		return State{}, err
	}
	slices.Sort(out.Links)
	slices.Sort(out.Routes)
	return out, nil
}

func describe(route netlink.Route, links map[int]string) string {
	text := "default"
	if route.Dst != nil {
		text = route.Dst.String()
	}
	if route.Gw != nil {
		text += " via " + route.Gw.String()
	}
	if name := links[route.LinkIndex]; name != "" {
		text += " dev " + name
	}
	return text
}

// tables lists the nftables. A kernel without nftables has none.
func (n *Namespace) tables() ([]string, error) {
	var out []string
	err := n.Do(func() error {
		const getTable, nameAttribute = unix.NFT_MSG_GETTABLE, unix.NFTA_TABLE_NAME
		request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|getTable, unix.NLM_F_DUMP)
		request.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: unix.NFNETLINK_V0})
		answers, err := request.Execute(unix.NETLINK_NETFILTER, 0)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("list nftables: %w", err)
		}
		for _, answer := range answers {
			family := answer[0]
			attributes, err := nl.ParseRouteAttr(answer[nl.SizeofNfgenmsg:])
			if err != nil {
				return fmt.Errorf("list nftables: %w", err)
			}
			for _, attribute := range attributes {
				if attribute.Attr.Type == nameAttribute {
					name := bytes.TrimRight(attribute.Value, "\x00")
					out = append(out, fmt.Sprintf("%s %s", tableFamily(family), name))
				}
			}
		}
		return nil
	})
	slices.Sort(out)
	return out, err
}

func tableFamily(family byte) string {
	switch family {
	case unix.NFPROTO_INET:
		return "inet"
	case unix.NFPROTO_IPV4:
		return "ip"
	case unix.NFPROTO_IPV6:
		return "ip6"
	case unix.NFPROTO_BRIDGE:
		return "bridge"
	case unix.NFPROTO_NETDEV:
		return "netdev"
	case unix.NFPROTO_ARP:
		return "arp"
	default:
		return fmt.Sprintf("family %d", family)
	}
}
