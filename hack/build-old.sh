#!/usr/bin/env bash
# Builds the older version for the end-to-end test of an upgrade, into bin/old: the programs
# and the manifests. Without REF it is this source with another version.
# usage: hack/build-old.sh [REF]
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=$PWD/bin/old
source=$PWD
version=v0.0.0-old
ref=${1:-}
if [ -n "$ref" ]; then
	source=$(mktemp -d)
	trap 'rm -rf "$source"' EXIT
	git archive "$ref" | tar -x -C "$source"
	version=$(git describe --tags --always "$ref")
fi
rm -rf "$out/deploy" "$out/api"
mkdir -p "$out/api/v1alpha1"
cp -r "$source/deploy" "$out/deploy"
cp -r "$source/api/v1alpha1/crd" "$out/api/v1alpha1/crd"
cd "$source"
package=fairlead.dev/fairlead/internal
go build -ldflags "-s -w -X $package/run.Version=$version -X $package/cniproto.Version=$version" -o "$out/" ./cmd/...
