package host

import (
	"fmt"
	"net/netip"
	"strconv"

	"fairlead.dev/fairlead/internal/netdev/link"
)

// Arrival is a packet that comes to the host.
type Arrival struct {
	// Link that it comes by, and the address that it comes from.
	Link   string
	Source netip.Addr
}

// WayBack is how the host would answer an Arrival.
type WayBack struct {
	// Astray says that it would not be by the link that the packet came by.
	Astray bool
	// Refused says that the kernel drops it for that (rp_filter 1).
	Refused bool
}

// WaysBack looks at how the host would answer each of these packets, in their order.
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
			continue // nothing comes by it
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

// strict tells whether the kernel drops what comes by a link from an address that is
// not answered by it: the larger of two settings counts.
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
