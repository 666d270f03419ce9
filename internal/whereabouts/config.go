package whereabouts

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// Type is the ipam.type of whereabouts.
const Type = "whereabouts"

// Config is a parsed ipam section.
type Config struct {
	// NetworkName is the name of the address space; empty for the unnamed space. Domain
	// returns the address domain for it.
	NetworkName string
	// Ranges are at least one range; each interface gets one address of each.
	Ranges []Range
	// Gateway is the gateway of addresses of its family; zero if there is none.
	Gateway netip.Addr
	// Routes and DNS of the CNI result; DNS is nil if nothing is set.
	Routes []v1alpha1.Route
	DNS    *v1alpha1.DNS
	// Addresses are static addresses that every interface gets in addition to those of
	// the ranges. They are not recorded.
	Addresses []Address
}

// Range is a network and the part of it from which addresses are handed out.
type Range struct {
	// Prefix of the network, without host bits.
	Prefix netip.Prefix
	// First and Last address that may be handed out, both included.
	First, Last netip.Addr
	// Excludes are not handed out. They may overlap each other and lie outside the range.
	Excludes []netip.Prefix
}

// Address is a static address with the prefix length of its link. Gateway is zero if
// there is none.
type Address struct {
	Prefix  netip.Prefix
	Gateway netip.Addr
}

// options of an ipam section that have an effect.
type options struct {
	Type              string          `json:"type"`
	Range             string          `json:"range"`
	RangeStart        string          `json:"range_start"`
	RangeEnd          string          `json:"range_end"`
	Exclude           []string        `json:"exclude"`
	IPRanges          []rangeOptions  `json:"ipRanges"`
	Gateway           string          `json:"gateway"`
	Routes            []routeOptions  `json:"routes"`
	DNS               v1alpha1.DNS    `json:"dns"`
	Addresses         []staticOptions `json:"addresses"`
	NetworkName       string          `json:"network_name"`
	OverlappingRanges *bool           `json:"enable_overlapping_ranges"`
	NodeSliceSize     string          `json:"node_slice_size"`
}

type rangeOptions struct {
	Range      string   `json:"range"`
	RangeStart string   `json:"range_start"`
	RangeEnd   string   `json:"range_end"`
	Exclude    []string `json:"exclude"`
}

type routeOptions struct {
	Destination string `json:"dst"`
	Gateway     string `json:"gw"`
}

type staticOptions struct {
	Address string `json:"address"`
	Gateway string `json:"gateway"`
}

// Options that configure whereabouts itself, not a pod's network, and the effective ones.
var (
	// silent options are in every installation of whereabouts, so they cause no warning.
	silent = []string{"kubernetes", "configuration_path", "reconciler_cron_expression", "datastore"}
	// ineffective options are named in a warning.
	ineffective = []string{
		"log_file", "log_level", "sleep_for_race",
		"leader_lease_duration", "leader_renew_deadline", "leader_retry_period",
		"etcd_host", "etcd_username", "etcd_password", "etcd_key_file", "etcd_cert_file", "etcd_ca_cert_file",
	}
	effective = []string{
		"type", "range", "range_start", "range_end", "exclude", "ipranges", "gateway", "routes", "dns", "addresses",
		"network_name", "enable_overlapping_ranges", "node_slice_size",
	}
)

// limits are the limits of a PodAttachment (addresses and routes of an interface) and of
// an IPPool (excludes).
var limits = map[string]int{"ipRanges": 16, "routes": 64, "exclude": 256}

// maxTold is the largest number of warnings, and of errors, about one configuration. A network is
// of 128 KiB at most, and each of its values may be wrong.
const maxTold = 16

// parser collects warnings and errors.
type parser struct {
	warnings []string
	errs     []error
}

func (p *parser) warn(format string, args ...any) {
	if len(p.warnings) < maxTold {
		p.warnings = append(p.warnings, fmt.Sprintf(format, args...))
	}
}

func (p *parser) bad(field, value, format string, args ...any) {
	if len(p.errs) < maxTold {
		p.errs = append(p.errs, fmt.Errorf("ipam.%s: %.64q %s", field, value, fmt.Sprintf(format, args...)))
	}
}

// Parse parses the ipam section of a network configuration. Options that the section does
// not set come from flat, the content of a flat file (whereabouts.conf), which may be
// empty. The warnings describe the differences between whereabouts and Fairlead. The
// error joins all problems, each with its field.
func Parse(section, flat []byte) (Config, []string, error) {
	var p parser
	o, err := p.decode(section, "network configuration")
	if err != nil {
		return Config{}, nil, err
	}
	if o.Type != Type {
		return Config{}, nil, fmt.Errorf("ipam.type: %q must be %q", o.Type, Type)
	}
	if len(flat) > 0 {
		before := len(p.warnings)
		defaults, err := p.decode(flat, "flat file")
		if err != nil {
			return Config{}, nil, err
		}
		p.warnings = p.warnings[:before] // the flat file is the same for all networks
		p.merge(&o, defaults)
	}
	c := p.config(o)
	if err := errors.Join(p.errs...); err != nil {
		return Config{}, nil, err
	}
	return c, p.warnings, nil
}

// decode parses one section, and adds warnings about keys without effect.
func (p *parser) decode(raw []byte, what string) (options, error) {
	var o options
	keys := map[string]json.RawMessage{}
	if err := json.Unmarshal(raw, &keys); err != nil {
		return o, fmt.Errorf("%s: ipam: must be a JSON object: %w", what, err)
	}
	known := map[string]json.RawMessage{}
	var ignored, unknown []string
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		folded := strings.ToLower(key) // encoding/json ignores case
		switch {
		case slices.Contains(effective, folded):
			known[folded] = keys[key]
		case slices.Contains(ineffective, folded):
			ignored = append(ignored, key)
		case !slices.Contains(silent, folded):
			unknown = append(unknown, key)
		}
	}
	if len(ignored) > 0 {
		p.warn("%s: without effect: they are about how whereabouts itself works", strings.Join(ignored, ", "))
	}
	if len(unknown) > 0 {
		p.warn("%q: not an option of whereabouts, and ignored", unknown)
	}
	filtered, err := json.Marshal(known)
	if err != nil {
		return o, fmt.Errorf("%s: ipam: %w", what, err)
	}
	if err := json.Unmarshal(filtered, &o); err != nil {
		return o, fmt.Errorf("%s: ipam: %w", what, err)
	}
	return o, nil
}

// merge sets the unset options of o from defaults, with two exceptions.
// enable_overlapping_ranges always has the network's own value, or its default. Static
// addresses are ignored, because the file belongs to all networks: every pod of all
// networks would get them.
func (p *parser) merge(o *options, defaults options) {
	text := func(into *string, from string) {
		if *into == "" {
			*into = from
		}
	}
	text(&o.Range, defaults.Range)
	text(&o.RangeStart, defaults.RangeStart)
	text(&o.RangeEnd, defaults.RangeEnd)
	text(&o.Gateway, defaults.Gateway)
	text(&o.NetworkName, defaults.NetworkName)
	text(&o.NodeSliceSize, defaults.NodeSliceSize)
	text(&o.DNS.Domain, defaults.DNS.Domain)
	o.Exclude = orElse(o.Exclude, defaults.Exclude)
	o.IPRanges = orElse(o.IPRanges, defaults.IPRanges)
	o.Routes = orElse(o.Routes, defaults.Routes)
	o.DNS.Nameservers = orElse(o.DNS.Nameservers, defaults.DNS.Nameservers)
	o.DNS.Search = orElse(o.DNS.Search, defaults.DNS.Search)
	o.DNS.Options = orElse(o.DNS.Options, defaults.DNS.Options)
	if len(defaults.Addresses) > 0 {
		p.warn("addresses of the flat file: ignored: they would be on every pod of every network")
	}
}

func orElse[T any](list, otherwise []T) []T {
	if len(list) > 0 {
		return list
	}
	return otherwise
}

// config converts the options.
func (p *parser) config(o options) Config {
	c := Config{NetworkName: o.NetworkName}
	if o.Gateway != "" {
		gw, ok := sloppyAddr(o.Gateway)
		if !ok {
			p.bad("gateway", o.Gateway, "is not an IP address: write it as 10.0.0.1")
		}
		c.Gateway = gw
	}
	all := o.IPRanges
	if o.Range != "" {
		first := rangeOptions{Range: o.Range, RangeStart: o.RangeStart, RangeEnd: o.RangeEnd, Exclude: o.Exclude}
		all = append([]rangeOptions{first}, all...)
	}
	tooMany := false
	for field, has := range map[string]int{"ipRanges": len(all) + len(o.Addresses), "routes": len(o.Routes)} {
		if most := limits[field]; has > most {
			tooMany = true
			p.bad(field, strconv.Itoa(has)+" entries", "are too many: at most %d", most)
		}
	}
	if tooMany {
		return c // before the work that these limits bound
	}
	for i, r := range all {
		field := "range"
		if o.Range == "" || i > 0 {
			field = fmt.Sprintf("ipRanges[%d].range", len(o.IPRanges)-len(all)+i)
		}
		if parsed, ok := p.parseRange(field, r); ok {
			c.Ranges = append(c.Ranges, parsed)
		}
	}
	if len(all) == 0 {
		p.bad("range", "", "is missing: write a CIDR as 10.0.0.0/24, or ipRanges")
	}
	c.Addresses = p.addresses(o.Addresses)
	c.Routes = p.routes(o.Routes)
	if o.DNS.Domain != "" || len(o.DNS.Nameservers)+len(o.DNS.Search)+len(o.DNS.Options) > 0 {
		c.DNS = &o.DNS
	}
	p.differences(o, &c)
	return c
}

// differences adds warnings about options that Fairlead treats differently than
// whereabouts, and errors about ranges without an address or with too many excludes.
func (p *parser) differences(o options, c *Config) {
	if o.OverlappingRanges != nil && !*o.OverlappingRanges {
		p.warn("enable_overlapping_ranges: false: an address is unique in its address space also where ranges overlap; use network_name for separate spaces")
	}
	if o.NodeSliceSize != "" {
		p.warn("node_slice_size: %s: without effect: any node can have any address of the range, without waiting for others", o.NodeSliceSize)
	}
	for i := range c.Ranges {
		r := &c.Ranges[i]
		for _, a := range c.Addresses {
			addr := a.Prefix.Addr()
			if r.handsOut(addr) {
				r.Excludes = append(r.Excludes, netip.PrefixFrom(addr, addr.BitLen()))
				p.warn("addresses: %s lies in range %s: it is not handed out a second time", addr, r.Prefix)
			}
		}
		if c.Gateway.IsValid() && r.handsOut(c.Gateway) {
			p.warn("gateway: %s is not handed out of range %s; whereabouts would hand it out", c.Gateway, r.Prefix)
		}
		if len(r.available(c.Gateway)) == 0 {
			p.bad("exclude", r.Prefix.String(), "has no address left: all are excluded, or the gateway")
		}
		if holes := len(r.holes()); holes > limits["exclude"] {
			p.bad("exclude", strconv.Itoa(holes)+" entries", "are too many: at most %d", limits["exclude"])
		}
	}
	inFamily := func(r Range) bool { return r.First.Is4() == c.Gateway.Is4() }
	if c.Gateway.IsValid() && slices.ContainsFunc(c.Ranges, func(r Range) bool { return !inFamily(r) }) {
		p.warn("gateway: %s is the gateway of addresses of its own family only", c.Gateway)
	}
}

// addresses parses static addresses.
func (p *parser) addresses(list []staticOptions) []Address {
	var out []Address
	for i, s := range list {
		var a Address
		prefix, ok := sloppyPrefix(s.Address)
		if !ok {
			p.bad(fmt.Sprintf("addresses[%d].address", i), s.Address, "must be an address with the prefix length of its link, as 10.0.0.5/24")
			continue
		}
		a.Prefix = prefix
		if s.Gateway != "" {
			if a.Gateway, ok = sloppyAddr(s.Gateway); !ok {
				p.bad(fmt.Sprintf("addresses[%d].gateway", i), s.Gateway, "is not an IP address: write it as 10.0.0.1")
			}
		}
		out = append(out, a)
	}
	if len(out) > 0 {
		p.warn("addresses: given to every interface of the network, and recorded nowhere, as whereabouts does; ask for an address with the pod's annotation instead")
	}
	return out
}

// routes parses routes. Their other properties (CNI 1.1.0) are for the plugin that makes
// the interface, which also has the configuration.
func (p *parser) routes(list []routeOptions) []v1alpha1.Route {
	var out []v1alpha1.Route
	for i, r := range list {
		dst, ok := sloppyPrefix(r.Destination)
		if !ok {
			p.bad(fmt.Sprintf("routes[%d].dst", i), r.Destination, "must be a CIDR, as 10.0.0.0/8")
			continue
		}
		route := v1alpha1.Route{Destination: dst.Masked().String()}
		if r.Gateway != "" {
			gw, ok := sloppyAddr(r.Gateway)
			if !ok {
				p.bad(fmt.Sprintf("routes[%d].gw", i), r.Gateway, "is not an IP address: write it as 10.0.0.1")
			}
			route.Gateway = gw.String()
		}
		out = append(out, route)
	}
	return out
}
