package cloudtest

import (
	"net/http"
	"net/netip"
	"slices"
)

// maxRoutes is Neutron's default.
const maxRoutes = 30

func (s *Server) createRouter(_ caller, o Object) *fault {
	o["admin_state_up"], o["status"], o["routes"], o["external_gateway_info"] = true, "ACTIVE", []any{}, nil
	return nil
}

func (s *Server) updateRouter(_ caller, o, changes Object) *fault {
	if _, ok := changes["routes"]; !ok {
		return nil
	}
	return s.checkRoutes(o, objects(changes["routes"]))
}

func (s *Server) removeRouter(_ caller, o Object) *fault {
	if len(s.interfaces(o)) > 0 {
		return refuse(http.StatusConflict, "RouterInUse", "Router %s still has ports", o["id"])
	}
	return nil
}

// interfaces returns the ports of a router.
func (s *Server) interfaces(o Object) []Object {
	var all []Object
	for _, p := range s.store["ports"].sorted() {
		if p["device_id"] == o["id"] && p["device_owner"] == "network:router_interface" {
			all = append(all, p)
		}
	}
	return all
}

func (s *Server) addInterface(_ caller, o, body Object) (any, *fault) {
	sn := s.store["subnets"].objects[text(body, "subnet_id")]
	if sn == nil {
		return nil, s.kinds["subnets"].notFound(text(body, "subnet_id"))
	}
	for _, p := range s.interfaces(o) {
		if hasAddress(p, []string{"subnet_id=" + text(sn, "id")}) {
			return nil, refuse(http.StatusBadRequest, "BadRequest", "Bad router request: Router already has a port on subnet %s.", sn["id"])
		}
	}
	p, f := s.createOne("ports", caller{project: text(o, "project_id"), admin: true}, Object{
		"network_id": sn["network_id"], "device_id": o["id"], "device_owner": "network:router_interface",
		"port_security_enabled": false, "security_groups": []any{},
		"fixed_ips": []any{Object{"subnet_id": sn["id"], "ip_address": sn["gateway_ip"]}},
	})
	if f != nil {
		return nil, f
	}
	touch(o)
	return Object{"id": o["id"], "port_id": p["id"], "subnet_id": sn["id"], "network_id": sn["network_id"]}, nil
}

func (s *Server) removeInterface(_ caller, o, body Object) (any, *fault) {
	sn := s.store["subnets"].objects[text(body, "subnet_id")]
	if sn == nil {
		return nil, s.kinds["subnets"].notFound(text(body, "subnet_id"))
	}
	prefix := netip.MustParsePrefix(text(sn, "cidr"))
	for _, p := range s.interfaces(o) {
		if !hasAddress(p, []string{"subnet_id=" + text(sn, "id")}) {
			continue
		}
		for _, r := range objects(o["routes"]) {
			if hop, err := netip.ParseAddr(text(r, "nexthop")); err == nil && prefix.Contains(hop) {
				return nil, refuse(http.StatusConflict, "RouterInterfaceInUseByRoute", "Router interface for subnet %s on router %s cannot be deleted, as it is required by one or more routes.", sn["id"], o["id"])
			}
		}
		s.forget(s.kinds["ports"], p)
		touch(o)
		return Object{"id": o["id"], "port_id": p["id"], "subnet_id": sn["id"]}, nil
	}
	return nil, refuse(http.StatusNotFound, "RouterInterfaceNotFoundForSubnet", "Router %s has no interface on subnet %s", o["id"], sn["id"])
}

func (s *Server) addRoutes(_ caller, o, body Object) (any, *fault) {
	all := objects(o["routes"])
	for _, r := range objects(dig(body, "router", "routes")) {
		if !slices.ContainsFunc(all, func(has Object) bool { return sameRoute(has, r) }) {
			all = append(all, r)
		}
	}
	return s.setRoutes(o, all)
}

func (s *Server) removeRoutes(_ caller, o, body Object) (any, *fault) {
	gone := objects(dig(body, "router", "routes"))
	all := slices.DeleteFunc(objects(o["routes"]), func(has Object) bool {
		return slices.ContainsFunc(gone, func(r Object) bool { return sameRoute(has, r) })
	})
	return s.setRoutes(o, all)
}

func sameRoute(a, b Object) bool {
	return a["destination"] == b["destination"] && a["nexthop"] == b["nexthop"]
}

func (s *Server) setRoutes(o Object, all []Object) (any, *fault) {
	if f := s.checkRoutes(o, all); f != nil {
		return nil, f
	}
	if len(all) != len(objects(o["routes"])) {
		list := []any{}
		for _, r := range all {
			list = append(list, r)
		}
		o["routes"] = list
		touch(o)
	}
	return Object{"router": o}, nil
}

// checkRoutes refuses too many routes, and those whose next hop is in no subnet of a router.
func (s *Server) checkRoutes(o Object, all []Object) *fault {
	if len(all) > maxRoutes {
		return refuse(http.StatusBadRequest, "RoutesExhausted", "Unable to complete operation for %s. The number of routes exceeds the maximum %d.", o["id"], maxRoutes)
	}
	for _, r := range all {
		hop, err := netip.ParseAddr(text(r, "nexthop"))
		reached, own := false, false
		for _, p := range s.interfaces(o) {
			for _, a := range objects(p["fixed_ips"]) {
				sn := s.store["subnets"].objects[text(a, "subnet_id")]
				reached = reached || err == nil && netip.MustParsePrefix(text(sn, "cidr")).Contains(hop)
				own = own || text(a, "ip_address") == hop.String()
			}
		}
		if !reached {
			return refuse(http.StatusBadRequest, "InvalidRoutes", "Invalid format for routes: %v, the nexthop is not connected with router", all)
		}
		if own {
			return refuse(http.StatusBadRequest, "InvalidRoutes", "Invalid format for routes: %v, the nexthop is used by router", all)
		}
	}
	return nil
}
