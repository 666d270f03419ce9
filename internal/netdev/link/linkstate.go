package link

import (
	"fmt"
	"net"
)

// State is the state of a link of the host.
type State struct {
	Index int
	Up    bool
	// Master is the name of the bridge that the link is a port of, "" without a bridge.
	Master string
	Group  uint32
	// Type is that of ip-link(8), as "veth".
	Type string
}

// LinkState returns the state of a link of the host. Errors: ErrNoLink if there is no
// link with this name, otherwise the kernel's.
func (s *Sockets) LinkState(name string) (State, error) {
	h, err := s.Handle()
	if err != nil {
		return State{}, err
	}
	defer h.Close()
	link, err := h.LinkByName(name)
	if IsNoLink(err) {
		return State{}, fmt.Errorf("%w: %s on the host", ErrNoLink, name)
	}
	if err != nil {
		return State{}, fmt.Errorf("looking at %s: %w", name, err)
	}
	a := link.Attrs()
	is := State{Index: a.Index, Up: a.Flags&net.FlagUp != 0, Group: a.Group, Type: link.Type()}
	if a.MasterIndex == 0 {
		return is, nil
	}
	master, err := h.LinkByIndex(a.MasterIndex)
	switch {
	case IsNoLink(err): // it was removed meanwhile
	case err != nil:
		return is, fmt.Errorf("looking at the bridge of %s: %w", name, err)
	default:
		is.Master = master.Attrs().Name
	}
	return is, nil
}
