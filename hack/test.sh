#!/usr/bin/env bash
# Everything CI runs; `make test`. TESTFLAGS is given to go test.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=hack/steps.sh
. hack/steps.sh

hack/preflight.sh test
read -r -a flags <<<"${TESTFLAGS:-}"

# Without the lint rules: verify has tested them, and with cgo they would build
# the linter a second time.
race() {
	local packages
	mapfile -t packages < <(go list ./... | grep -v '/test/lint$')
	CGO_ENABLED=1 go test -race -timeout 20m "${flags[@]}" "${packages[@]}"
}

# No race detector here: it would compile all of Kubernetes a second time.
kubelab() { (cd test/kubelab && go test -vet=off -timeout 10m "${flags[@]}" ./...); }

step "build the programs" make --no-print-directory build bin/podrunner bin/demo bin/bench
step "build Kubernetes (minutes the first time)" make --no-print-directory bin/kubelab
step "verify" hack/verify.sh
step "tests with the race detector" race
step "tests of kubelab" kubelab
step "fuzzing of every decoder" hack/fuzz.sh 5
step "simulation" make --no-print-directory sim
step "demo" make --no-print-directory demo
step "end to end, on real nodes" make --no-print-directory e2e
step "short bench" bin/bench --short --out bin/bench-short.json
steps_summary test
