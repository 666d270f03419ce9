#!/usr/bin/env bash
# Runs the checks of CI for each change; `make ci`: make test with the race detector, Debian's kernel,
# OpenStack, real nodes, fuzzing, the simulation and a short bench. With CI=true a step that this
# machine cannot run is a failure.
set -euo pipefail

# shellcheck source=hack/suite.sh
. "$(dirname "${BASH_SOURCE[0]}")/suite.sh"

export RACE=1 FAIRLEAD_BROWSER=1

# The short soak is the last scenario, on the cluster that runs already.
e2e() { checked "e2e networks upgrade soak" make --no-print-directory e2e E2E_SOAK=90s; }

hack/preflight.sh ci
programs
step "what OpenStack needs" make --no-print-directory preflight-openstack bin/openstack-lab bin/vlanshim
# It waits for its services much of the time, and takes the longest. It goes before the other steps when it
# does not wait: its leaders renew their Lease within seconds.
beside "OpenStack, end to end" nice -n -5 make --no-print-directory openstack
step "verify" hack/verify.sh
# Before the tests of the VM, because it installs QEMU.
optional "tests on Debian's kernel, in a VM" checked vm hack/vm-test.sh
step "tests with the race detector" tests
step "fuzzing of every decoder" hack/fuzz.sh 3
step "simulation" make --no-print-directory sim
joined succeeded openstack
# The demo, and all after it, have limits of time.
step "demo" demo
step "attacks" threat
step "end to end, on real nodes" e2e
step "short bench" bin/bench --short --out bin/bench-short.json
steps_summary ci
