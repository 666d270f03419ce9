# Sourced by test.sh, ci.sh and nightly.sh: the steps that they share. TESTFLAGS is given to go
# test; with RACE=1 tests have the race detector.
# shellcheck shell=bash

cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
# shellcheck source=hack/steps.sh
. hack/steps.sh

read -r -a flags <<<"${TESTFLAGS:-}"

# Packages whose tests build or run programs that Go's cache of verdicts does not see: their
# tests run each time. A test of test/lint finds a package that is missing here.
uncached=(
	./cmd/fairlead-cni
	./cmd/fairlead-node
	./test/cniconform
	./test/demo
	./test/deploy
	./test/openstack
	./test/podrunner
	./test/vm
)

# gotest runs go test and prints at the end of its output what failed in it.
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

# tests runs all tests of the module. Vet and the rules of lint are not in it: verify has seen to
# both, and with cgo the linter would be built, and all that is imported be vetted, a second time.
tests() {
	local race=() first fresh all
	if [ "${RACE:-}" = 1 ]; then
		# Each process that ends waits so long for races to be noticed: by default a second.
		local -x CGO_ENABLED=1 GORACE=atexit_sleep_ms=100
		race=(-race)
	fi
	# The longest packages are first, so that no processor waits for them at the end.
	first=$(go list ./test/integration/... ./internal/node ./internal/controller ./internal/cli) || return
	fresh=$(go list "${uncached[@]}") || return
	all=$(go list ./...) || return
	all=$(grep -vxFf <(printf '%s\n' "$first" "$fresh" fairlead.dev/fairlead/test/lint) <<<"$all") || return
	# Three packages at a time on two processors: much of their time they wait, for leases, or to see that nothing happens.
	# shellcheck disable=SC2086 # a list of packages
	gotest "${race[@]}" -p 3 -timeout 30m $first $all || return
	# shellcheck disable=SC2086
	gotest "${race[@]}" -p 3 -timeout 30m -count=1 $fresh
}

# checked NAMES COMMAND... runs COMMAND, whose output must have the success of each of NAMES: see
# hack/results.sh. The summary shows the first.
checked() {
	local names=$1 out rc=0
	shift
	out=$(mktemp)
	"$@" 2>&1 | tee "$out" || rc=$?
	((rc != 0)) || succeeded "$names" "$out" || rc=$?
	rm "$out"
	return "$rc"
}

# succeeded NAMES FILE
succeeded() {
	local name line
	for name in $1; do
		line=$(hack/results.sh "$name" "$2") || return
		step_result=${step_result:-$line}
	done
}

# demo: with everything built, it takes a minute at most, as README has it.
demo() {
	local started=$SECONDS
	checked demo make --no-print-directory demo NODES=2 PODS=20 || return
	if ((SECONDS - started > 60)); then
		printf 'it took %ds; it must take a minute at most\n' $((SECONDS - started)) >&2
		return 1
	fi
}

threat() { checked threat make --no-print-directory threat; }

# The programs are built before the steps that have limits of time.
programs() {
	step "build the programs" make --no-print-directory build bin/podrunner bin/demo bin/bench bin/threat
	step "what the demo needs" bin/demo --check
	step "build Kubernetes (minutes the first time)" make --no-print-directory bin/kubelab
}
