package nad

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/whereabouts"
)

// Bounds of the addresses, those of an interface in the API.
const (
	// maxPools is the number of pools that a network may name.
	maxPools     = 16
	maxAddresses = 16
	maxRoutes    = 64
)

// addresses parses the ipam section. An error is about the addresses that Fairlead gives.
func addresses(section json.RawMessage, flat []byte) (Network, error) {
	var n Network
	if section == nil {
		return n, nil
	}
	var err error
	if n.IPAM, err = typeOf(section); err != nil {
		return Network{}, err
	}
	switch n.IPAM {
	case Type:
		n.Pools, err = pools(section)
	case whereabouts.Type:
		var c whereabouts.Config
		if c, n.Warnings, err = whereabouts.Parse(section, flat); err == nil {
			n.Whereabouts = &c
		}
	}
	return n, err
}

// Section returns the ipam section of a network configuration, or of the first plugin
// with one in a list (CNI specification 1.1.0, section 1); nil if there is none.
func Section(config []byte) (json.RawMessage, error) {
	if len(bytes.TrimSpace(config)) == 0 {
		return nil, nil
	}
	type plugin struct {
		IPAM json.RawMessage `json:"ipam"`
	}
	var list struct {
		plugin
		Plugins []plugin `json:"plugins"`
	}
	if err := json.Unmarshal(config, &list); err != nil {
		return nil, fmt.Errorf("network configuration: must be a JSON object as in the CNI specification: %w", err)
	}
	for _, p := range append([]plugin{list.plugin}, list.Plugins...) {
		if section := nonempty(p.IPAM); section != nil {
			return section, nil
		}
	}
	return nil, nil
}

func typeOf(section json.RawMessage) (string, error) {
	var o struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(section, &o); err != nil {
		return "", fmt.Errorf("network configuration: ipam: %w", err)
	}
	return o.Type, nil
}

// pools parses the option of fairlead-ipam.
func pools(section json.RawMessage) ([]string, error) {
	var o struct {
		Pools []string `json:"pools"`
	}
	if err := json.Unmarshal(section, &o); err != nil {
		return nil, fmt.Errorf("network configuration: ipam: %w", err)
	}
	if len(o.Pools) > maxPools {
		return nil, fmt.Errorf("ipam.pools: %d entries: at most %d", len(o.Pools), maxPools)
	}
	var errs []error
	for i, name := range o.Pools {
		switch {
		case len(validation.IsDNS1123Subdomain(name)) > 0:
			errs = append(errs, fmt.Errorf("ipam.pools[%d]: %q: must be the name of an IPPool", i, name))
		case slices.Contains(o.Pools[:i], name):
			errs = append(errs, fmt.Errorf("ipam.pools[%d]: %q: must be named once", i, name))
		}
	}
	return o.Pools, errors.Join(errs...)
}

// readIPAM reads the routes and DNS of fairlead-ipam, and the section of static
// addresses. It returns remarks about unknown options.
func (r *reader) readIPAM(n *Network) []string {
	if n.IPAM == "" {
		return nil
	}
	var o struct {
		Routes []routeOption `json:"routes"`
		DNS    *v1alpha1.DNS `json:"dns"`
	}
	if err := json.Unmarshal(r.ipam, &o); err != nil {
		r.errs = append(r.errs, explain(r.path+"ipam.", err))
		return nil
	}
	if n.IPAM == whereabouts.Type {
		r.plainRoutes(o.Routes) // the rest is parsed already
		return nil
	}
	routes := r.routes(o.Routes)
	dns := r.dns("ipam.dns", o.DNS)
	if n.IPAM == Type {
		n.DNS = dns
		for _, route := range routes {
			n.Routes = append(n.Routes, route.inAPI())
		}
		return nil
	}
	var s struct {
		Addresses []addressOption `json:"addresses"`
	}
	if err := json.Unmarshal(r.ipam, &s); err != nil {
		r.errs = append(r.errs, explain(r.path+"ipam.", err))
		return nil
	}
	r.static = &static{addresses: r.addresses(s.Addresses), routes: routes, dns: dns}
	return r.unknown("ipam.", r.ipam, staticOptions)
}

// staticOptions are the options of static. Its result has no name.
var staticOptions = []string{"type", "addresses", "routes", "dns", "name"}

type routeOption struct {
	Destination string          `json:"dst"`
	Gateway     string          `json:"gw"`
	MTU         json.RawMessage `json:"mtu"`
	AdvMSS      json.RawMessage `json:"advmss"`
	Priority    json.RawMessage `json:"priority"`
	Table       json.RawMessage `json:"table"`
	Scope       json.RawMessage `json:"scope"`
}

// route is a route of an ipam section. Without a gateway it is on the link.
type route struct {
	field       string
	destination netip.Prefix
	gateway     netip.Addr
}

func (r route) inAPI() v1alpha1.Route {
	out := v1alpha1.Route{Destination: r.destination.String()}
	if r.gateway.IsValid() {
		out.Gateway = r.gateway.String()
	}
	return out
}

// routes parses the routes of an ipam section.
func (r *reader) routes(options []routeOption) []route {
	if len(options) > maxRoutes {
		r.bad("ipam.routes", fmt.Sprint(len(options))+" elements", "must have at most "+fmt.Sprint(maxRoutes))
		return nil
	}
	r.plainRoutes(options)
	var out []route
	for i, o := range options {
		field := fmt.Sprintf("ipam.routes[%d].", i)
		p, err := netip.ParsePrefix(o.Destination)
		if err != nil || p.Addr().Is4In6() {
			r.bad(field+"dst", o.Destination, "must be a network, as 10.0.0.0/8")
			continue
		}
		route := route{field: field, destination: p.Masked()}
		if o.Gateway != "" {
			route.gateway = r.gateway(field+"gw", o.Gateway, p.Addr())
		}
		out = append(out, route)
	}
	return out
}

// plainRoutes refuses the properties of routes that an interface in the API has not.
func (r *reader) plainRoutes(options []routeOption) {
	for i, o := range options {
		for _, further := range []struct {
			name  string
			value json.RawMessage
		}{{"mtu", o.MTU}, {"advmss", o.AdvMSS}, {"priority", o.Priority}, {"table", o.Table}, {"scope", o.Scope}} {
			if further.value != nil && string(further.value) != "null" {
				r.bad(fmt.Sprintf("ipam.routes[%d].%s", i, further.name), further.value, "is not served for "+r.kind+": remove it")
			}
		}
	}
}

// gateway parses a gateway of the family of another address.
func (r *reader) gateway(option, text string, family netip.Addr) netip.Addr {
	a, err := netip.ParseAddr(text)
	switch {
	case err != nil || a.Zone() != "" || a.Is4In6() || a.IsUnspecified() || a.IsMulticast() || a.IsLoopback():
		r.bad(option, text, "must be the address of a gateway, as 10.0.0.1")
	case a.Is4() != family.Is4():
		r.bad(option, text, "must be of the family of "+family.String())
	}
	return a
}

// dns checks DNS settings against the bounds of the API; nil if they are empty.
func (r *reader) dns(option string, d *v1alpha1.DNS) *v1alpha1.DNS {
	if d == nil || d.Domain == "" && len(d.Nameservers)+len(d.Search)+len(d.Options) == 0 {
		return nil
	}
	if len(d.Domain) > maxDNSText {
		r.bad(option+".domain", d.Domain, "must have at most "+fmt.Sprint(maxDNSText)+" bytes")
	}
	for i, s := range d.Nameservers {
		if a, err := netip.ParseAddr(s); err != nil || a.Zone() != "" {
			r.bad(fmt.Sprintf("%s.nameservers[%d]", option, i), s, "must be an address, as 10.0.0.2")
		}
	}
	for _, l := range []struct {
		name string
		has  []string
		most int
	}{{"nameservers", d.Nameservers, 8}, {"search", d.Search, 32}, {"options", d.Options, 32}} {
		if len(l.has) > l.most {
			r.bad(option+"."+l.name, fmt.Sprint(len(l.has))+" elements", "must have at most "+fmt.Sprint(l.most))
		}
		for i, text := range l.has {
			if len(text) > maxDNSText {
				r.bad(fmt.Sprintf("%s.%s[%d]", option, l.name, i), text, "must have at most "+fmt.Sprint(maxDNSText)+" bytes")
			}
		}
	}
	return d
}

// maxDNSText bounds a text of DNS settings, in bytes.
const maxDNSText = 253
