package cloudtest

import (
	"net/http"
	"net/netip"
)

// address gives a port the addresses that it asks for; without any, one of each family that
// the network has.
func (s *Server) address(o Object, wanted []Object) *fault {
	var subnets []Object
	for _, sn := range s.store["subnets"].sorted() {
		if sn["network_id"] == o["network_id"] {
			subnets = append(subnets, sn)
		}
	}
	_, asked := o["fixed_ips"]
	o["fixed_ips"] = []any{}
	var f *fault
	if asked {
		f = s.addressAsAsked(o, subnets, wanted)
	} else {
		f = s.addressFamilies(o, subnets)
	}
	if f != nil {
		s.free(o)
	}
	return f
}

// addressFamilies takes an address of each family, from the first subnet that has one.
func (s *Server) addressFamilies(o Object, subnets []Object) *fault {
	for _, family := range []int{4, 6} {
		has, done := false, false
		for _, sn := range subnets {
			if number(sn, "ip_version") != family || done {
				continue
			}
			has = true
			done = s.takeAny(o, sn)
		}
		if has && !done {
			return noAddress(o)
		}
	}
	return nil
}

func noAddress(o Object) *fault {
	return refuse(http.StatusConflict, "IpAddressGenerationFailure", "No more IP addresses available on network %s.", o["network_id"])
}

// addressAsAsked takes the addresses of a request.
func (s *Server) addressAsAsked(o Object, subnets, wanted []Object) *fault {
	for _, w := range wanted {
		id, ip := text(w, "subnet_id"), text(w, "ip_address")
		addr, err := netip.ParseAddr(ip)
		if ip != "" && err != nil {
			return invalid("Invalid input for fixed_ips. Reason: '%s' is not a valid IP address.", ip)
		}
		var in Object
		for _, sn := range subnets {
			if sn["id"] == id || id == "" && ip != "" && netip.MustParsePrefix(text(sn, "cidr")).Contains(addr) {
				in = sn
				break
			}
		}
		switch {
		case in == nil && id != "":
			return s.kinds["subnets"].notFound(id)
		case in == nil:
			return refuse(http.StatusBadRequest, "InvalidIpForNetwork", "IP address %s is not a valid IP for any of the subnets on the specified network.", ip)
		case ip == "":
			if !s.takeAny(o, in) {
				return noAddress(o)
			}
		case !netip.MustParsePrefix(text(in, "cidr")).Contains(addr):
			return refuse(http.StatusBadRequest, "InvalidIpForSubnet", "IP address %s is not a valid IP for the specified subnet.", ip)
		case !s.take(o, in, addr):
			return refuse(http.StatusConflict, "IpAddressAlreadyAllocated", "IP address %s already allocated in subnet %s", ip, in["id"])
		}
	}
	return nil
}

// takeAny takes the lowest free address of a subnet's allocation pools.
func (s *Server) takeAny(o, subnet Object) bool {
	for _, pool := range objects(subnet["allocation_pools"]) {
		last := netip.MustParseAddr(text(pool, "end"))
		for a := netip.MustParseAddr(text(pool, "start")); a.IsValid() && a.Compare(last) <= 0; a = a.Next() {
			if s.take(o, subnet, a) {
				return true
			}
		}
	}
	return false
}

// take gives an address to a port, unless another has it.
func (s *Server) take(o, subnet Object, a netip.Addr) bool {
	id := text(subnet, "id")
	if _, taken := s.used[id][a.String()]; taken {
		return false
	}
	o["fixed_ips"] = append(o["fixed_ips"].([]any), Object{"subnet_id": id, "ip_address": a.String()})
	s.hold(o)
	return true
}

// hold notes the addresses of a port as used.
func (s *Server) hold(o Object) {
	for _, a := range objects(o["fixed_ips"]) {
		id := text(a, "subnet_id")
		if s.used[id] == nil {
			s.used[id] = map[string]string{}
		}
		s.used[id][text(a, "ip_address")] = text(o, "id")
	}
}

// free gives the addresses of a port back.
func (s *Server) free(o Object) {
	for _, a := range objects(o["fixed_ips"]) {
		delete(s.used[text(a, "subnet_id")], text(a, "ip_address"))
	}
}
