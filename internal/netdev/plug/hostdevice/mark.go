package hostdevice

import (
	"errors"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"

	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
)

// deviceOf describes a device of the host.
func deviceOf(l netlink.Link) plug.Device {
	a := l.Attrs()
	d := plug.Device{Name: a.Name, MTU: a.MTU, MAC: a.HardwareAddr.String(), Up: a.Flags&net.FlagUp != 0, Alias: a.Alias, PermanentMAC: a.PermHWAddr.String()}
	if a.ParentDevBus == "pci" {
		d.PCIAddress = a.ParentDev
	}
	return d
}

// A mark is the alias of a device that is the interface of a sandbox, or is becoming one:
// the words of ownerAlias, the path of the namespace, and the former state of the device,
// with the settings of a virtual function behind "up" or "down".
// It moves with the device, and is all that is needed to give the device back.
type mark struct {
	containerID, name, path string
	former                  plug.Device
}

// noWord stands for an empty word of a mark.
const noWord = "-"

// words returns the alias. Errors: link.ErrInvalid if it is too long.
func (m mark) words() (string, error) {
	up := "down"
	if m.former.Up {
		up = "up"
	}
	if m.former.VF != "" {
		up += "/" + m.former.VF
	}
	word := func(s string) string {
		if s == "" {
			return noWord
		}
		return s
	}
	alias := strings.Join([]string{
		link.OwnerAlias(m.containerID, m.name), word(url.PathEscape(m.path)), m.former.Name, strconv.Itoa(m.former.MTU), word(m.former.MAC), up,
	}, " ")
	if m.former.Alias != "" {
		alias += " " + m.former.Alias
	}
	if over := len(alias) - link.MaxAliasLength; over > 0 {
		return "", link.Invalid("alias of "+m.former.Name, errors.New("must be "+strconv.Itoa(over)+" bytes shorter: the former state of the device is written beside it"))
	}
	return alias, nil
}

// parseMark returns the parts of a mark, false if the alias is none. A sandbox may have
// changed it: the container ID becomes the name of a file, and must lead to no other directory.
func parseMark(alias string) (m mark, ok bool) {
	rest, ok := strings.CutPrefix(alias, link.AliasPrefix)
	words := strings.SplitN(rest, " ", 8)
	if !ok || len(words) < 7 {
		return mark{}, false
	}
	path, err := url.PathUnescape(words[2])
	if words[2] == noWord {
		path = ""
	}
	mtu, mtuErr := strconv.Atoi(words[4])
	if err != nil || path == noWord || mtuErr != nil || mtu < 0 || mtu > link.MaxMTU || words[0] == "" || strings.Contains(words[0], "/") || link.CheckName(words[1]) != nil || link.CheckName(words[3]) != nil {
		return mark{}, false
	}
	up, vf, isVF := strings.Cut(words[6], "/")
	if _, ok := parseSettings(vf); !ok || up != "up" && up != "down" || isVF && vf == "" {
		return mark{}, false
	}
	m = mark{containerID: words[0], name: words[1], path: path, former: plug.Device{Name: words[3], MTU: mtu, Up: up == "up", VF: vf}}
	if words[5] != noWord {
		mac, err := net.ParseMAC(words[5])
		if err != nil || mac.String() != words[5] {
			return mark{}, false
		}
		m.former.MAC = words[5]
	}
	if len(words) == 8 {
		m.former.Alias = words[7]
	}
	return m, true
}

// refusal returns the reason why the host needs a device itself, "" if it does not. onHost
// are all links of the host, outside those of sandboxes, and ways the routes of the host.
func refusal(dev netlink.Link, onHost []netlink.Link, outside []link.OutsideLink, ways []netlink.Route) string {
	a := dev.Attrs()
	switch {
	case a.Flags&net.FlagLoopback != 0:
		return "it is the loopback interface"
	case strings.HasPrefix(a.Alias, link.AliasPrefix):
		return "it is a link of Fairlead"
	case a.MasterIndex != 0:
		for _, l := range onHost {
			if l.Attrs().Index == a.MasterIndex {
				return "it is a port of " + l.Attrs().Name
			}
		}
		return "it is a port of another link"
	}
	for _, r := range ways {
		if isDefault(r) && leadsOver(r, a.Index) {
			return "it carries the default route of the node"
		}
	}
	return childOf(a.Index, onHost, outside)
}

// childOf returns the reason why a link of the host is the parent of another, "" if it is
// of none. The other end of a veth is no child.
func childOf(index int, onHost []netlink.Link, outside []link.OutsideLink) string {
	for _, l := range onHost {
		if c := l.Attrs(); c.ParentIndex == index && c.NetNsID < 0 && l.Type() != "veth" {
			return "it is the parent of " + c.Name
		}
	}
	for _, l := range outside {
		if l.Parent == index && l.Type() != "veth" {
			if containerID, name, _, ok := link.ParseAlias(l.Attrs().Alias); ok {
				return "it is the parent of interface " + name + " of container " + containerID
			}
			return "it is the parent of " + l.Attrs().Name + " in another namespace"
		}
	}
	return ""
}

func isDefault(r netlink.Route) bool {
	to, ok := link.ToPrefix(r.Dst)
	return !ok || to.Bits() == 0 && to.Addr() == netip.IPv4Unspecified() || to.Bits() == 0 && to.Addr() == netip.IPv6Unspecified()
}

func leadsOver(r netlink.Route, index int) bool {
	for _, hop := range r.MultiPath {
		if hop.LinkIndex == index {
			return true
		}
	}
	return r.LinkIndex == index
}
