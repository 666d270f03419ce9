package cloudtest

import (
	"net/http"
	"net/netip"
	"slices"
)

func (s *Server) createNetwork(_ caller, o Object) *fault {
	complete(o, Object{
		"admin_state_up": true, "status": "ACTIVE", "shared": false, "mtu": 1442, "subnets": []any{},
		"port_security_enabled": true, "router:external": false,
	})
	return nil
}

func (s *Server) removeNetwork(_ caller, o Object) *fault {
	for _, p := range s.store["ports"].objects {
		if p["network_id"] == o["id"] {
			return refuse(http.StatusConflict, "NetworkInUse", "Unable to complete operation on network %s. There are one or more ports still in use on the network, id for these ports is: %s.", o["id"], p["id"])
		}
	}
	for _, sn := range s.store["subnets"].sorted() {
		if sn["network_id"] == o["id"] {
			s.forget(s.kinds["subnets"], sn)
		}
	}
	return nil
}

func (s *Server) createSubnet(c caller, o Object) *fault {
	network := s.store["networks"].objects[text(o, "network_id")]
	if network == nil || !s.visible(s.kinds["networks"], c, network) {
		return s.kinds["networks"].notFound(text(o, "network_id"))
	}
	if !c.admin && network["project_id"] != c.project {
		return forbidden("rule:create_subnet")
	}
	if text(o, "subnetpool_id") != "" {
		if f := s.fromPool(o); f != nil {
			return f
		}
	}
	p, err := netip.ParsePrefix(text(o, "cidr"))
	if err != nil {
		return invalid("Invalid input for cidr. Reason: '%s' is not a valid IP subnet.", text(o, "cidr"))
	}
	p = p.Masked()
	if p.Addr().Is4() != (number(o, "ip_version") == 4) {
		return refuse(http.StatusBadRequest, "InvalidInput", "Invalid input for operation: cidr %s does not match the ip_version '%d'.", p, number(o, "ip_version"))
	}
	for _, other := range s.store["subnets"].objects {
		if other["network_id"] == o["network_id"] && netip.MustParsePrefix(text(other, "cidr")).Overlaps(p) {
			return refuse(http.StatusBadRequest, "InvalidInput", "Invalid input for operation: Requested subnet with cidr: %s for network: %s overlaps with another subnet.", p, o["network_id"])
		}
	}
	o["cidr"] = p.String()
	complete(o, Object{
		"enable_dhcp": true, "host_routes": []any{}, "dns_nameservers": []any{}, "subnetpool_id": nil,
		"ipv6_ra_mode": nil, "ipv6_address_mode": nil, "gateway_ip": gatewayOf(p),
	})
	delete(o, "prefixlen")
	if _, has := o["allocation_pools"]; !has {
		o["allocation_pools"] = poolsOf(p, text(o, "gateway_ip"))
	}
	network["subnets"] = append(network["subnets"].([]any), o["id"])
	touch(network)
	return nil
}

// gatewayOf returns the first address that a host may have, as Neutron chooses it.
func gatewayOf(p netip.Prefix) string {
	if p.Addr().Is4() {
		return p.Addr().Next().String()
	}
	return p.Addr().String()
}

// poolsOf returns the addresses of a prefix without its network, its broadcast address and
// its gateway.
func poolsOf(p netip.Prefix, gateway string) []any {
	first, last := p.Addr().Next(), lastOf(p)
	if p.Addr().Is4() {
		last = last.Prev()
	}
	gw, err := netip.ParseAddr(gateway)
	if err != nil || gw.Compare(first) < 0 || gw.Compare(last) > 0 {
		return ranges(first, last)
	}
	return slices.Concat(ranges(first, gw.Prev()), ranges(gw.Next(), last))
}

func ranges(first, last netip.Addr) []any {
	if !first.IsValid() || !last.IsValid() || first.Compare(last) > 0 {
		return nil
	}
	return []any{Object{"start": first.String(), "end": last.String()}}
}

func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(b) // it has the length of an address
	return a
}

func (s *Server) removeSubnet(_ caller, o Object) *fault {
	if len(s.used[text(o, "id")]) > 0 {
		return refuse(http.StatusConflict, "SubnetInUse", "Unable to complete operation on subnet %s: One or more ports have an IP allocation from this subnet.", o["id"])
	}
	if n := s.store["networks"].objects[text(o, "network_id")]; n != nil {
		n["subnets"] = anys(slices.DeleteFunc(texts(n["subnets"]), func(id string) bool { return id == o["id"] }))
		touch(n)
	}
	return nil
}

func (s *Server) createPool(_ caller, o Object) *fault {
	list := texts(o["prefixes"])
	if len(list) == 0 {
		return invalid("Invalid input for prefixes. Reason: none is given.")
	}
	for _, p := range list {
		prefix, err := netip.ParsePrefix(p)
		if err != nil {
			return invalid("Invalid input for prefixes. Reason: '%s' is not a valid IP subnet.", p)
		}
		o["ip_version"] = 4
		if prefix.Addr().Is6() {
			o["ip_version"] = 6
		}
	}
	complete(o, Object{"shared": false})
	if number(o, "default_prefixlen") == 0 {
		o["default_prefixlen"] = number(o, "min_prefixlen")
	}
	return nil
}

// fromPool chooses a free prefix of a subnet pool.
func (s *Server) fromPool(o Object) *fault {
	pool := s.store["subnetpools"].objects[text(o, "subnetpool_id")]
	if pool == nil {
		return s.kinds["subnetpools"].notFound(text(o, "subnetpool_id"))
	}
	for _, other := range s.store["subnets"].objects {
		if other["network_id"] == o["network_id"] && number(other, "ip_version") == number(o, "ip_version") && other["subnetpool_id"] != o["subnetpool_id"] {
			return refuse(http.StatusBadRequest, "NetworkSubnetPoolAffinityError", "Subnets hosted on the same network must be allocated from the same subnet pool.")
		}
	}
	length := number(o, "prefixlen")
	if length == 0 {
		length = number(pool, "default_prefixlen")
	}
	if least := number(pool, "min_prefixlen"); length < least {
		return refuse(http.StatusBadRequest, "MinPrefixSubnetAllocationError", "Unable to allocate subnet with prefix length %d, minimum allowed prefix is %d.", length, least)
	}
	for _, text := range texts(pool["prefixes"]) {
		whole := netip.MustParsePrefix(text).Masked()
		for p := netip.PrefixFrom(whole.Addr(), length); whole.Contains(p.Addr()) && p.IsValid(); p = netip.PrefixFrom(lastOf(p).Next(), length) {
			if !s.poolUses(pool, p) {
				o["cidr"] = p.String()
				return nil
			}
		}
	}
	return refuse(http.StatusInternalServerError, "SubnetAllocationError", "Failed to allocate subnet: Insufficient prefix space to allocate subnet size /%d.", length)
}

func (s *Server) poolUses(pool Object, p netip.Prefix) bool {
	for _, sn := range s.store["subnets"].objects {
		if sn["subnetpool_id"] == pool["id"] && netip.MustParsePrefix(text(sn, "cidr")).Overlaps(p) {
			return true
		}
	}
	return false
}
