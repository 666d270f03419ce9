package host

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strconv"

	"fairlead.dev/fairlead/internal/netdev/link"
)

// applySettings writes the settings under /proc/sys. It has to run on a thread in the
// host namespace.
func (r *hostRun) applySettings() error {
	var errs []error
	set := func(name, value string) {
		before, err := link.SetSysctl(name, value)
		if err != nil {
			errs = append(errs, err)
		} else if before != value {
			r.changed("set %s from %s to %s", name, before, value)
		}
	}
	if r.want.IPv4 {
		r.settings4(set)
		errs = append(errs, r.forwardEnds())
	}
	wantIPv6 := r.want.IPv6
	switch {
	case r.ipv6:
		r.settings6(set, wantIPv6)
	case wantIPv6:
		errs = append(errs, errors.New("the blocks of the nodes have IPv6 addresses, and this kernel has no IPv6"))
	}
	return errors.Join(errs...)
}

// ours lists the links of the tunnel, which only Fairlead uses.
func (r *hostRun) ours() []string {
	var names []string
	if r.want.Tunnel != nil {
		for _, a := range r.want.Tunnel.Underlay {
			if r.tunnels.index(a) != 0 {
				names = append(names, tunnelName(a))
			}
		}
	}
	return names
}

// settings4 turns on IPv4 forwarding for packets from the tunnel and the uplink. Other links are left alone, so that the machine does not become a router
// between other networks.
func (r *hostRun) settings4(set func(name, value string)) {
	const conf = "net/ipv4/conf/"
	for _, link := range r.ours() {
		set(conf+link+"/forwarding", "1")
		// The kernel sends redirects if either this setting or that of "all" is 1.
		set(conf+link+"/send_redirects", "0")
		// The higher number of this setting and that of "all" holds; 2 is loose.
		set(conf+link+"/rp_filter", "2")
	}
	if r.uplink != 0 {
		set(conf+r.want.Uplink+"/forwarding", "1")
		if r.want.Loose {
			if is, err := strict(r.want.Uplink); err == nil && is {
				set(conf+r.want.Uplink+"/rp_filter", "2")
			}
		}
	}
	set(conf+"all/send_redirects", "0")
	if slices.ContainsFunc(r.want.Remote, RemoteNode.crosses) {
		// Routers do not fragment IPv6 packets. With this setting the kernel passes the
		// path MTU of the routers on to pods.
		set("net/ipv4/ip_forward_use_pmtu", "1")
	}
}

// crosses reports whether IPv4 packets to the node travel inside IPv6.
func (n RemoteNode) crosses() bool {
	return n.Underlay.Is6() && slices.ContainsFunc(n.Blocks, func(b netip.Prefix) bool { return b.Addr().Is4() })
}

// settings6 does the same for IPv6, which the kernel forwards on all links or on none.
func (r *hostRun) settings6(set func(name, value string), wanted bool) {
	const conf = "net/ipv6/conf/"
	for _, link := range r.ours() {
		// No pod and no other node may become this host's router, and addresses here are
		// usable without duplicate address detection.
		set(conf+link+"/accept_ra", "0")
		set(conf+link+"/accept_dad", "0")
		if wanted || link == tunnelName(netip.IPv6Unspecified()) {
			set(conf+link+"/disable_ipv6", "0")
		}
	}
	if !wanted {
		return
	}
	if r.uplink != 0 {
		acceptRA := conf + r.want.Uplink + "/accept_ra"
		if now, err := link.ReadSysctl(acceptRA); err == nil && now == "1" {
			set(acceptRA, "2") // before forwarding, which would drop the routes from advertisements
		}
	}
	set(conf+"all/forwarding", "1")
	for _, link := range r.ours() {
		set(conf+link+"/forwarding", "1")
	}
	if r.uplink != 0 {
		set(conf+r.want.Uplink+"/forwarding", "1")
	}
}

// AllowLocalhost lets packets from and to 127.0.0.0/8 pass a host end, so that a port
// of the host at 127.0.0.1 can lead to its pod. The packet filter must keep the pod from
// using it. Errors: link.ErrNoLink if there is no such link.
func (k *Kernel) AllowLocalhost(end string) error {
	if err := link.CheckName(end); err != nil {
		return fmt.Errorf("%w: name of host end %q %w", link.ErrInvalid, end, err)
	}
	return k.In(func() error {
		_, err := link.SetSysctl("net/ipv4/conf/"+end+"/route_localnet", "1")
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%w: host end %s", link.ErrNoLink, end)
		}
		return err
	})
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
