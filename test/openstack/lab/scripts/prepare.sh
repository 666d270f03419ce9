# Sourced by up.sh: gets the programs of the release into the cache, once for all
# laboratories.
# shellcheck shell=bash disable=SC2154 # from common.sh
prepare() {
	mkdir -p "$cache"
	exec 9>"$cache/lock"
	flock 9
	if [ -n "$root" ] && [ ! -e "$root/complete" ]; then
		step "making a Debian $codename in the cache, which takes a minute"
		"$scripts/root.sh" "$codename" "$root"
	fi
	if [ ! -e "$cache/complete" ]; then step "getting the packages of OpenStack for Debian $codename"; fi
	if [ -n "$root" ]; then
		# apt of the release runs in its own Debian.
		release "$scripts/packages.sh" "$cache"
	else
		"$scripts/packages.sh" "$cache"
	fi
	flock -u 9
	exec 9>&-
}
prepare

# Wrappers of programs that people use to look around.
for program in ovs-vsctl ovs-ofctl ovs-appctl ovsdb-client ovn-nbctl ovn-sbctl ovn-trace ovn-appctl openstack; do
	printf '#!/bin/bash\nexec %q %q %s "$@"\n' "$scripts/exec.sh" "$state" "$program" >"$state/bin/$program"
	chmod 755 "$state/bin/$program"
done
