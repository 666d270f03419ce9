#!/usr/bin/env bash
# Makes the release in bin/release a second time, from a clone in another directory and with
# an empty build cache, and compares every byte.
# usage: hack/release-check.sh VERSION
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=${1:?usage: hack/release-check.sh VERSION}
first=$PWD/bin/release/$version
if [ ! -f "$first/SHA256SUMS" ]; then
	printf 'release-check: no release in %s: make release VERSION=%s\n' "$first" "$version" >&2
	exit 1
fi
(cd "$first" && sha256sum --check --strict --quiet SHA256SUMS)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
source=$work/a/longer/path
git clone -q . "$source"
# The packages of Debian are pinned by digest, so the second release needs no archive.
if [ -d .cache/debian ]; then
	mkdir "$source/.cache"
	cp -a .cache/debian "$source/.cache"
fi
(cd tools/packaging && go build -o "$work/release" ./cmd/release)
# Another mask for the modes of files.
(umask 077 && GOCACHE=$work/cache "$work/release" --version "$version" --out "$work/second" "$source")
if ! diff -r "$first" "$work/second"; then
	printf 'release-check: two releases of one commit differ in these files\n' >&2
	exit 1
fi
printf 'release-check: OK version=%s files=%d\n' "$version" "$(find "$first" -type f | wc -l)"
