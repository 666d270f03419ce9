package child

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
)

// parentLink names the link of the host that an interface is made on, by its name or its MAC.
type parentLink struct{ name, mac string }

// check returns nil if one of name and MAC is there and valid. Errors: link.ErrInvalid.
func (p parentLink) check(of string) error {
	if p.mac == "" {
		return link.Invalid(fmt.Sprintf("parent %q of %s", p.name, of), link.CheckName(p.name))
	}
	if mac, err := net.ParseMAC(p.mac); err != nil || mac.String() != p.mac || p.name != "" {
		return link.Invalid(fmt.Sprintf("parentMAC %q of %s", p.mac, of), errors.New("must be a MAC as 02:23:45:67:89:ab, without a parent"))
	}
	return nil
}

// withParentsMAC are the types of links that have the MAC of another link.
var withParentsMAC = []string{"vlan", "macvlan", "macvtap", "ipvlan", "ipvtap", "bridge", "openvswitch"}

// find returns the name of the link. Links on it, and the bridge that it is a port of, may
// have its MAC too. Errors: link.ErrNoParent, link.ErrInvalid if several links fit,
// otherwise the kernel's.
func (p parentLink) find(ctx context.Context, s *link.Sockets, of string) (string, error) {
	if p.mac == "" {
		return p.name, nil
	}
	all, err := s.Links(ctx)
	if err != nil {
		return "", err
	}
	var hardware, others []string
	for _, l := range all {
		a := l.Attrs()
		switch {
		case a.HardwareAddr.String() != p.mac || slices.Contains(withParentsMAC, l.Type()):
		case l.Type() == "device":
			hardware = append(hardware, a.Name)
		default:
			others = append(others, a.Name)
		}
	}
	found := hardware
	if len(found) == 0 {
		found = others
	}
	switch len(found) {
	case 0:
		return "", fmt.Errorf("%w: no link has MAC %s, that of the parent of interface %s: it is the node's port in OpenStack", link.ErrNoParent, p.mac, of)
	case 1:
		return found[0], nil
	}
	return "", link.Invalid(fmt.Sprintf("parentMAC %s of %s", p.mac, of), fmt.Errorf("must be that of one link, not of %s", strings.Join(found, ", ")))
}

// Resolve enters the name of a parent that is named by its MAC.
func (c *child) Resolve(i plug.Interface, m *plug.Made) error {
	parent, ok := c.parent(i.Binding)
	if !ok || parent.mac == "" {
		return nil
	}
	name, err := parent.find(context.Background(), c.Sockets, i.Name)
	if errors.Is(err, link.ErrNoParent) {
		return nil
	}
	m.Parent = name
	return err
}
