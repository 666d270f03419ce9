package cloudtest

// kinds returns the resources by their names in paths.
func kinds() map[string]*resource {
	return map[string]*resource{
		"networks": {
			one: "network", many: "networks", exception: "Network", word: "Network", quota: "network",
			post:   []string{"name", "description", "project_id", "tenant_id", "admin_state_up", "shared", "mtu", "port_security_enabled"},
			put:    []string{"name", "description", "admin_state_up", "shared", "mtu"},
			create: (*Server).createNetwork, remove: (*Server).removeNetwork,
		},
		"subnets": {
			one: "subnet", many: "subnets", exception: "Subnet", word: "Subnet", quota: "subnet",
			post: []string{
				"name", "description", "project_id", "tenant_id", "network_id", "ip_version", "cidr", "gateway_ip", "enable_dhcp",
				"subnetpool_id", "prefixlen", "allocation_pools", "host_routes", "dns_nameservers",
			},
			put:    []string{"name", "description", "enable_dhcp", "host_routes", "dns_nameservers"},
			create: (*Server).createSubnet, remove: (*Server).removeSubnet,
		},
		"subnetpools": {
			one: "subnetpool", many: "subnetpools", exception: "SubnetPool", word: "Subnet pool", quota: "subnetpool",
			post:   []string{"name", "description", "project_id", "tenant_id", "prefixes", "default_prefixlen", "min_prefixlen", "shared"},
			put:    []string{"name", "description"},
			create: (*Server).createPool,
		},
		"ports": {
			one: "port", many: "ports", exception: "Port", word: "Port", quota: "port",
			post: []string{
				"name", "description", "project_id", "tenant_id", "network_id", "admin_state_up", "mac_address", "fixed_ips",
				"device_id", "device_owner", "binding:host_id", "binding:profile", "binding:vnic_type", "security_groups",
				"port_security_enabled", "allowed_address_pairs", "qos_policy_id", "dns_name", "tags",
			},
			put: []string{
				"name", "description", "admin_state_up", "mac_address", "fixed_ips", "device_id", "device_owner", "binding:host_id",
				"binding:profile", "security_groups", "port_security_enabled", "allowed_address_pairs", "qos_policy_id", "dns_name",
			},
			create: (*Server).createPort, update: (*Server).updatePort, remove: (*Server).removePort,
		},
		"routers": {
			one: "router", many: "routers", exception: "Router", word: "Router", quota: "router",
			post:   []string{"name", "description", "project_id", "tenant_id", "admin_state_up"},
			put:    []string{"name", "description", "routes"},
			create: (*Server).createRouter, update: (*Server).updateRouter, remove: (*Server).removeRouter,
		},
		"security-groups": {
			one: "security_group", many: "security-groups", exception: "SecurityGroup", word: "Security group", quota: "security_group",
			post:   []string{"name", "description", "project_id", "tenant_id", "stateful"},
			put:    []string{"name", "description"},
			create: (*Server).createGroup, remove: (*Server).removeGroup,
		},
		"security-group-rules": {
			one: "security_group_rule", many: "security-group-rules", exception: "SecurityGroupRule", word: "Security group rule", quota: "security_group_rule",
			post: []string{
				"security_group_id", "description", "direction", "ethertype", "protocol", "port_range_min", "port_range_max",
				"remote_ip_prefix", "remote_group_id", "project_id", "tenant_id",
			},
			create: (*Server).createRule, remove: (*Server).removeRule,
		},
		"qos/policies": {
			one: "policy", many: "qos/policies", exception: "QosPolicy", word: "QoS policy",
			post:   []string{"name", "description", "project_id", "tenant_id", "shared"},
			create: (*Server).createPolicy,
		},
		"trunks": {
			one: "trunk", many: "trunks", exception: "Trunk", word: "Trunk", quota: "trunk",
			post:   []string{"name", "description", "project_id", "tenant_id", "port_id", "admin_state_up", "sub_ports"},
			put:    []string{"name", "description", "admin_state_up"},
			create: (*Server).createTrunk, remove: (*Server).removeTrunk,
		},
	}
}

// actions returns the actions by resource and name.
func actions() map[string]action {
	return map[string]action{
		"routers add_router_interface":    (*Server).addInterface,
		"routers remove_router_interface": (*Server).removeInterface,
		"routers add_extraroutes":         (*Server).addRoutes,
		"routers remove_extraroutes":      (*Server).removeRoutes,
		"trunks add_subports":             (*Server).addSubports,
		"trunks remove_subports":          (*Server).removeSubports,
		"trunks get_subports":             (*Server).getSubports,
	}
}
