# Sourced by up.sh: writes the configuration of all services.
# shellcheck shell=bash disable=SC2154 # from common.sh and up.sh
database_url() { printf 'mysql+pymysql://root@localhost/%s?unix_socket=%s&charset=utf8' "$1" "$run/mysql.sock"; }

# credentials SECTION USER prints the section by which a service asks Keystone.
credentials() {
	cat <<-END
		[$1]
		www_authenticate_uri = $keystone
		auth_url = $keystone
		auth_type = password
		username = $2
		password = $password
		project_name = service
		user_domain_id = default
		project_domain_id = default
		region_name = RegionOne
		service_token_roles_required = true
	END
}
auth_strategy=keystone
[ "$light" = no ] || auth_strategy=noauth

configure_mariadb() {
	cat >"$etc/my.cnf" <<-END
		[mariadbd]
		user=root
		datadir=$state/mysql
		socket=$run/mysql.sock
		log-error=$log/mariadb.log
		skip-networking
		skip-log-bin
		skip-name-resolve
		innodb_flush_log_at_trx_commit=0
		innodb_doublewrite=0
		innodb_file_per_table=0
		innodb_buffer_pool_size=64M
		innodb_log_file_size=32M
		performance_schema=off
		max_connections=300
		character-set-server=utf8mb3
		lc-messages-dir=$share/mysql
		character-sets-dir=$share/mysql/charsets
		plugin-dir=$tree/usr/lib/mysql/plugin
	END
}

# With ML2/OVN no agent needs a message queue. One API worker is the least: with none the
# first POST never returns.
configure_neutron() {
	cat >"$etc/neutron/neutron.conf" <<-END
		[DEFAULT]
		core_plugin = ml2
		service_plugins = ovn-router,trunk,qos,segments,port_forwarding
		auth_strategy = $auth_strategy
		bind_host = 127.0.0.1
		bind_port = $neutron_port
		api_workers = 1
		rpc_workers = 0
		rpc_state_report_workers = 0
		transport_url = fake://
		api_paste_config = $etc/neutron/api-paste.ini
		state_path = $state/neutron
		log_file = $log/neutron-server.log
		dns_domain = cluster.example.
		global_physnet_mtu = 1500
		notify_nova_on_port_status_changes = false
		notify_nova_on_port_data_changes = false
		${pairs:+max_allowed_address_pair = $pairs}
		[database]
		connection = $(database_url neutron)
		max_pool_size = 10
		max_overflow = 30
		[oslo_concurrency]
		lock_path = $state/lock
		[oslo_policy]
		enforce_scope = false
		enforce_new_defaults = false
		[quotas]
		quota_network = -1
		quota_subnet = -1
		quota_port = -1
		quota_router = -1
		quota_floatingip = -1
		quota_security_group = -1
		quota_security_group_rule = -1
		[ml2]
		mechanism_drivers = ovn
		type_drivers = local,flat,vlan,geneve
		tenant_network_types = geneve
		extension_drivers = port_security,dns_domain_ports,qos$([ "$bulk_tags" = no ] || printf ,tag_ports_during_bulk_creation)
		overlay_ip_version = 4
		[ml2_type_geneve]
		vni_ranges = 1:65536
		max_header_size = 38
		[ml2_type_flat]
		flat_networks = *
		[securitygroup]
		enable_security_group = true
		[ovn]
		ovn_nb_connection = unix:$run/nb.sock
		ovn_sb_connection = unix:$run/sb.sock
		neutron_sync_mode = off
		ovn_metadata_enabled = false
		enable_distributed_floating_ip = true
	END
	# The pipeline without Keystone believes the headers of a request.
	sed -e 's/^noauth = .*neutronapiapp_v2_0$/noauth = http_proxy_to_wsgi request_id catch_errors labauth keystonecontext extensions neutronapiapp_v2_0/' \
		"$share/neutron-common/api-paste.ini" >"$etc/neutron/api-paste.ini"
	printf '\n[filter:labauth]\npaste.filter_factory = noauth:filter_factory\n' >>"$etc/neutron/api-paste.ini"
	[ "$light" = yes ] || credentials keystone_authtoken neutron >>"$etc/neutron/neutron.conf"
}

# key_repository DIRECTORY makes two keys, as keystone-manage fernet_setup does.
key_repository() {
	[ ! -e "$1/1" ] || return 0
	local key
	(
		umask 077
		mkdir -p "$1"
		for key in 0 1; do head -c 32 /dev/urandom | base64 | tr '+/' '-_' | tr -d '\n' >"$1/$key"; done
	)
}

configure_keystone() {
	cat >"$etc/keystone/keystone.conf" <<-END
		[DEFAULT]
		log_file = $log/keystone-server.log
		[database]
		connection = $(database_url keystone)
		[token]
		provider = fernet
		expiration = 86400
		[fernet_tokens]
		key_repository = $etc/keystone/fernet-keys
		[fernet_receipts]
		key_repository = $etc/keystone/fernet-keys
		[credential]
		key_repository = $etc/keystone/credential-keys
		[cache]
		enabled = true
		backend = dogpile.cache.memory
		[identity]
		password_hash_rounds = 4
	END
	key_repository "$etc/keystone/fernet-keys"
	key_repository "$etc/keystone/credential-keys"
}

configure_octavia() {
	cat >"$etc/octavia/octavia.conf" <<-END
		[DEFAULT]
		transport_url = fake://
		log_file = $log/octavia-server.log
		[api_settings]
		bind_host = 127.0.0.1
		bind_port = $octavia_port
		auth_strategy = $auth_strategy
		enabled_provider_drivers = ovn: OVN provider driver
		default_provider_driver = ovn
		api_base_uri = $octavia
		[database]
		connection = $(database_url octavia)
		[oslo_policy]
		policy_file = $etc/octavia/policy.yaml
		enforce_scope = false
		[neutron]
		endpoint = $neutron
		region_name = RegionOne
		[driver_agent]
		enabled_provider_agents = ovn
		status_socket_path = $run/octavia-status.sock
		stats_socket_path = $run/octavia-stats.sock
		get_socket_path = $run/octavia-get.sock
		[ovn]
		ovn_nb_connection = unix:$run/nb.sock
		ovn_sb_connection = unix:$run/sb.sock
		[quotas]
		default_load_balancer_quota = -1
		default_listener_quota = -1
		default_member_quota = -1
		default_pool_quota = -1
		default_health_monitor_quota = -1
	END
	printf '{}\n' >"$etc/octavia/policy.yaml"
	if [ "$light" = yes ]; then
		printf '[service_auth]\nauth_type = none\n' >>"$etc/octavia/octavia.conf"
	else
		credentials keystone_authtoken octavia >>"$etc/octavia/octavia.conf"
		credentials service_auth octavia | grep -vE '^(www_auth|region_name|service_token)' >>"$etc/octavia/octavia.conf"
	fi
}

# cloud NAME USER PROJECT prints an entry of clouds.yaml.
cloud() {
	cat <<-END
		  $1:
		    auth:
		      auth_url: $keystone
		      username: $2
		      password: $password
		      project_name: $3
		      user_domain_id: default
		      project_domain_id: default
		    region_name: RegionOne
		    interface: public
		    identity_api_version: 3
	END
}

clouds() {
	printf 'clouds:\n'
	if [ "$light" = no ]; then
		cloud lab-admin admin admin
		cloud lab-k8s fairlead k8s
		cloud lab-member member member
		return
	fi
	cat <<-END
		  lab-admin:
		    auth_type: none
		    region_name: RegionOne
		    network_endpoint_override: $neutron
		    network_api_version: "2"
		    load_balancer_endpoint_override: $octavia
	END
}

configure_mariadb
configure_neutron
[ "$light" = yes ] || configure_keystone
[ "$octavia_wanted" = no ] || configure_octavia
clouds >"$state/clouds.yaml"
