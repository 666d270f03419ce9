#!/usr/bin/env bash
# Runs tests on Debian's kernel, in a VM; `make vm-test`. The VM's kernel has all types of
# links that nodes have. Exits 3 when this machine cannot run the VM.
# usage: hack/vm-test.sh
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Packages whose tests need such a kernel.
packages=(./test/vm/guest ./internal/netdev/link ./internal/netdev/plug ./internal/netdev/plug/child ./internal/netdev/plug/hostdevice ./internal/netdev/plug/routed ./test/policies)
# Tests of load, and of Open vSwitch in user space: another kernel changes nothing, and there
# they take minutes. Debian's kernel has no netdevsim.
skip='Parallel$|OVS|^TestVirtualFunctionsOfTheKernel$'

hack/preflight.sh vm-test || exit 3
make --no-print-directory vm bin/policies
exec bin/vm test --timeout 10m --skip "$skip" "${packages[@]}"
