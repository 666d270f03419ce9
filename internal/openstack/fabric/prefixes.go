package fabric

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// maxCover bounds the prefixes of one range: two for each bit of an address.
const maxCover = 2 * 128

// ofPool returns the prefixes that cover the ranges of a pool. Errors name the range.
func ofPool(o *v1alpha1.IPPool) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for i, text := range o.Spec.Ranges {
		first, last, err := ends(text)
		if err != nil {
			return nil, fmt.Errorf("IPPool %s: ranges[%d]: %q must be a CIDR, an address or first-last", o.Name, i, text)
		}
		out = append(out, cover(first, last)...)
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
			first, last = p.Masked().Addr(), lastOf(p)
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

// cover returns the fewest prefixes that have exactly the addresses from first to last.
func cover(first, last netip.Addr) []netip.Prefix {
	var out []netip.Prefix
	for len(out) < maxCover {
		bits := first.BitLen()
		for bits > 0 {
			wider := netip.PrefixFrom(first, bits-1)
			if wider.Masked().Addr() != first || last.Less(lastOf(wider)) {
				break
			}
			bits--
		}
		p := netip.PrefixFrom(first, bits)
		out = append(out, p)
		end := lastOf(p)
		if end == last {
			break
		}
		first = end.Next()
	}
	return out
}

// lastOf returns the last address of a prefix.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for bit := p.Bits(); bit < len(b)*8; bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// aggregate returns the fewest prefixes with the same addresses, sorted. It leaves out
// prefixes that no route or pair may have.
func aggregate(all []netip.Prefix) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(all))
	for _, p := range all {
		if p.IsValid() && !p.Addr().Is4In6() && p.Bits() > 0 {
			out = append(out, p.Masked())
		}
	}
	for {
		slices.SortFunc(out, netip.Prefix.Compare)
		before := len(out)
		out = joined(out)
		if len(out) == before {
			return out
		}
	}
}

// joined joins sorted prefixes that are halves of one, and drops those within another.
func joined(sorted []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range sorted {
		n := len(out)
		if n > 0 && out[n-1].Overlaps(p) { // the wider one is sorted first
			continue
		}
		if n > 0 && out[n-1].Bits() == p.Bits() && p.Bits() > 1 {
			if wider := netip.PrefixFrom(out[n-1].Addr(), p.Bits()-1).Masked(); wider.Contains(p.Addr()) {
				out[n-1] = wider
				continue
			}
		}
		out = append(out, p)
	}
	return out
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
