#!/usr/bin/env bash
# The lines by which the programs of test/ report a success. A number that counts work is not 0:
# a run that did nothing is no success.
# usage: hack/results.sh NAME FILE   prints the line NAME of the output in FILE; exits 1 if there is none
#        hack/results.sh --test      tests the patterns
set -euo pipefail

n='[1-9][0-9]*'
declare -A lines=(
	[demo]='demo: OK nodes=2 pods=20 pings=400/400 leaked=0'
	[tour]="demo: OK commands=$n leaked=0"
	[threat]="threat: OK attacks=$n succeeded=0"
	[e2e]="e2e: OK families=(dual|ipv6) scenarios=$n seed=$n, nothing is left, $n s"
	[networks]="networks: OK kinds=$n pods=$n interfaces=$n leaked=0"
	[upgrade]="upgrade: OK pods=$n without-daemon=$n slowest=[0-9]+\.[0-9]s packets=$n lost=[0-9]+"
	[soak]="soak: OK seconds=$n phases=$n faults=$n pods=$n leaked=0"
	[openstack]="openstack: OK release=(bookworm|trixie) pods=$n leaked=0"
	[vm]="vm: OK packages=$n passed=$n skipped=0"
	[kubernetes]="kubernetes: OK passed=$n failed=0"
	[scale]="scale: OK nodes=$n pods=$n, nothing is left, $n s"
	[release-check]="release-check: OK version=v[0-9].* files=$n"
)

# line NAME prints the lines of the input that are a success of NAME.
line() { grep -xE -- "${lines[$1]}"; }

# A success of each name. The test makes each of its numbers wrong in turn.
declare -A successes=(
	[demo]='demo: OK nodes=2 pods=20 pings=400/400 leaked=0'
	[tour]='demo: OK commands=31 leaked=0'
	[threat]='threat: OK attacks=158 succeeded=0'
	[e2e]='e2e: OK families=ipv6 scenarios=13 seed=17, nothing is left, 120 s'
	[networks]='networks: OK kinds=5 pods=30 interfaces=120 leaked=0'
	[upgrade]='upgrade: OK pods=80 without-daemon=4 slowest=20.1s packets=40000 lost=3'
	[soak]='soak: OK seconds=90 phases=3 faults=12 pods=100 leaked=0'
	[openstack]='openstack: OK release=bookworm pods=60 leaked=0'
	[vm]='vm: OK packages=6 passed=120 skipped=0'
	[kubernetes]='kubernetes: OK passed=47 failed=0'
	[scale]='scale: OK nodes=100 pods=3000, nothing is left, 180 s'
	[release-check]='release-check: OK version=v0.1.0 files=12'
)

refused() {
	if line "$1" <<<"$2" >/dev/null; then
		printf 'hack/results.sh accepts as a success of %s: %s\n' "$1" "$2" >&2
		exit 1
	fi
}

test_patterns() {
	local name text
	for name in "${!lines[@]}"; do
		text=${successes[$name]}
		line "$name" <<<"$text" >/dev/null || {
			printf 'hack/results.sh refuses as a success of %s: %s\n' "$name" "$text" >&2
			exit 1
		}
		refused "$name" ''
		refused "$name" "$text, almost"
		refused "$name" "${text/OK/FAILED}"
		refuse_numbers "$name" "$text"
	done
	printf 'results: OK patterns=%d\n' "${#lines[@]}"
}

# refuse_numbers NAME TEXT makes each count of work 0, and each count of faults 1.
refuse_numbers() {
	local name=$1 text=$2 field key value
	for field in $text; do
		field=${field%,}
		key=${field%%=*} value=${field#*=}
		case $key in
		leaked | succeeded | skipped | failed) refused "$name" "${text/$field/$key=1}" ;;
		# A version and words are no counts; the e2e test itself bounds its times and the lost packets.
		"$field" | families | release | version | slowest | lost) ;;
		*) refused "$name" "${text/$field/$key=${value//[0-9]/0}}" ;;
		esac
	done
}

if [ "${1:-}" = --test ]; then
	test_patterns
	exit
fi
name=${1:?usage: hack/results.sh NAME FILE} file=${2:?usage: hack/results.sh NAME FILE}
if [ -z "${lines[$name]:-}" ]; then
	printf 'hack/results.sh knows no success of %s\n' "$name" >&2
	exit 2
fi
if ! line "$name" <"$file"; then
	printf 'the output must have the line: %s\n' "${lines[$name]}" >&2
	exit 1
fi
