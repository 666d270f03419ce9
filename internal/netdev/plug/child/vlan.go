package child

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
)

// VLAN returns the kind plug.KindVLAN, over sockets on the host. A parent has one link for each
// VLAN, whatever the namespace of the link.
func VLAN(s *link.Sockets) plug.Kind {
	return &child{s, childType{
		kind: plug.KindVLAN, linkType: "vlan",
		parent: func(b v1alpha1.Binding) (parentLink, bool) {
			if b.VLAN == nil {
				return parentLink{}, false
			}
			return parentLink{b.VLAN.Parent, b.VLAN.ParentMAC}, true
		},
		check: func(i plug.Interface) error {
			if id := i.Binding.VLAN.ID; id < 1 || id > link.MaxVLAN {
				return link.Invalid(fmt.Sprintf("VLAN %d of %s", id, i.Name), fmt.Errorf("must be 1 to %d", link.MaxVLAN))
			}
			return nil
		},
		data: func(data *nl.RtAttr, b v1alpha1.Binding) {
			data.AddRtAttr(nl.IFLA_VLAN_ID, nl.Uint16Attr(uint16(b.VLAN.ID))) //nolint:gosec // 1 to 4094
		},
		borrows: func(v1alpha1.Binding) bool { return true },
		free:    freeVLAN,
	}}
}

// freeVLAN removes the link that has the VLAN of an interface, if its sandbox has ended
// and a process holds the namespace. Errors: link.ErrExists if the link is of a living
// sandbox or of others, or cannot be found.
func freeVLAN(ctx context.Context, s *link.Sockets, parent int, i plug.Interface) (bool, error) {
	b := i.Binding.VLAN
	taken := func(by string) error {
		return fmt.Errorf("%w: VLAN %d of parent %s is in use by %s", link.ErrExists, b.ID, cmp.Or(b.Parent, b.ParentMAC), by)
	}
	is := func(l netlink.Link) bool {
		v, ok := l.(*netlink.Vlan)
		return ok && v.VlanId == int(b.ID) && v.VlanProtocol == netlink.VLAN_PROTOCOL_8021Q
	}
	onHost, err := s.Links(ctx)
	if err != nil {
		return false, err
	}
	if n := slices.IndexFunc(onHost, func(l netlink.Link) bool { return is(l) && l.Attrs().ParentIndex == parent && l.Attrs().NetNsID < 0 }); n >= 0 {
		return false, taken(fmt.Sprintf("link %s of the node", onHost[n].Attrs().Name))
	}
	all, err := s.OutsideLinks(ctx)
	if err != nil {
		return false, err
	}
	n := slices.IndexFunc(all, func(l link.OutsideLink) bool { return l.Parent == parent && is(l.Link) })
	if n < 0 {
		return false, taken("a link that cannot be found: its namespace is ending")
	}
	holder := all[n]
	containerID, name, path, ours := link.ParseAlias(holder.Attrs().Alias)
	switch {
	case !ours:
		return false, taken(fmt.Sprintf("a link %s in another namespace that is not Fairlead's", holder.Attrs().Name))
	case !s.Ended(path, holder.Namespace):
		return false, taken(fmt.Sprintf("interface %s of container %s", name, containerID))
	}
	c, err := s.Conn()
	if err != nil {
		return false, err
	}
	defer s.Release(c)
	err = c.Do(link.RemoveOutside(holder))
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL) { // it has ended meanwhile
		err = nil
	}
	return err == nil, err
}
