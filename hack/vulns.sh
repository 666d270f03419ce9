#!/usr/bin/env bash
# Looks for known vulnerabilities in the code that the programs call, with
# govulncheck. It fails on one. Where the database cannot be reached it prints NOT CHECKED
# and succeeds; with --required it fails. GOVULNDB names another database.
# usage: hack/vulns.sh [--required]
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=$(mktemp)
trap 'rm -f "$out"' EXIT

rc=0
go tool -modfile=tools/go.mod govulncheck ${GOVULNDB:+-db "$GOVULNDB"} ./cmd/... >"$out" 2>&1 || rc=$?
case $rc in
0) tail -n 3 "$out" ;;
3)
	cat "$out"
	printf 'The programs call code with known vulnerabilities; an upgrade that is named above mends each\n' >&2
	exit 1
	;;
*)
	if ! grep -q 'fetching vulnerabilities' "$out"; then
		cat "$out" >&2
		exit 1
	fi
	printf 'NOT CHECKED: the database of vulnerabilities cannot be reached from here:\n'
	tail -n 2 "$out"
	[ "${1:-}" != --required ] || exit 1
	;;
esac
