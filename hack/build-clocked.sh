#!/usr/bin/env bash
# Builds fairlead-controller and fairlead-node for the soak, into bin/clocked: with a
# wall clock that the soak can set. Only time.Now of the standard library differs, by
# `go build -overlay`, so everything is compiled a second time.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=$PWD/bin/clocked
original=$(go env GOROOT)/src/time/time.go
line='sec, nsec, mono := runtimeNow()'

if (($(grep -cF "$line" "$original") != 1)); then
	printf '%s: %s must be there once: another version of Go needs another change\n' "$original" "$line" >&2
	exit 1
fi
mkdir -p "$out/.overlay"
sed "s/$line/&; sec += wallAhead()/" "$original" >"$out/.overlay/time.go"
cp test/e2e/clocked/wall.go.txt "$out/.overlay/wall.go"
printf '{"Replace": {"%s": "%s", "%s": "%s"}}\n' \
	"$original" "$out/.overlay/time.go" "${original%/*}/fairlead_wall.go" "$out/.overlay/wall.go" >"$out/.overlay/overlay.json"
exec go build -overlay "$out/.overlay/overlay.json" -ldflags '-s -w' -o "$out/" ./cmd/fairlead-controller ./cmd/fairlead-node
