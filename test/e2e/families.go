package main

import (
	"fmt"
	"net/netip"
	"strings"
)

// families are the families of the addresses of nodes, Services and pods.
type families string

const (
	dual families = "dual"
	ipv6 families = "ipv6" // IPv4 exists only on the loopback links
)

const (
	podRange  = "10.244.0.0/16" // as in deploy/default-pool.yaml
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

// ranges returns the ranges of the pool, IPv4 first: a pod has an address of each.
func (f families) ranges() []netip.Prefix {
	v6 := netip.MustParsePrefix(podRange6)
	if f == ipv6 {
		return []netip.Prefix{v6}
	}
	return []netip.Prefix{netip.MustParsePrefix(podRange), v6}
}

// join joins values with commas, as programs take them.
func join[T fmt.Stringer](values []T) string { return strings.Join(words(values), ",") }

func words[T fmt.Stringer](values []T) []string {
	var out []string
	for _, value := range values {
		out = append(out, value.String())
	}
	return out
}
