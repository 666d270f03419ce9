#!/usr/bin/env bash
# Everything CI runs; `make test`. TESTFLAGS is given to go test.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
# shellcheck source=hack/steps.sh
. hack/steps.sh

hack/preflight.sh test
read -r -a flags <<<"${TESTFLAGS:-}"

# gotest runs go test and says at the end of its output what failed in it.
gotest() {
	local out rc=0
	out=$(mktemp)
	go test -vet=off "${flags[@]}" "$@" 2>&1 | tee "$out" || rc=$?
	if ((rc != 0)); then
		printf '\nWhat failed:\n'
		awk -f "$root/hack/failed.awk" "$out"
	fi
	rm "$out"
	return "$rc"
}

# Without the lint rules, and without vet: verify has seen to both, and with cgo
# the linter would be built, and all that is imported be vetted, a second time.
# The longest packages are first, so that no processor waits for them at the end.
race() {
	local packages
	mapfile -t packages < <(
		go list ./test/integration/... ./internal/node ./internal/controller ./internal/cli
		go list ./... | grep -vE '/test/(lint|integration/.*)$|/internal/(node|controller|cli)$'
	)
	# Three packages at a time on two processors: much of their time they wait, for leases and for what must not happen.
	# Each process that ends waits so long for races to be noticed: by default a second.
	CGO_ENABLED=1 GORACE=atexit_sleep_ms=100 gotest -race -p 3 -timeout 30m "${packages[@]}"
}

# No race detector here: it would compile all of Kubernetes a second time.
kubelab() { (cd test/kubelab && gotest -timeout 10m ./...); }

# The chart's values and the image.
packaging() { (cd tools/packaging && gotest -timeout 10m ./...); }

# README: with everything built, within a minute.
demo() {
	local started=$SECONDS want='demo: OK nodes=2 pods=20 pings=400/400 leaked=0' out last
	out=$(mktemp)
	make --no-print-directory demo NODES=2 PODS=20 2>&1 | tee "$out"
	last=$(tail -n 1 "$out")
	rm "$out"
	if [ "$last" != "$want" ]; then
		printf 'its last line must be: %s\n' "$want" >&2
		return 1
	fi
	if ((SECONDS - started > 60)); then
		printf 'it took %ds; it must take a minute at most\n' $((SECONDS - started)) >&2
		return 1
	fi
}

# The scenario of several networks, the upgrade with Helm and the soak must have run: the
# result of each is a line of its own. The soak is the last scenario, on the cluster that runs already.
e2e() {
	local out rc=0
	out=$(mktemp)
	make --no-print-directory e2e E2E_SOAK=90s 2>&1 | tee "$out" || rc=$?
	if ((rc == 0)) && ! step_result=$(grep -xE 'networks: OK kinds=[0-9]+ pods=[0-9]+ interfaces=[0-9]+ leaked=0' "$out"); then
		printf 'it must print the line: networks: OK kinds=N pods=N interfaces=N leaked=0\n' >&2
		rc=1
	fi
	if ((rc == 0)) && ! grep -qxE 'upgrade: OK pods=[0-9]+ without-daemon=[0-9]+ slowest=[0-9.]+s packets=[0-9]+ lost=[0-9]+' "$out"; then
		printf 'it must print the line: upgrade: OK pods=N without-daemon=N slowest=Ns packets=N lost=N\n' >&2
		rc=1
	fi
	if ((rc == 0)) && ! grep -qxE 'soak: OK seconds=[0-9]+ phases=[0-9]+ faults=[0-9]+ pods=[0-9]+ leaked=0' "$out"; then
		printf 'it must print the line: soak: OK seconds=N phases=N faults=N pods=N leaked=0\n' >&2
		rc=1
	fi
	rm "$out"
	return "$rc"
}

# openstack_passed FILE: pods on ports of a real Neutron must have run; their number is in the last line.
openstack_passed() {
	if ! step_result=$(tail -n 1 "$1" | grep -xE 'openstack: OK release=bookworm pods=[0-9]+ leaked=0'); then
		printf 'its last line must be: openstack: OK release=bookworm pods=N leaked=0\n' >&2
		return 1
	fi
}

step "build the programs" make --no-print-directory build bin/podrunner bin/demo bin/bench bin/threat
step "what the demo needs" bin/demo --check
step "build Kubernetes (minutes the first time)" make --no-print-directory bin/kubelab
step "verify" hack/verify.sh
# Before the tests of the VM, because it installs QEMU.
optional "tests on Debian's kernel, in a VM" hack/vm-test.sh
step "what OpenStack needs" make --no-print-directory preflight-openstack bin/openstack-lab bin/vlanshim
# It waits for its services much of the time.
beside "OpenStack, end to end" make --no-print-directory openstack
step "tests with the race detector" race
step "tests of kubelab" kubelab
step "tests of packaging" packaging
step "alerts and dashboard" make --no-print-directory alerts
step "fuzzing of every decoder" hack/fuzz.sh 3
step "simulation" make --no-print-directory sim
joined openstack_passed
# The demo, and all after it, have limits of time.
step "demo" demo
step "attacks" make --no-print-directory threat
step "end to end, on real nodes" e2e
step "end to end, on nodes without IPv4" make --no-print-directory e2e E2E_FAMILIES=ipv6 E2E_LIVES=30
step "short bench" bin/bench --short --out bin/bench-short.json
steps_summary test
