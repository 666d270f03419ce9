#!/bin/bash
# Ends a laboratory: its programs by process ID, if the start time is still that of the
# program, then its network namespaces, then its directory.
# usage: down.sh STATE, or down.sh STATE CHASSIS to end one chassis only
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "$0")/common.sh"

same() { [ -n "$2" ] && [ "$(started "$1")" = "$2" ]; }

# family PID prints a process and its descendants, with start times.
family() {
	local child
	printf '%s %s\n' "$1" "$(started "$1")"
	for child in $(pgrep -P "$1"); do family "$child"; done
}

# ask NAME PID asks a program to end. ovs-vswitchd removes its persistent taps, and
# ovn-controller its chassis, only when they are asked by their sockets.
ask() {
	local chassis=${1%-*}
	case $1 in
	*-vswitchd) release timeout 10 ovs-appctl -t "$run/$chassis/vswitchd.ctl" exit --cleanup ;;
	*-controller) release timeout 10 ovs-appctl -t "$run/$chassis/ovn-controller.$2.ctl" exit ;;
	*) false ;;
	esac >/dev/null 2>&1 || kill "$2" 2>/dev/null || true
}

# stop NAME SECONDS
stop() {
	local pid start all child child_start left end
	read -r pid start 2>/dev/null <"$run/$1.id" || return 0
	if same "$pid" "$start"; then
		all=$(family "$pid")
		ask "$1" "$pid"
		end=$((SECONDS + $2))
		while :; do
			left=()
			while read -r child child_start; do ! same "$child" "$child_start" || left+=("$child"); done <<<"$all"
			((${#left[@]} > 0)) || break
			if ((SECONDS >= end)); then kill -9 "${left[@]}" 2>/dev/null || true; fi
			sleep 0.05
		done
	fi
	rm -f "$run/$1.id"
}

# end_chassis NAME
end_chassis() {
	stop "$1-controller" 10
	stop "$1-vswitchd" 10
	stop "$1-ovsdb" 5
	# shellcheck disable=SC2154 # from settings
	ip netns del "$netns-$1" 2>/dev/null || true
	rm -rf "${run:?}/$1"
}

if [ $# = 2 ]; then
	end_chassis "$2"
	sed -i "/^$netns-$2\$/d" "$run/namespaces"
	exit 0
fi
for id in "$run"/*-ovsdb.id; do
	[ -e "$id" ] || continue
	id=${id##*/}
	end_chassis "${id%-ovsdb.id}"
done
for service in octavia octavia-agent neutron keystone; do stop "$service" 10 & done
wait
for service in northd sb nb database holder; do stop "$service" 10; done
# A script whose process was killed may run on and start services. All processes of the
# laboratory have a mark in their environment.
while marked=$(grep -lzxF "FAIRLEAD_OPENSTACK_PART=$state" /proc/[0-9]*/environ 2>/dev/null); [ -n "$marked" ]; do
	for process in $marked; do
		process=${process#/proc/}
		kill -9 "${process%/environ}" 2>/dev/null || true
	done
	sleep 0.02
done
if [ -s "$run/namespaces" ]; then
	while read -r name; do ip netns del "$name" 2>/dev/null || true; done <"$run/namespaces"
fi
# Tests mount network namespaces of pods in the directory.
while read -r mount; do umount -l "$mount"; done < <(awk -v "begin=$state/" 'index($5, begin) == 1 { print $5 }' /proc/self/mountinfo | tac)
cd /
rm -rf "$state"
