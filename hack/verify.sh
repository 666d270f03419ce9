#!/usr/bin/env bash
# Checks a change before anything is run; `make verify`.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=hack/steps.sh
. hack/steps.sh

lint() { go tool -modfile=tools/go.mod golangci-lint "$@"; }

formatting() {
	lint fmt --diff || {
		printf 'To mend: go tool -modfile=tools/go.mod golangci-lint fmt\n' >&2
		return 1
	}
}

modules() {
	local dir
	for dir in . tools/packaging test/kubelab test/bench/reference test/e2e/containerd test/k8se2e test/k8se2e/coredns test/whereabouts test/policies/controller test/monitoring; do
		(cd "$dir" && go mod tidy -diff) || {
			printf 'To mend: cd %s && go mod tidy\n' "$dir" >&2
			return 1
		}
	done
}

# The linters that look at syntax alone; others would have to load all of Kubernetes, and Helm.
budgets() {
	(cd "$1" && go tool -modfile=../../tools/go.mod golangci-lint run --allow-parallel-runners --config ../../.golangci.yml \
		--enable-only=funlen,gocognit,gochecknoinits,godot,misspell)
}

# The summary shows whether anything was looked at.
vulnerabilities() {
	local out
	out=$(hack/vulns.sh) || {
		printf '%s\n' "$out"
		return 1
	}
	printf '%s\n' "$out"
	step_result=$(grep -o '^NOT CHECKED' <<<"$out") || step_result=
}

step "build the linter (minutes the first time)" lint version
step "generated files" hack/generate.sh --check
step "formatting" formatting
step "golangci-lint, go vet within" lint run --allow-parallel-runners
step "golangci-lint, budgets of kubelab" budgets test/kubelab
step "golangci-lint, budgets of packaging" budgets tools/packaging
step "arrows, words, and the lint rules themselves" go test -count=1 ./test/lint
step "the map of the folders in README.md" go test -count=1 -run '^TestMap$' ./docs
step "go.mod is tidy" modules
step "notices of what is linked in" hack/notices.sh --check
step "lines of success that the steps look for" hack/results.sh --test
step "known vulnerabilities" vulnerabilities
steps_summary verify
