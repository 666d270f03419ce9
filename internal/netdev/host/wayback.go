package host

import (
	"fmt"
	"net/netip"
	"strconv"

	"fairlead.dev/fairlead/internal/netdev/link"
)

// Arrival describes a packet that reaches the host.
type Arrival struct {
	// Link is the name of the link by which the packet arrives, Source its source
	// address.
	Link   string
	Source netip.Addr
}

// WayBack describes the route of the host's answer to an Arrival.
type WayBack struct {
	// Astray is true if the answer would leave by another link than the packet came by.
	Astray bool
	// Refused is true if the kernel drops the packet for that reason (rp_filter 1).
	Refused bool
}

// WaysBack returns the route of the host's answer to each of these packets, in their
// order.
func (k *Kernel) WaysBack(all []Arrival) ([]WayBack, error) {
	h, err := k.Handle()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	out := make([]WayBack, len(all))
	for i, a := range all {
		dev, err := h.LinkByName(a.Link)
		if link.IsNoLink(err) {
			continue // no packet comes by a missing link
		}
		if err != nil {
			return nil, fmt.Errorf("looking at %s: %w", a.Link, err)
		}
		routes, err := h.RouteGet(a.Source.AsSlice())
		out[i].Astray = err != nil || len(routes) == 0 || routes[0].LinkIndex != dev.Attrs().Index
		if !out[i].Astray || !a.Source.Is4() {
			continue
		}
		err = k.In(func() (err error) {
			out[i].Refused, err = strict(a.Link)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// strict reports whether the kernel drops packets of a link whose answers would leave by
// another link. The larger of two settings counts.
func strict(dev string) (bool, error) {
	most := 0
	for _, of := range []string{"all", dev} {
		text, err := link.ReadSysctl("net/ipv4/conf/" + of + "/rp_filter")
		if err != nil {
			return false, err
		}
		n, err := strconv.Atoi(text)
		if err != nil {
			return false, fmt.Errorf("rp_filter of %s: %w", of, err)
		}
		most = max(most, n)
	}
	return most == 1, nil
}
