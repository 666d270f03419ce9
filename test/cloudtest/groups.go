package cloudtest

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
)

func (s *Server) createGroup(c caller, o Object) *fault {
	o["stateful"], o["shared"], o["security_group_rules"] = true, false, []any{}
	s.store["security-groups"].objects[text(o, "id")] = o
	for _, family := range []string{"IPv4", "IPv6"} {
		_, f := s.createOne("security-group-rules", caller{project: text(o, "project_id"), admin: true}, Object{
			"security_group_id": o["id"], "direction": "egress", "ethertype": family,
		})
		if f != nil {
			s.forget(s.kinds["security-groups"], o)
			return f
		}
	}
	return nil
}

func (s *Server) removeGroup(_ caller, o Object) *fault {
	for _, p := range s.store["ports"].objects {
		if slices.Contains(texts(p["security_groups"]), text(o, "id")) {
			return refuse(http.StatusConflict, "SecurityGroupInUse", "Security Group %s in use.", o["id"])
		}
	}
	for _, r := range s.store["security-group-rules"].sorted() {
		if r["security_group_id"] == o["id"] {
			s.forget(s.kinds["security-group-rules"], r)
		}
	}
	return nil
}

func (s *Server) createRule(c caller, o Object) *fault {
	group := s.store["security-groups"].objects[text(o, "security_group_id")]
	if group == nil || !c.admin && group["project_id"] != c.project {
		return refuse(http.StatusNotFound, "SecurityGroupNotFound", "Security group %s does not exist", text(o, "security_group_id"))
	}
	for _, name := range []string{"protocol", "port_range_min", "port_range_max", "remote_ip_prefix", "remote_group_id"} {
		if _, has := o[name]; !has {
			o[name] = nil
		}
	}
	if f := s.checkRule(o); f != nil {
		return f
	}
	for _, r := range objects(group["security_group_rules"]) {
		if ruleKey(r) == ruleKey(o) {
			return refuse(http.StatusConflict, "SecurityGroupRuleExists", "Security group rule already exists. Rule id is %s.", r["id"])
		}
	}
	o["project_id"], o["tenant_id"] = group["project_id"], group["project_id"]
	group["security_group_rules"] = append(group["security_group_rules"].([]any), o)
	touch(group)
	return nil
}

func (s *Server) checkRule(o Object) *fault {
	if o["protocol"] == nil && o["port_range_min"] != nil {
		return refuse(http.StatusBadRequest, "SecurityGroupProtocolRequiredWithPorts", "Must also specify protocol if port range is given.")
	}
	if remote := text(o, "remote_group_id"); remote != "" && s.store["security-groups"].objects[remote] == nil {
		return refuse(http.StatusNotFound, "SecurityGroupNotFound", "Security group %s does not exist", remote)
	}
	if text(o, "remote_ip_prefix") == "" {
		return nil
	}
	p, ok := prefixOf(text(o, "remote_ip_prefix"))
	if !ok {
		return invalid("Invalid input for remote_ip_prefix. Reason: '%s' is not a valid IP subnet.", text(o, "remote_ip_prefix"))
	}
	if p.Addr().Is4() != (o["ethertype"] == "IPv4") {
		return refuse(http.StatusBadRequest, "SecurityGroupRuleParameterConflict", "Conflicting value ethertype %s for CIDR %s", o["ethertype"], p)
	}
	return nil
}

func (s *Server) removeRule(_ caller, o Object) *fault {
	if g := s.store["security-groups"].objects[text(o, "security_group_id")]; g != nil {
		left := []any{}
		for _, r := range objects(g["security_group_rules"]) {
			if r["id"] != o["id"] {
				left = append(left, r)
			}
		}
		g["security_group_rules"] = left
		touch(g)
	}
	return nil
}

// ruleKey is the part of a rule that no other rule of its group has: any address and
// 0.0.0.0/0 are the same.
func ruleKey(o Object) string {
	remote := ""
	if p, ok := prefixOf(text(o, "remote_ip_prefix")); ok && p.Bits() > 0 {
		remote = p.Masked().String()
	}
	return fmt.Sprint(o["direction"], o["ethertype"], o["protocol"], o["port_range_min"], o["port_range_max"], remote, o["remote_group_id"])
}

func prefixOf(s string) (netip.Prefix, bool) {
	if a, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	p, err := netip.ParsePrefix(s)
	return p, err == nil
}
