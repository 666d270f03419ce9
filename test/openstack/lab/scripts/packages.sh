#!/bin/bash
# Downloads the packages of OpenStack, OVN and MariaDB, and unpacks them into the cache.
# Nothing is installed: no script of a package runs, and no service starts.
# usage: packages.sh CACHE; inside of the release's Debian
set -euo pipefail
cache=$1
tree=$cache/packages
apt=(apt-get -o DPkg::Lock::Timeout=600 -o APT::Install-Recommends=false -o APT::Install-Suggests=false -o APT::Sandbox::User=root)
wanted=(python3-neutron neutron-common python3-keystone python3-octavia python3-ovn-octavia-provider
	python3-openstackclient python3-octaviaclient python3-gunicorn python3-pymysql mariadb-server-core
	ovn-common ovn-central ovn-host openvswitch-common openvswitch-switch)
# shellcheck source=/dev/null
[ "$(. /etc/os-release && printf %s "$VERSION_ID")" != 12 ] || wanted+=(python3-distutils)

die() {
	printf 'packages.sh: %s\n' "$*" >&2
	exit 1
}

# The cache completes the packages that were installed when it was made, so it fits as long
# as they are installed. Further ones do no harm.
installed() { dpkg-query -W -f '${db:Status-Abbrev}${Package}\n' | awk '/^ii/ { print $2 }' | sort -u; }
if [ -e "$cache/complete" ]; then
	[ -n "$(installed | comm -13 - "$cache/complete")" ] || exit 0
	printf 'packages of this machine are gone that the cache relies on: making it again\n'
fi
rm -rf "$cache/complete" "$tree" "$cache/debs" "$cache/database"
mkdir -p "$cache/debs" "$tree"

# Lists younger than a day are good enough.
if [ -z "$(find /var/lib/apt/lists -maxdepth 1 -name '*_Packages*' -mmin -1440 2>/dev/null | head -n 1)" ]; then
	"${apt[@]}" -q update >"$cache/apt-update.log" 2>&1 || {
		tail -n 5 "$cache/apt-update.log" >&2
		die "apt-get update fails"
	}
fi
# The packages that an installation would add, and the wanted ones in any case, because
# their files are looked for in the cache. The C library and Perl are those of the machine.
{ printf '%s\n' "${wanted[@]}" && "${apt[@]}" -s install "${wanted[@]}" 2>"$cache/apt-simulation.log" | awk '/^Inst/ { print $2 }'; } |
	grep -vxE 'libc6|libc-bin|libstdc\+\+6|libgcc-s1|perl.*|libperl.*' | sort -u >"$cache/names" || {
	tail -n 5 "$cache/apt-simulation.log" >&2
	die "apt-get knows no way to install ${wanted[*]}"
}
(cd "$cache/debs" && xargs "${apt[@]}" -q download <"$cache/names") >"$cache/apt-download.log" 2>&1 || {
	tail -n 5 "$cache/apt-download.log" >&2
	die "apt-get download fails"
}
printf 'downloaded %d packages, %d MB\n' "$(wc -l <"$cache/names")" "$(du -sm "$cache/debs" | cut -f1)"
# shellcheck disable=SC2016 # for the inner shell
printf '%s\0' "$cache"/debs/*.deb | xargs -0 -n 8 -P 2 sh -c 'for f; do dpkg-deb -x "$f" "$0" || exit 255; done' "$tree"
# mariadb-install-db calls this program of the package mariadb-client.
[ -e "$tree/usr/bin/my_print_defaults" ] || {
	printf '#!/bin/sh\nexit 0\n' >"$tree/usr/bin/my_print_defaults"
	chmod 755 "$tree/usr/bin/my_print_defaults"
}
rm -rf "$cache/debs"
installed >"$cache/complete.new"
mv "$cache/complete.new" "$cache/complete"
printf 'unpacked them, %d MB\n' "$(du -sm "$tree" | cut -f1)"
