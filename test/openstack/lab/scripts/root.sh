#!/bin/bash
# Makes a minimal Debian of another release; once, in about a minute. debootstrap is
# unpacked beside it and not installed.
# usage: root.sh CODENAME DIR
set -euo pipefail
codename=$1 dir=$2
[ ! -e "$dir/complete" ] || exit 0
tools=$dir.tools
rm -rf "$dir" "$tools"
mkdir -p "$tools"
(cd "$tools" && apt-get -q -o APT::Sandbox::User=root download debootstrap && dpkg-deb -x debootstrap_*.deb .) >"$tools/apt.log" 2>&1 || {
	tail -n 3 "$tools/apt.log" >&2
	printf 'root.sh: cannot get the package debootstrap: as root, apt-get update\n' >&2
	exit 1
}
# The mirror is that of this machine.
mirror=$(cat /etc/apt/sources.list.d/*.sources 2>/dev/null | awk '/^URIs:/ && $2 ~ /debian\/?$/ { print $2; exit }')
[ -n "$mirror" ] || mirror=$(awk '$1 == "deb" && $2 ~ /debian\/?$/ { print $2; exit }' /etc/apt/sources.list 2>/dev/null || true)
if [ -z "$mirror" ]; then
	printf 'root.sh: the sources of apt name no mirror of Debian; add one to /etc/apt/sources.list\n' >&2
	exit 1
fi
# In a mount namespace of its own the mounts of debootstrap end with it.
DEBOOTSTRAP_DIR=$tools/usr/share/debootstrap unshare --mount --propagation private \
	bash "$tools/usr/sbin/debootstrap" --variant=minbase --keyring=/usr/share/keyrings/debian-archive-keyring.gpg \
	--include=python3,ca-certificates,procps "$codename" "$dir" "$mirror" >"$tools/debootstrap.log" 2>&1 || {
	tail -n 5 "$tools/debootstrap.log" >&2
	printf 'root.sh: debootstrap %s fails; its log is %s\n' "$codename" "$tools/debootstrap.log" >&2
	exit 1
}
cp /etc/resolv.conf "$dir/etc/resolv.conf"
cp /etc/apt/apt.conf.d/* "$dir/etc/apt/apt.conf.d/" 2>/dev/null || true
touch "$dir/complete"
