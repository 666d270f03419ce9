package cloudtest

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// longestText is the length that Neutron allows for names and the like.
const longestText = 255

func (s *Server) createPort(c caller, o Object) *fault {
	network := s.store["networks"].objects[text(o, "network_id")]
	if network == nil || !s.visible(s.kinds["networks"], c, network) {
		return s.kinds["networks"].notFound(text(o, "network_id"))
	}
	if f := s.mayPort(c, network, "create", o); f != nil {
		return f
	}
	complete(o, Object{
		"admin_state_up": true, "status": "DOWN", "device_id": "", "device_owner": "", "binding:host_id": "",
		"binding:profile": Object{}, "binding:vnic_type": "normal", "allowed_address_pairs": []any{},
		"port_security_enabled": true, "qos_policy_id": nil, "dns_name": "",
	})
	if _, has := o["security_groups"]; !has {
		o["security_groups"] = []any{}
		if o["port_security_enabled"] == true {
			o["security_groups"] = []any{s.defaultGroup(text(o, "project_id"))}
		}
	}
	if !s.keepTags {
		o["tags"] = []any{}
	}
	if f := s.checkPort(o); f != nil {
		return f
	}
	if f := s.setMAC(o); f != nil {
		return f
	}
	completePairs(o)
	if f := s.address(o, objects(o["fixed_ips"])); f != nil {
		return f
	}
	s.bind(o)
	return nil
}

func (s *Server) updatePort(c caller, o, changes Object) *fault {
	network := s.store["networks"].objects[text(o, "network_id")]
	if f := s.mayPort(c, network, "update", changes); f != nil {
		return f
	}
	next := copyOf(o)
	maps.Copy(next, changes)
	if f := s.checkPort(next); f != nil {
		return f
	}
	if mac, ok := changes["mac_address"]; ok && mac != o["mac_address"] {
		if f := s.setMAC(next); f != nil {
			return f
		}
	}
	if _, ok := changes["fixed_ips"]; ok {
		s.free(o)
		if f := s.address(next, objects(changes["fixed_ips"])); f != nil {
			s.hold(o)
			return f
		}
		changes["fixed_ips"] = next["fixed_ips"]
	}
	completePairs(next)
	changes["allowed_address_pairs"] = next["allowed_address_pairs"]
	if host, ok := changes["binding:host_id"]; ok && host != o["binding:host_id"] {
		s.bind(next)
		changes["status"], changes["binding:vif_type"], changes["binding:vif_details"] = "DOWN", next["binding:vif_type"], next["binding:vif_details"]
		if s.active && next["binding:vif_type"] == "ovs" && (s.stuck == nil || !s.stuck(next)) {
			changes["status"] = "ACTIVE"
		}
	}
	return nil
}

func (s *Server) removePort(_ caller, o Object) *fault {
	id := text(o, "id")
	for _, t := range s.store["trunks"].objects {
		if t["port_id"] == id {
			return refuse(http.StatusConflict, "PortInUseAsTrunkParent", "Port %s is currently a parent port for trunk %s.", id, t["id"])
		}
		for _, p := range objects(t["sub_ports"]) {
			if p["port_id"] == id {
				return refuse(http.StatusConflict, "PortInUseAsSubPort", "Port %s is currently a subport for trunk %s.", id, t["id"])
			}
		}
	}
	if o["device_owner"] == "network:router_interface" {
		return refuse(http.StatusConflict, "ServicePortInUse", "Port %s cannot be deleted directly via the port API: has device owner network:router_interface.", id)
	}
	return nil
}

// mayPort refuses the attributes of a port that only administrators, or only the owner of
// the network, may set.
func (s *Server) mayPort(c caller, network Object, verb string, attributes Object) *fault {
	if c.admin {
		return nil
	}
	deny := []string{"binding:host_id", "binding:profile"}
	if network["project_id"] != c.project {
		deny = append(deny, "allowed_address_pairs", "port_security_enabled", "mac_address")
		for _, a := range objects(attributes["fixed_ips"]) {
			if a["ip_address"] != nil {
				return forbidden("rule:" + verb + "_port:fixed_ips:ip_address")
			}
		}
		if strings.HasPrefix(text(attributes, "device_owner"), "network:") {
			return forbidden("rule:" + verb + "_port:device_owner")
		}
	}
	for _, name := range deny {
		if _, has := attributes[name]; has {
			return forbidden("rule:" + verb + "_port:" + name)
		}
	}
	return nil
}

// checkPort refuses a port whose attributes do not fit each other.
func (s *Server) checkPort(o Object) *fault {
	for _, name := range []string{"name", "description", "device_id", "device_owner", "dns_name"} {
		if t := text(o, name); len(t) > longestText {
			return invalid("Invalid input for %s. Reason: '%s' exceeds maximum length of %d.", name, t, longestText)
		}
	}
	for _, id := range texts(o["security_groups"]) {
		if s.store["security-groups"].objects[id] == nil {
			return refuse(http.StatusNotFound, "SecurityGroupNotFound", "Security group %s does not exist", id)
		}
	}
	if id := text(o, "qos_policy_id"); id != "" && s.store["qos/policies"].objects[id] == nil {
		return s.kinds["qos/policies"].notFound(id)
	}
	all := objects(o["allowed_address_pairs"])
	secured := o["port_security_enabled"] == true
	switch {
	case len(all) > s.maxPairs:
		return refuse(http.StatusBadRequest, "AllowedAddressPairExhausted", "The number of allowed address pair exceeds the maximum %d.", s.maxPairs)
	case len(all) > 0 && !secured:
		return refuse(http.StatusConflict, "AddressPairAndPortSecurityRequired", "Port Security must be enabled in order to have allowed address pairs on a port.")
	case len(texts(o["security_groups"])) > 0 && !secured:
		return refuse(http.StatusConflict, "PortSecurityPortHasSecurityGroup", "Port has security group associated. Cannot disable port security or IP address until security group is removed.")
	}
	seen := map[string]bool{}
	for _, p := range all {
		key := text(p, "ip_address") + " " + text(p, "mac_address")
		if seen[key] {
			return refuse(http.StatusBadRequest, "DuplicateAddressPairInRequest", "Request contains duplicate address pair: mac_address %v ip_address %v.", p["mac_address"], p["ip_address"])
		}
		seen[key] = true
		if _, err := netip.ParseAddr(text(p, "ip_address")); err == nil {
			continue
		}
		if _, err := netip.ParsePrefix(text(p, "ip_address")); err != nil {
			return invalid("Invalid input for allowed_address_pairs. Reason: '%s' is not a valid IP subnet.", text(p, "ip_address"))
		}
	}
	return nil
}

// createPolicy makes a QoS policy. Only administrators may.
func (s *Server) createPolicy(c caller, o Object) *fault {
	if !c.admin {
		return forbidden("rule:create_policy")
	}
	complete(o, Object{"shared": false, "rules": []any{}})
	return nil
}

// completePairs gives pairs without a MAC that of their port.
func completePairs(o Object) {
	for _, p := range objects(o["allowed_address_pairs"]) {
		if text(p, "mac_address") == "" {
			p["mac_address"] = o["mac_address"]
		}
	}
}

// setMAC gives a port the MAC that it asks for, or any.
func (s *Server) setMAC(o Object) *fault {
	mac := text(o, "mac_address")
	if mac == "" {
		o["mac_address"] = fmt.Sprintf("fa:16:3e:%02x:%02x:%02x", byte(s.ids>>16), byte(s.ids>>8), byte(s.ids))
		return nil
	}
	if hw, err := net.ParseMAC(mac); err != nil || len(hw) != 6 {
		return invalid("Invalid input for mac_address. Reason: '%s' is not a valid MAC address.", mac)
	}
	for _, p := range s.store["ports"].objects {
		if p["id"] != o["id"] && p["network_id"] == o["network_id"] && strings.EqualFold(text(p, "mac_address"), mac) {
			return refuse(http.StatusConflict, "MacAddressInUse", "Unable to complete operation for network %s. The mac address %s is in use.", o["network_id"], mac)
		}
	}
	return nil
}

// bind sets the binding of a port for its host.
func (s *Server) bind(o Object) {
	o["binding:vif_details"] = Object{}
	switch {
	case text(o, "binding:host_id") == "":
		o["binding:vif_type"] = "unbound"
	case s.unbound != nil && s.unbound(o):
		o["binding:vif_type"] = "binding_failed"
	default:
		o["binding:vif_type"] = "ovs"
		o["binding:vif_details"] = Object{"port_filter": true, "connectivity": "l2"}
	}
}

// activate has a bound port be ACTIVE, unless it is stuck.
func (s *Server) activate(o Object) bool {
	if o["binding:vif_type"] != "ovs" || s.stuck != nil && s.stuck(o) {
		return false
	}
	if o["status"] != "ACTIVE" {
		o["status"] = "ACTIVE"
		touch(o)
	}
	return true
}

// defaultGroup returns the security group "default" of a project, which it makes if needed.
func (s *Server) defaultGroup(project string) string {
	for _, g := range s.store["security-groups"].objects {
		if g["project_id"] == project && g["name"] == "default" {
			return text(g, "id")
		}
	}
	o, f := s.createOne("security-groups", caller{project: project, admin: true}, Object{"name": "default"})
	if f != nil {
		panic(f) // the quota of groups is used up by a project without the default one
	}
	for _, family := range []string{"IPv4", "IPv6"} {
		_, f := s.createOne("security-group-rules", caller{project: project, admin: true}, Object{
			"security_group_id": o["id"], "direction": "ingress", "ethertype": family, "remote_group_id": o["id"],
		})
		if f != nil {
			panic(f)
		}
	}
	return text(o, "id")
}

// isSubport reports whether a port is in a list of subports.
func isSubport(list []Object, id string) bool {
	return slices.ContainsFunc(list, func(p Object) bool { return p["port_id"] == id })
}
