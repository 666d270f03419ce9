#!/bin/bash
# Makes a chassis: a network namespace with an Open vSwitch and an ovn-controller of its
# own. Open vSwitch forwards packets in its own process, because the kernel may lack the
# module; so it sends tunnelled packets only from an address on one of its bridges, br-phys.
# usage: chassis.sh STATE NAME NUMBER
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "$0")/common.sh"
name=$2 number=$3
# shellcheck disable=SC2154 # from settings
space=$netns-$name dir=$run/$name address=172.31.255.$number
mkdir -p "$dir"
if [ ! -e "/run/netns/$space" ]; then
	printf '%s\n' "$space" >>"$run/namespaces"
	ip netns add "$space"
	ip -n "$space" link set lo up
	ip -n "$netns" link add "chassis-$number" type veth peer name phys0 netns "$space"
	ip -n "$netns" link set "chassis-$number" master underlay up
	ip -n "$space" link set phys0 up
	# The packets of the tunnel come from Open vSwitch, those of ARP from the kernel, whose
	# checksums are incomplete while the link could complete them.
	nsenter "--net=/run/netns/$space" ethtool -K phys0 tx off >/dev/null
fi
inside=(nsenter "--net=/run/netns/$space")
vsctl() { release ovs-vsctl --timeout=30 --db="unix:$dir/db.sock" "$@"; }

[ -e "$dir/conf.db" ] || release ovsdb-tool create "$dir/conf.db" "$share/openvswitch/vswitch.ovsschema"
daemon "$name-ovsdb" "$dir" ovsdb-server "$dir/conf.db" --remote="punix:$dir/db.sock" --unixctl="$dir/ovsdb.ctl"
vsctl --no-wait -- init -- set Open_vSwitch . external_ids:system-id="$name" external_ids:hostname="$name" \
	external_ids:ovn-remote="unix:$run/sb.sock" external_ids:ovn-encap-type=geneve \
	external_ids:ovn-encap-ip="$address" external_ids:ovn-bridge-datapath-type=netdev
daemon "$name-vswitchd" "$dir" ovs-vswitchd "unix:$dir/db.sock" --unixctl="$dir/vswitchd.ctl"
vsctl --may-exist add-br br-phys -- set Bridge br-phys datapath_type=netdev -- --may-exist add-port br-phys phys0
ip -n "$space" addr replace "$address/24" dev br-phys
ip -n "$space" link set br-phys up
daemon "$name-controller" "$dir" ovn-controller "unix:$dir/db.sock"
vsctl wait-until bridge br-int
release ovn-sbctl --timeout=30 wait-until Chassis "$name"
printf '#!/bin/bash\nexec %q %q ovs-vsctl --db=%q "$@"\n' "$scripts/exec.sh" "$state" "unix:$dir/db.sock" >"$state/bin/$name-ovs-vsctl"
chmod 755 "$state/bin/$name-ovs-vsctl"
