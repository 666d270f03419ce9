package kuryr

// answer tells how a value of an option is served.
type answer struct {
	served Served
	text   string
}

// option has the answers to an option.
type option struct {
	// any is the answer to a value that values does not have.
	any answer
	// values are answers by value.
	values map[string]answer
}

func (o option) of(value string) answer {
	if a, ok := o.values[value]; ok {
		return a
	}
	return o.any
}

// Answers that several options have.
var (
	ownNetworks = answer{Yes, "openstack.namespaceNetworks: a namespace gets a new network"}
	services    = answer{Other, "kube-proxy serves ClusterIPs, and cloud-provider-openstack Services of type LoadBalancer"}
	policies    = answer{Other, "a policy engine serves NetworkPolicies: see docs/operator/policies.md"}
	nested      = answer{Yes, "not needed: the port of a node's machine is found by its addresses or the machine's ID"}
	pools       = answer{Yes, "openstack.ports.pools keeps ports ready, by marks of its own: low, high and batch"}
	notNeeded   = answer{Yes, "not needed"}
)

// defaults are Kuryr's defaults of the options that decide about the network.
var defaults = map[string]string{
	"kubernetes.enabled_handlers":   "vif,endpoints,service,kuryrloadbalancer,kuryrport",
	"kubernetes.multi_vif_drivers":  "noop",
	"kubernetes.pod_subnets_driver": "default",
	"kubernetes.pod_vif_driver":     "neutron-vif",
	"kubernetes.vif_pool_driver":    "noop",
}

var handlerAnswers = map[string]answer{
	"vif":                     {Yes, "fairlead-controller"},
	"kuryrport":               {Yes, "fairlead-controller"},
	"service":                 services,
	"endpoints":               services,
	"kuryrloadbalancer":       services,
	"namespace":               ownNetworks,
	"kuryrnetwork":            ownNetworks,
	"kuryrnetwork_population": pools,
	"policy":                  policies,
	"pod_label":               policies,
	"kuryrnetworkpolicy":      policies,
	"openshift_machine":       nested,
	"test_handler":            notNeeded,
}

// projects are the drivers that choose the project of a resource.
var projects = map[string]answer{
	"default":    {Yes, "openstack.project"},
	"annotation": {Yes, "openstack.open[].projects has to open each project to its namespaces"},
}

// options are those that have an effect on the network, and those that people look for.
var options = map[string]option{
	"kubernetes.pod_vif_driver": {any: answer{No, "no driver of Fairlead is like it"}, values: map[string]answer{
		"neutron-vif": {Yes, "defaultNetwork.driver: neutron"}, "nested-vlan": {Yes, "openstack.neutronPort: trunk, or the label fairlead.dev/neutron-port of a Node"},
		"nested-macvlan": {Yes, "openstack.neutronPort: macvlan, or the label fairlead.dev/neutron-port of a Node"},
		"nested-dpdk":    {No, "Fairlead attaches no interface of a machine for DPDK"},
	}},
	"kubernetes.vif_pool_driver": {any: pools, values: map[string]answer{"noop": {Yes, "a port is made for each pod"}, "nested": {No, "pods in machines get their port when they start"}}},
	"kubernetes.pod_subnets_driver": {any: ownNetworks, values: map[string]answer{
		"default": {Yes, "openstack.ports.network and subnets"},
	}},
	"kubernetes.pod_security_groups_driver": {any: policies, values: map[string]answer{"default": {Yes, "openstack.ports.securityGroups"}}},
	"kubernetes.pod_project_driver":         {any: answer{No, "no driver of Fairlead is like it"}, values: projects},
	"kubernetes.namespace_project_driver":   {any: ownNetworks, values: projects},
	"kubernetes.multi_vif_drivers": {any: answer{No, "no source of Fairlead is like it"}, values: map[string]answer{
		"noop": {Yes, "multiVIFSources: []"}, "npwg_multiple_interfaces": {Yes, "multiVIFSources: [npwg], and networks.attachedBy: Fairlead"},
		"additional_subnets": {Yes, "multiVIFSources: [additional-subnets], for pools of Fairlead"},
	}},
	"kubernetes.service_project_driver":            {any: services},
	"kubernetes.service_subnets_driver":            {any: services},
	"kubernetes.service_security_groups_driver":    {any: services},
	"kubernetes.service_public_ip_driver":          {any: services},
	"kubernetes.endpoints_lbaas_driver":            {any: services},
	"kubernetes.endpoints_driver_octavia_provider": {any: services},
	"kubernetes.network_policy_driver":             {any: policies},
	"kubernetes.network_policy_project_driver":     {any: policies},
	"kubernetes.nodes_subnets_driver":              {any: nested},
	"kubernetes.port_debug":                        {any: answer{Yes, "always: the name of a port is namespace/pod/interface"}},
	"kubernetes.controller_ha":                     {any: answer{Yes, "always: replicas of the Deployment, leaderElection"}},
	"kubernetes.controller_ha_elector_port":        {any: notNeeded},
	"kubernetes.additional_ifname_prefix":          {any: answer{Yes, "networks name their interfaces net1, net2, ...; a pod may choose a name"}},
	"kubernetes.use_events":                        {any: answer{Yes, "always; see docs/operator/events.md"}},
	"kubernetes.enable_manager":                    {any: pools},
	"kubernetes.watch_reconcile_period":            {any: notNeeded},
	"kubernetes.watch_retry_timeout":               {any: notNeeded},

	"neutron_defaults.project":                  {any: answer{Yes, "openstack.project"}},
	"neutron_defaults.pod_subnet":               {any: answer{Yes, "openstack.ports.subnets"}},
	"neutron_defaults.pod_security_groups":      {any: answer{Yes, "openstack.ports.securityGroups"}},
	"neutron_defaults.ovs_bridge":               {any: answer{No, "Fairlead plugs into the bridge that Neutron names for the port, otherwise br-int"}, values: map[string]answer{"br-int": {Yes, "the default"}}},
	"neutron_defaults.network_device_mtu":       {any: answer{No, "the MTU is that of the network in Neutron"}, values: map[string]answer{"0": {Yes, "the MTU is that of the network"}}},
	"neutron_defaults.resource_tags":            {any: answer{Yes, "openstack.cluster: everything has the tag fairlead:cluster=NAME"}},
	"neutron_defaults.subnet_mapping":           {any: answer{No, "name the subnet in each NetworkAttachmentDefinition"}, values: map[string]answer{"": notNeeded, "{}": notNeeded}},
	"neutron_defaults.service_subnet":           {any: services},
	"neutron_defaults.external_svc_net":         {any: services},
	"neutron_defaults.external_svc_subnet":      {any: services},
	"neutron_defaults.lbaas_activation_timeout": {any: services},

	"octavia_defaults.member_mode":         {any: services},
	"octavia_defaults.enforce_sg_rules":    {any: services},
	"octavia_defaults.lb_algorithm":        {any: services},
	"octavia_defaults.timeout_client_data": {any: services},
	"octavia_defaults.timeout_member_data": {any: services},

	"pod_vif_nested.worker_nodes_subnets": {any: nested},
	"pod_vif_nested.worker_nodes_subnet":  {any: nested},
	"pod_vif_nested.rev_update_attempts":  {any: nested},

	"vif_pool.ports_pool_max":              {any: pools},
	"vif_pool.ports_pool_min":              {any: pools},
	"vif_pool.ports_pool_batch":            {any: pools},
	"vif_pool.ports_pool_update_frequency": {any: pools},
	"vif_pool.vif_pool_mapping":            {any: pools},

	"namespace_subnet.pod_router":      {any: answer{Yes, "openstack.namespaceNetworks.router"}},
	"namespace_subnet.pod_subnet_pool": {any: answer{Yes, "openstack.namespaceNetworks.subnetPools"}},

	"cni_daemon.bind_address":                      {any: answer{Yes, "a Unix socket: socket"}},
	"cni_daemon.worker_num":                        {any: notNeeded},
	"cni_daemon.vif_annotation_timeout":            {any: answer{Yes, "addTimeout of the node, 10 seconds; the runtime tries again"}},
	"cni_daemon.cni_failures_count":                {any: answer{Yes, "not needed: liveness never follows from the errors of pods"}},
	"cni_health_server.max_memory_usage":           {any: answer{Yes, "resources.limits of the DaemonSet"}},
	"health_server.port":                           {any: answer{Yes, "metricsAddress"}},
	"cni_health_server.port":                       {any: answer{Yes, "metricsAddress of the node"}},
	"prometheus_exporter.controller_exporter_port": {any: answer{Yes, "metricsAddress"}},
	"prometheus_exporter.cni_exporter_port":        {any: answer{Yes, "metricsAddress of the node"}},
	"binding.link_iface":                           {any: nested},
	"vhostuser.mount_point":                        {any: answer{No, "Fairlead makes no vhost-user sockets"}},
	"nested_dpdk.dpdk_driver":                      {any: answer{No, "Fairlead attaches no interface of a machine for DPDK"}},
}
