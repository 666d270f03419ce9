package main

import (
	"fmt"
	"net/netip"
	"strings"
)

// families says of which families the addresses of nodes, Services and pods are.
type families string

const (
	dual families = "dual"
	ipv6 families = "ipv6" // there is no IPv4 but on the loopback links
)

const (
	podRange  = "10.244.0.0/16" // that of deploy/default-pool.yaml
	podRange6 = "fd00:244::/112"
)

func (f families) check() error {
	switch f {
	case dual, ipv6:
		return nil
	default:
		return fmt.Errorf("--families is %q; must be %s or %s", string(f), dual, ipv6)
	}
}

// ranges are the pool's, IPv4 first: a pod has an address of each.
func (f families) ranges() []netip.Prefix {
	v6 := netip.MustParsePrefix(podRange6)
	if f == ipv6 {
		return []netip.Prefix{v6}
	}
	return []netip.Prefix{netip.MustParsePrefix(podRange), v6}
}

// join lists values as programs take them.
func join[T fmt.Stringer](values []T) string { return strings.Join(words(values), ",") }

func words[T fmt.Stringer](values []T) []string {
	var out []string
	for _, value := range values {
		out = append(out, value.String())
	}
	return out
}
