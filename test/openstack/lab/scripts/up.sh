#!/bin/bash
# Starts the control plane: OVN's databases and ovn-northd, MariaDB, Keystone, Neutron and,
# if asked for, Octavia. A chassis is the work of chassis.sh.
# usage: up.sh STATE
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "$0")/common.sh"
# shellcheck disable=SC2154 # from settings
{
	keystone=http://127.0.0.1:$keystone_port/v3
	neutron=http://127.0.0.1:$neutron_port
	octavia=http://127.0.0.1:$octavia_port
	password=secret
}

mkdir -p "$run" "$log" "$etc"/{neutron,keystone,octavia} "$state"/{db,home,lock,bin}
# shellcheck source=prepare.sh
. "$scripts/prepare.sh"
# shellcheck source=configure.sh
. "$scripts/configure.sh"
# shellcheck source=database.sh
. "$scripts/database.sh"

# answers NAME URL waits until a service answers without an error of its own.
answers() {
	local end=$((SECONDS + 180)) code
	until code=$(curl --silent --output /dev/null --max-time 20 --write-out '%{http_code}' "$2") && ((code < 500)); do
		alive "$1" || tail_die "$log/$1.log" "$1 has ended"
		((SECONDS < end)) || die "$1 does not answer at $2; its log is $log/$1.log"
		sleep 0.2
	done
}

ovn() {
	local name
	for name in nb sb; do
		[ -e "$state/db/$name.db" ] || release ovsdb-tool create "$state/db/$name.db" "$share/ovn/ovn-$name.ovsschema"
		daemon "$name" "$run" ovsdb-server "$state/db/$name.db" --remote="punix:$run/$name.sock" --unixctl="$run/$name.ctl"
	done
	daemon northd "$run" ovn-northd --ovnnb-db="unix:$run/nb.sock" --ovnsb-db="unix:$run/sb.sock" --unixctl="$run/northd.ctl"
}

# The tunnels of all chassis meet in one bridge, in a network namespace of its own.
underlay() {
	# shellcheck disable=SC2154 # from settings
	[ ! -e "/run/netns/$netns" ] || return 0
	printf '%s\n' "$netns" >>"$run/namespaces"
	ip netns add "$netns"
	ip -n "$netns" link set lo up
	ip -n "$netns" link add underlay type bridge
	ip -n "$netns" link set underlay up
}

start_keystone() {
	alive keystone && return
	if [ ! -e "$state/bootstrapped" ]; then
		release python3 "$scripts/launch.py" script keystone.cmd.manage:main --config-file "$etc/keystone/keystone.conf" bootstrap \
			--bootstrap-password "$password" --bootstrap-region-id RegionOne --bootstrap-admin-url "$keystone" \
			--bootstrap-public-url "$keystone" --bootstrap-internal-url "$keystone" >"$log/keystone-bootstrap.log" 2>&1 ||
			tail_die "$log/keystone-bootstrap.log" "keystone-manage bootstrap fails"
		touch "$state/bootstrapped"
	fi
	background keystone python3 "$scripts/launch.py" wsgi 127.0.0.1 "$keystone_port" keystone.server.wsgi:initialize_public_application
}

start_octavia() {
	alive octavia-agent || background octavia-agent python3 "$scripts/launch.py" script octavia.cmd.driver_agent:main --config-file "$etc/octavia/octavia.conf"
	alive octavia || background octavia env LAB_NOAUTH="$([ "$light" = no ] || printf yes)" \
		python3 "$scripts/launch.py" wsgi 127.0.0.1 "$octavia_port" octavia.api.app:setup_app --config-file "$etc/octavia/octavia.conf"
}

ovn
underlay
alive neutron || background neutron python3 "$scripts/launch.py" script neutron.cmd.eventlet.server:main --config-file "$etc/neutron/neutron.conf"
# shellcheck disable=SC2154 # from settings
if [ "$light" = no ]; then
	start_keystone
	answers keystone "$keystone"
	release python3 "$scripts/kssetup.py" "$keystone" "$password" RegionOne "$neutron" "$([ "$octavia_wanted" = yes ] && printf %s "$octavia" || printf -- -)"
	step "Keystone answers at $keystone"
fi
[ "$octavia_wanted" = no ] || start_octavia
answers neutron "$neutron/"
# The first request to its API waits for the connections to OVN.
answers neutron "$neutron/v2.0/"
step "Neutron answers at $neutron"
if [ "$octavia_wanted" = yes ]; then
	answers octavia "$octavia/"
	step "Octavia answers at $octavia"
fi
