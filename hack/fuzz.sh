#!/usr/bin/env bash
# Fuzzes every decoder of the module for a moment each: hack/fuzz.sh [SECONDS].
# For longer, or for one: go test -fuzz '^FuzzName$' ./its/package
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:-5}

mapfile -t files < <(git ls-files -- '*_test.go' ':!test/kubelab' | xargs grep -l '^func Fuzz' | sort)
declare -A packages=()
for file in "${files[@]}"; do
	packages["./$(dirname "$file")"]=1
done
count=0
for package in $(printf '%s\n' "${!packages[@]}" | sort); do
	list=$(go test -list '^Fuzz' "$package")
	for target in $(grep '^Fuzz' <<<"$list"); do
		printf '%s %s\n' "$package" "$target"
		# What it does not find again is in testdata/fuzz of the package: keep it.
		go test -run '^$' -fuzz "^$target\$" -fuzztime "${seconds}s" "$package" | grep -v '^fuzz: elapsed' ||
			{ printf 'FAILED: %s in %s\n' "$target" "$package" >&2; exit 1; }
		count=$((count + 1))
	done
done
((count > 0)) || { echo 'no fuzz target was found' >&2; exit 1; }
printf '%d targets, %ds each\n' "$count" "$seconds"
