#!/usr/bin/env bash
# Fuzzes every decoder of the module for a moment each: hack/fuzz.sh [SECONDS].
# For longer, or for one: go test -fuzz '^FuzzName$' ./its/package
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:-5}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

packages=$(git ls-files -- '*_test.go' ':!test/kubelab' | xargs grep -l '^func Fuzz' | xargs -n 1 dirname | sort -u)
count=0
for package in $packages; do
	# Linked once for all the targets of a package.
	go test -c -fuzz=. -ldflags=-w -o "$work/fuzz" "./$package"
	path=$(go list "./$package")
	cache=$(go env GOCACHE)/fuzz/$path # where go test keeps it
	targets=$(cd "$package" && "$work/fuzz" -test.list '^Fuzz')
	for target in $targets; do
		printf '%s %s\n' "$package" "$target"
		# An input that makes it fail is left in testdata/fuzz of the package: keep it.
		# Making each input of interest smaller would take most of the time.
		if ! (cd "$package" && "$work/fuzz" -test.run '^$' -test.fuzz "^$target\$" -test.fuzztime "${seconds}s" -test.fuzzminimizetime 100x -test.fuzzcachedir "$cache") >"$work/output"; then
			# Up to Go 1.26 the end of the time itself can be reported as a failure,
			# which then has no input (golang/go#75804).
			if ! grep -q '^ *context deadline exceeded$' "$work/output" || grep -q 'Failing input' "$work/output"; then
				cat "$work/output"
				printf 'FAILED: %s in %s\n' "$target" "$package" >&2
				exit 1
			fi
			echo 'PASS, though Go reported the end of the time'
		fi
		grep -vE '^(fuzz: elapsed|--- FAIL|FAIL| *context deadline)' "$work/output" || true
		count=$((count + 1))
	done
done
((count > 0)) || { echo 'no fuzz target was found' >&2; exit 1; }
printf '%d targets, %ds each\n' "$count" "$seconds"
