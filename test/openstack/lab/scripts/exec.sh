#!/bin/bash
# Runs a program of the laboratory's release with the environment that it needs.
# usage: exec.sh STATE COMMAND...
#
# The release of this machine needs only the paths of the unpacked packages. Another
# release has a Debian of its own, in the directory $root, which the program enters by a
# mount namespace: one process keeps the namespace, with the state and the cache at the
# paths that they have outside. The mounts are not visible outside, and end with the last
# process in the namespace.
set -euo pipefail
state=$1
# shellcheck source=/dev/null
. "$state/settings"
shift
# shellcheck disable=SC2154 # from settings
tree=$cache/packages
lib=$(uname -m)-linux-gnu
mariadb=$tree/usr/share/mysql
environment=(
	"FAIRLEAD_OPENSTACK_PART=$state" # the mark of all processes of the laboratory; see down.sh
	"PATH=$tree/usr/bin:$tree/usr/sbin:$tree/usr/lib/openvswitch-switch:/usr/sbin:/usr/bin:/sbin:/bin"
	# python3-distutils of Debian 12 is beside dist-packages
	"PYTHONPATH=$state/scripts:$tree/usr/lib/python3/dist-packages:$tree/usr/lib/python3.11"
	"LD_LIBRARY_PATH=$tree/usr/lib/$lib:$tree/lib/$lib"
	"MARIADB_SHARE=$mariadb" "HOME=$state/home" "LC_ALL=C.UTF-8" PYTHONWARNINGS=ignore
	"OVS_RUNDIR=${OVS_RUNDIR:-$state/run}" "OVN_RUNDIR=${OVN_RUNDIR:-$state/run}"
	"OVS_LOGDIR=$state/log" "OVN_LOGDIR=$state/log" "OVS_DBDIR=$state/db" "OVN_DBDIR=$state/db"
	"OVS_SYSCONFDIR=$state/etc" "OVS_PKGDATADIR=$tree/usr/share/openvswitch" "OVN_PKGDATADIR=$tree/usr/share/ovn"
	"OVN_NB_DB=unix:$state/run/nb.sock" "OVN_SB_DB=unix:$state/run/sb.sock"
	"OS_CLIENT_CONFIG_FILE=$state/clouds.yaml" "OCTAVIA_SOCKETS=$state/run"
	"OS_KEYSTONE_CONFIG_DIR=$state/etc/keystone" OS_KEYSTONE_CONFIG_FILES=keystone.conf
)
# shellcheck disable=SC2154 # from settings
[ -n "$root" ] || exec env -i "${environment[@]}" "$@"

started() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | awk '$1 != "Z" { print $20 }'; }
holder=$state/run/holder.id
mkdir -p "$state/lock"
exec 8>"$state/lock/holder"
flock 8
pid='' start=''
read -r pid start 2>/dev/null <"$holder" || true
if [ -z "$start" ] || [ "$(started "$pid")" != "$start" ]; then
	mkdir -p "$root$state" "$root$cache"
	rm -f "$state/run/holder.ready"
	# The root is mounted on itself, because iproute2 makes / a slave.
	# shellcheck disable=SC2016 # for the inner shell
	FAIRLEAD_OPENSTACK_PART=$state setsid unshare --mount --propagation slave bash -euc '
		mount --bind "$1" "$1"
		mount -t proc proc "$1/proc"
		mount -t sysfs sysfs "$1/sys"
		mount --rbind /dev "$1/dev"
		mount --bind "$2" "$1$2"
		mount --bind "$3" "$1$3"
		touch "$2/run/holder.ready"
		exec sleep infinity' holder "$root" "$state" "$cache" </dev/null >"$state/log/holder.log" 2>&1 8>&- &
	pid=$!
	for _ in $(seq 200); do
		[ ! -e "$state/run/holder.ready" ] || break
		sleep 0.05
	done
	if [ ! -e "$state/run/holder.ready" ]; then
		cat "$state/log/holder.log" >&2
		printf 'exec.sh: cannot mount the root of the release %s\n' "$root" >&2
		exit 1
	fi
	printf '%s %s\n' "$pid" "$(started "$pid")" >"$holder"
fi
exec 8>&-
exec nsenter --mount="/proc/$pid/ns/mnt" chroot "$root" /usr/bin/env -i "${environment[@]}" "$@"
