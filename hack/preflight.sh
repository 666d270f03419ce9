#!/usr/bin/env bash
# Prints what this machine lacks for a task, and how to get it, before the task
# does anything. If packages of Debian bring all of it, they are installed, as
# root. Exits 1 when something is missing.
# usage: hack/preflight.sh build|verify|test|ci|demo|bench|e2e|k8s-e2e|threat|vm-test|openstack|openstack-lab|release
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
task=${1:?usage: hack/preflight.sh build|verify|test|ci|demo|bench|e2e|k8s-e2e|threat|vm-test|openstack|openstack-lab|release}
missing=()
# The missing commands that packages bring, why each is needed, and the packages.
commands=()
wanted=()
packages=()

lacks() { missing+=("$1"); }

# wants COMMAND PACKAGES WHY
wants() {
	command -v "$1" >/dev/null && return
	commands+=("$1")
	wanted+=("$1 ($3)")
	packages+=("$2")
}

# install prints the output of apt-get only when that failed.
install() {
	local log command rc=0
	printf 'make %s needs %s: installing %s\n' "$task" "$(printf '%s, ' "${wanted[@]}" | sed 's/, $//')" "${packages[*]}"
	log=$(apt-get update -q 2>&1 &&
		# shellcheck disable=SC2048,SC2086 # an entry may be several packages
		DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends ${packages[*]} 2>&1) || rc=$?
	((rc == 0)) || printf '%s\n' "$log" >&2
	hash -r
	for command in "${commands[@]}"; do
		command -v "$command" >/dev/null || rc=1
	done
	return "$rc"
}

check_go() {
	local want have
	want=$(awk '$1 == "go" { print $2; exit }' "$root/go.mod")
	if ! command -v go >/dev/null; then
		lacks "Go $want or newer: https://go.dev/dl/ (Debian's package is older)"
		return
	fi
	have=$(cd "$root" && go env GOVERSION) || have=unknown
	have=${have#go}
	if [ "$(printf '%s\n%s\n' "$want" "${have%%[- ]*}" | sort -V | head -n 1)" != "$want" ]; then
		lacks "Go $want or newer; this is $have: https://go.dev/dl/"
	fi
}

# The programs of a node that no Go module brings.
wants_ovs() { wants ovs-vswitchd openvswitch-switch "pods are plugged into it in tests"; }
wants_nft() { wants nft nftables "fairlead-node and kube-proxy write their rules with it"; }
wants_node() {
	wants runc runc "runs the containers of the end-to-end test"
	wants_nft
}

# The programs that the pages of the documentation run on nodes and in pods.
wants_pages() {
	local why="pages of the documentation run it in a cluster of the demo"
	wants ip iproute2 "$why"
	wants ping iputils-ping "$why"
	wants pkill procps "$why"
	wants curl curl "$why"
}

wants_suite() {
	local why="is in the images of Kubernetes' own tests"
	wants conntrack conntrack "$why"
	wants nc netcat-openbsd "$why"
	wants dig bind9-dnsutils "$why"
	wants busybox busybox-static "$why"
	wants iperf iperf "$why"
	wants wget wget "$why"
	wants curl curl "$why"
	wants dash dash "$why"
	wants ip iproute2 "$why"
	wants ss iproute2 "$why"
}

check_root() {
	if [ "$(id -u)" != 0 ]; then
		lacks "root, to make network namespaces and links: sudo -E make $task"
	elif command -v unshare >/dev/null && ! unshare --net true 2>/dev/null; then
		lacks "the right to make network namespaces (CAP_SYS_ADMIN): run outside the container, or with --privileged"
	fi
}

# The nodes of the attacks and of the end-to-end test have IPv6 at any rate.
check_ipv6() {
	[ -d /proc/sys/net/ipv6 ] || lacks "a kernel with IPv6: boot without ipv6.disable=1, or modprobe ipv6"
}

# The kernel is a package of Debian, which is unpacked and not installed.
check_vm() {
	local command
	[ "$(uname -sm)" = 'Linux x86_64' ] || lacks "Linux on amd64, for a VM; this is $(uname -sm)"
	[ ! -f "$root/bin/kernel/manifest" ] || return 0
	for command in apt-get apt-cache dpkg-deb; do
		command -v "$command" >/dev/null || lacks "$command, to get Debian's kernel: run on Debian, or copy bin/kernel from a checkout there"
	done
}

# check_debian WHAT: packages of Debian are unpacked and not installed.
check_debian() {
	local command
	for command in apt-get dpkg-deb; do
		command -v "$command" >/dev/null || lacks "$command, to get Debian's packages $1: run on Debian"
	done
}

# The services and Open vSwitch are packages of Debian.
wants_openstack() {
	check_debian "of OpenStack"
	[ -c /dev/net/tun ] || lacks "/dev/net/tun, for the bridges of Open vSwitch: modprobe tun, or a container with --device /dev/net/tun"
	wants python3 python3 "runs the services of OpenStack"
	wants curl curl "waits for them"
	wants ip iproute2 "makes network namespaces and links"
	wants ethtool ethtool "switches the checksums of links"
	wants nsenter util-linux "enters network namespaces"
	wants pgrep procps "finds the processes to end"
}

check_space() {
	local cache free
	cache=$(go env GOCACHE 2>/dev/null || printf '%s' "${GOCACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/go-build}")
	mkdir -p "$cache" 2>/dev/null || return 0
	free=$(df --output=avail -BG "$cache" | tail -n 1 | tr -dc 0-9)
	if [ ! -x "$root/bin/kubelab" ] && ((free < 6)); then
		lacks "6 GB of disk for building Kubernetes; $cache has $free GB: make room or set GOCACHE"
	fi
}

check_go
case $task in
build) ;;
verify)
	wants git git "compares generated files"
	;;
test | ci)
	check_root
	check_ipv6
	check_space
	wants git git "compares generated files"
	if [ "$task" = ci ] || [ "${RACE:-}" = 1 ]; then
		wants gcc "gcc libc6-dev" "the race detector links with a C compiler"
	fi
	[ "$task" != ci ] || wants chromium chromium "tests of the page of fairlead ui run in it"
	wants ethtool ethtool "tests read with it which checksums a link completes"
	wants_ovs
	wants_node
	wants_pages
	;;
e2e)
	check_root
	check_ipv6
	check_space
	wants_node
	;;
k8s-e2e)
	check_root
	check_ipv6
	check_space
	wants_node
	wants_suite
	;;
threat)
	check_root
	check_ipv6
	check_space
	wants_nft
	;;
vm-test)
	check_vm
	wants qemu-system-x86_64 qemu-system-x86 "runs a VM with Debian's kernel"
	wants xz xz-utils "unpacks the kernel"
	;;
openstack)
	check_root
	check_space
	wants_openstack
	wants_nft
	;;
openstack-lab)
	check_root
	check_space
	wants_openstack
	;;
bench)
	check_root
	check_ipv6
	check_space
	wants_node
	;;
release)
	check_debian "for the image"
	wants git git "reads the commit of the source"
	;;
demo)
	# With a cluster of one's own nothing of Kubernetes is built.
	check_root
	wants_nft
	wants_pages
	[ -n "${KUBECONFIG_DEMO:-}" ] || check_space
	;;
*)
	printf 'preflight: unknown task %q; one of build, verify, test, ci, demo, bench, e2e, k8s-e2e, threat, vm-test, openstack, openstack-lab, release\n' "$task" >&2
	exit 2
	;;
esac
if [ -n "${KUBECONFIG_DEMO:-}" ] && [ "$task" = demo ] && [ ! -r "$KUBECONFIG_DEMO" ]; then
	lacks "a readable kubeconfig at KUBECONFIG_DEMO=$KUBECONFIG_DEMO"
fi

# Nothing is installed for a task that cannot be done all the same.
if ((${#missing[@]} == 0)); then
	((${#packages[@]} > 0)) || exit 0
	if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && install; then exit 0; fi
fi
printf 'make %s needs what this machine lacks:\n' "$task" >&2
printf '  - %s\n' "${missing[@]}" "${wanted[@]}" >&2
if ((${#packages[@]} > 0)); then
	printf 'On Debian and Ubuntu: apt-get install -y --no-install-recommends %s\n' "${packages[*]}" >&2
fi
exit 1
