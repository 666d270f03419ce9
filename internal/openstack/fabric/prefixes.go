package fabric

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cidr"
)

// ofPool returns the prefixes that cover the ranges of a pool. Errors name the range.
func ofPool(o *v1alpha1.IPPool) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for i, text := range o.Spec.Ranges {
		first, last, err := ends(text)
		if err != nil {
			return nil, fmt.Errorf("IPPool %s: ranges[%d]: %q must be a CIDR, an address or first-last", o.Name, i, text)
		}
		out = append(out, cidr.Between(first, last)...)
	}
	return out, nil
}

// ends returns the first and the last address of a range.
func ends(text string) (first, last netip.Addr, err error) {
	from, to, isRange := strings.Cut(text, "-")
	switch {
	case isRange:
		to, _, _ = strings.Cut(to, "/")
		first, err = netip.ParseAddr(from)
		if err == nil {
			last, err = netip.ParseAddr(to)
		}
	case strings.Contains(text, "/"):
		var p netip.Prefix
		if p, err = netip.ParsePrefix(text); err == nil {
			first, last = p.Masked().Addr(), cidr.Last(p)
		}
	default:
		first, err = netip.ParseAddr(text)
		last = first
	}
	if err == nil && (first.BitLen() != last.BitLen() || last.Less(first) || first.Is4In6() || first.Zone() != "" || last.Zone() != "") {
		err = fmt.Errorf("%q is no range", text)
	}
	return first, last, err
}

// aggregate returns the fewest prefixes with the same addresses, sorted. It leaves out
// prefixes that no route or pair may have.
func aggregate(all []netip.Prefix) []netip.Prefix {
	return cidr.Aggregate(slices.DeleteFunc(slices.Clone(all), func(p netip.Prefix) bool {
		return !p.IsValid() || p.Addr().Is4In6() || p.Bits() == 0
	}), 1)
}

// parse returns the prefixes of texts, and leaves out invalid ones.
func parse(texts []string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range texts {
		if p, err := netip.ParsePrefix(s); err == nil {
			out = append(out, p)
		}
	}
	return out
}

func texts(all []netip.Prefix) []string {
	out := make([]string, len(all))
	for i, p := range all {
		out[i] = p.String()
	}
	return out
}
