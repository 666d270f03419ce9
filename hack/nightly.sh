#!/usr/bin/env bash
# Runs the checks that take long or whose subject changes seldom; `make nightly`: once a day,
# beside `make ci` for each change.
set -euo pipefail

# shellcheck source=hack/suite.sh
. "$(dirname "${BASH_SOURCE[0]}")/suite.sh"

# Its version is the newest in CHANGELOG.md: a release has notes.
release_check() {
	local version
	version=$(sed -n 's/^## \[\([0-9][^]]*\)\].*/v\1/p' CHANGELOG.md | head -n 1)
	if [ -z "$version" ]; then
		echo "no version is released yet: only the tests of packaging make two releases"
		return
	fi
	checked release-check make --no-print-directory release-check VERSION="$version"
}

# No race detector here: it would compile all of Kubernetes a second time.
kubelab() { (cd test/kubelab && gotest -timeout 10m ./...); }

# The chart's values and the image.
packaging() { (cd tools/packaging && gotest -timeout 10m ./...); }

ipv6() { checked e2e make --no-print-directory e2e E2E_FAMILIES=ipv6; }
soak() { checked soak make --no-print-directory soak SOAK=10m; }
kubernetes() { checked kubernetes make --no-print-directory k8s-e2e; }
trixie() { checked openstack make --no-print-directory openstack RELEASE=trixie; }
scale() { checked scale make --no-print-directory scale; }

hack/preflight.sh ci
programs
step "known vulnerabilities" hack/vulns.sh --required
step "tests of kubelab" kubelab
step "tests of packaging" packaging
step "alerts and dashboard" make --no-print-directory alerts
step "a release, made twice" release_check
step "fuzzing of every decoder" hack/fuzz.sh 60
step "simulation of a million lives" make --no-print-directory sim LIVES=1000000
step "end to end, on nodes without IPv4" ipv6
step "soak, with jumps of clocks" soak
step "Kubernetes' own tests" kubernetes
step "OpenStack 2025.1, end to end" trixie
step "a hundred simulated nodes" scale
steps_summary nightly
