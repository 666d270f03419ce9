#!/usr/bin/env bash
# Verifies, and runs all tests of the module, the demo and the attacks; `make test`.
set -euo pipefail

# shellcheck source=hack/suite.sh
. "$(dirname "${BASH_SOURCE[0]}")/suite.sh"

hack/preflight.sh test
programs
step "verify" hack/verify.sh
step "tests${RACE:+ with the race detector}" tests
# The demo, and the attacks after it, have limits of time.
step "demo" demo
step "attacks" threat
steps_summary test
