package link

import (
	"fmt"
	"net"
)

// State is what the kernel says of a link of the host.
type State struct {
	Index int
	Up    bool
	// Master is the name of the bridge that it is a port of, or empty.
	Master string
}

// LinkState looks at a link of the host. The error is ErrNoLink when there is
// none of that name.
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
	is := State{Index: a.Index, Up: a.Flags&net.FlagUp != 0}
	if a.MasterIndex == 0 {
		return is, nil
	}
	master, err := h.LinkByIndex(a.MasterIndex)
	switch {
	case IsNoLink(err): // it went meanwhile
	case err != nil:
		return is, fmt.Errorf("looking at the bridge of %s: %w", name, err)
	default:
		is.Master = master.Attrs().Name
	}
	return is, nil
}
