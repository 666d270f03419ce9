# Fairlead's targets. `make help` lists them.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules
.NOTPARALLEL:

NODES ?= 2
PODS ?= 20
DEMO ?=
BENCH ?=
TESTFLAGS ?=
RACE ?=
LIVES ?= 100000
E2E_FAMILIES ?= dual
E2E_SOAK ?= 0
OLD ?=
SOAK ?= 60m
SEED ?=
RELEASE ?= bookworm
FOCUS ?=
SKIP ?=
VERSION := $(or $(VERSION),$(shell git describe --tags --always --dirty 2>/dev/null),unknown)

# One environment for builds, linters and quick tests, so that they share one
# build cache. The race detector alone needs cgo.
export CGO_ENABLED := 0
export GOFLAGS := -trimpath -buildvcs=false

TOOL := go tool -modfile=tools/go.mod
LDFLAGS := -s -w \
	-X fairlead.dev/fairlead/internal/run.Version=$(VERSION) \
	-X fairlead.dev/fairlead/internal/cniproto.Version=$(VERSION)

PROGRAMS := bin/fairlead-controller bin/fairlead-node bin/fairlead-cni bin/fairlead
# The programs of the demo, the benchmarks and the integration tests.
LAB := $(PROGRAMS) bin/kubelab bin/podrunner
# The programs of the nodes of the end-to-end test.
E2E := $(PROGRAMS) bin/kubelab bin/containerd/containerd bin/reference/bridge bin/e2e bin/e2e-server
# The programs of an upgrade there.
UPGRADE := bin/helm bin/old/fairlead-node

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: preflight-build $(PROGRAMS) ## Build the four programs into bin/

.PHONY: test
test: ## Verify, run all tests, the demo and the attacks: RACE=1 for the race detector (root)
	@TESTFLAGS='$(TESTFLAGS)' RACE='$(RACE)' hack/test.sh

.PHONY: ci
ci: ## Run what CI runs: make test RACE=1, a VM, OpenStack, real nodes, fuzzing, the simulation, a short bench (root)
	@TESTFLAGS='$(TESTFLAGS)' hack/ci.sh

.PHONY: nightly
nightly: ## Run what takes longer or changes seldom: nodes without IPv4, a release, a soak, Kubernetes' own tests (root)
	@TESTFLAGS='$(TESTFLAGS)' hack/nightly.sh

.PHONY: test-fast
test-fast: preflight-build ## Run the tests that need neither root nor a cluster, under 2 minutes
	go test -short $(TESTFLAGS) ./...

.PHONY: verify
verify: preflight-verify ## Check generated files, formatting, lint, the lint rules themselves, go.mod, notices, vulnerabilities
	@hack/verify.sh

.PHONY: generate
generate: preflight-build ## Write deepcopy functions, CRDs, reference pages, values and manifests, and THIRD_PARTY_NOTICES
	hack/generate.sh
	hack/notices.sh

.PHONY: images
images: preflight-build ## Build the image for amd64 and arm64, as an OCI layout in bin/images: VERSION=v1.2.3
	@cd tools/packaging && go run ./cmd/images --version '$(VERSION)' ../..

.PHONY: release
release: preflight-release ## Make the files of a release in bin/release/VERSION: VERSION=v1.2.3
	@cd tools/packaging && go run ./cmd/release --version '$(VERSION)' ../..

.PHONY: release-check
release-check: release ## Make a release twice, with an empty build cache the second time, and compare: VERSION=v1.2.3
	@hack/release-check.sh '$(VERSION)'

.PHONY: images-lock
images-lock: preflight-build ## Pin the present packages of Debian for the image
	@cd tools/packaging && go run ./cmd/images --lock ../..

DEMO_FLAGS = --nodes '$(NODES)' --pods '$(PODS)' $(if $(KUBECONFIG_DEMO),--kubeconfig '$(KUBECONFIG_DEMO)')

# DEMO=networks plays docs/user/tour-networks.md, and so on.
TOURS := networks openstack vm
TOUR_vm := machines
# A cluster of make up has what the tour needs.
UP_FLAGS := $(if $(filter openstack,$(DEMO)),--openstack)

.PHONY: demo
ifneq ($(DEMO),)
demo: preflight-demo $(LAB) bin/demo
	$(if $(filter $(DEMO),$(TOURS)),,$(error DEMO is $(DEMO); it must be one of: $(TOURS)))
	@exec bin/demo play docs/user/tour-$(or $(TOUR_$(DEMO)),$(DEMO)).md $(UP_FLAGS)
else
demo: preflight-demo demo-check $(if $(KUBECONFIG_DEMO),$(filter-out bin/kubelab,$(LAB)),$(LAB)) bin/demo ## Show the whole story on this machine: NODES=2 PODS=20 KUBECONFIG_DEMO=path, or DEMO=networks|openstack|vm (root)
	@exec bin/demo $(DEMO_FLAGS)
endif

.PHONY: up
up: preflight-demo $(LAB) bin/demo ## Leave the demo's cluster running, to play: NODES=2 DEMO=openstack; docs/user/tour.md (root)
	@exec bin/demo up --nodes '$(NODES)' $(UP_FLAGS)

.PHONY: down
down: bin/demo ## End the cluster of make up
	@exec bin/demo down

# It prints what the machine or the cluster lacks, before Kubernetes is built for minutes.
.PHONY: demo-check
demo-check: preflight-demo bin/demo
	@bin/demo --check $(DEMO_FLAGS)

.PHONY: bench
bench: preflight-bench $(LAB) $(E2E) bin/bench ## Measure against baselines into bench/results.json: BENCH=short for 4 minutes (root)
	@mkdir -p bench
	@exec bin/bench $(if $(filter short,$(BENCH)),--short) --out bench/results.json

.PHONY: sim
sim: preflight-build ## Simulate the allocator and the release: LIVES=1000000 SEED=17
	LIVES='$(LIVES)' SEED='$(SEED)' go test -count=1 -timeout 0 -run '^Test(Lives|Broken)$$' ./test/sim

.PHONY: e2e
e2e: preflight-e2e $(E2E) $(UPGRADE) ## Test on two nodes with the real kubelet, containerd and kube-proxy: E2E_FAMILIES=ipv6 E2E_SOAK=90s SEED= (root)
	@exec bin/e2e --families '$(E2E_FAMILIES)' --soak '$(E2E_SOAK)' $(if $(SEED),--seed '$(SEED)')

.PHONY: upgrade
upgrade: preflight-e2e $(E2E) $(UPGRADE) ## Upgrade Fairlead on real nodes and go back, while pods come and go: OLD=ref, a commit with the chart (root)
	@exec bin/e2e --only upgrade

.PHONY: soak
soak: preflight-e2e $(E2E) bin/clocked/fairlead-node ## Let pods live for an hour under faults of every kind: SOAK=10m SEED=17 (root)
	@exec bin/e2e --soak '$(SOAK)' --only soak --clocked --report bin/soak.md $(if $(SEED),--seed '$(SEED)')

# NODES and PODS have other defaults than those of the demo. GOGC has Go's default, so that the memory
# of the API server is that of a cluster: kubelab lets its heap grow more.
.PHONY: scale
scale: preflight-build bin/fairlead bin/fairlead-controller bin/kubelab bin/scale ## Measure a large cluster of simulated nodes: NODES=1000 PODS=30000; report in bin/scale.md
	@GOGC=100 exec bin/scale --nodes '$(if $(filter file,$(origin NODES)),100,$(NODES))' --pods '$(if $(filter file,$(origin PODS)),3000,$(PODS))' --report bin/scale.md

.PHONY: k8s-e2e
k8s-e2e: preflight-k8s-e2e $(E2E) bin/k8s-e2e/e2e.test bin/k8s-e2e/coredns ## Run Kubernetes' own tests on the nodes of make e2e: FOCUS='\[sig-network\]' SKIP= (root)
	@exec bin/e2e --only conformance $(if $(FOCUS),--focus '$(FOCUS)') $(if $(SKIP),--skip '$(SKIP)')

.PHONY: vm
vm: bin/vm ## Build the program that runs commands on Debian's kernel, in a VM

.PHONY: vm-test
vm-test: ## Test links that this machine's kernel may lack, on Debian's kernel in a VM
	@exec hack/vm-test.sh

.PHONY: alerts
alerts: preflight-build ## Test the alerts and the dashboard of deploy/monitoring, with promtool
	cd test/monitoring && go test -count=1 -timeout 30m $(TESTFLAGS) ./...

.PHONY: threat
threat: preflight-threat $(LAB) bin/threat ## Attack it as a tenant, a node gone bad, a runtime and an operator (root)
	@exec bin/threat

.PHONY: openstack
openstack: preflight-openstack $(LAB) bin/openstack-lab bin/vlanshim ## Test with a real Keystone, Neutron and OVN: RELEASE=trixie for OpenStack 2025.1 (root)
	@bin/openstack-lab test --release '$(RELEASE)' -- $(TESTFLAGS) ./test/openstack/... ./internal/driver/neutron

.PHONY: openstack-lab
openstack-lab: preflight-openstack-lab bin/openstack-lab bin/kubelab ## Run Keystone, Neutron, OVN and two chassis beside Kubernetes: RELEASE=trixie (root)
	@exec bin/openstack-lab up --release '$(RELEASE)'

.PHONY: openstack-lab-down
openstack-lab-down: bin/openstack-lab ## End what make openstack-lab runs
	@bin/openstack-lab down

.PHONY: clean
clean: ## Remove what was built (bin/)
	rm -rf bin

.PHONY: preflight-build preflight-verify preflight-demo preflight-bench preflight-e2e preflight-threat preflight-k8s-e2e preflight-openstack preflight-openstack-lab preflight-release
preflight-build preflight-verify preflight-demo preflight-bench preflight-e2e preflight-threat preflight-k8s-e2e preflight-openstack preflight-openstack-lab preflight-release: preflight-%:
	@hack/preflight.sh $*

# go build knows best what changed and is quick when nothing did.
.PHONY: FORCE
FORCE:

$(PROGRAMS): bin/%: FORCE | preflight-build
	@go build -ldflags '$(LDFLAGS)' -o $@ ./cmd/$*

bin/podrunner bin/demo bin/bench bin/e2e bin/scale bin/threat bin/vm: bin/%: FORCE | preflight-build
	@go build -ldflags '$(LDFLAGS)' -o $@ ./test/$*

# The same two programs with a wall clock that the soak sets.
bin/clocked/fairlead-node: FORCE | preflight-build
	@hack/build-clocked.sh

# The older version is that of OLD, or the same source with another version.
bin/old/fairlead-node: FORCE | preflight-build
	@hack/build-old.sh '$(OLD)'

bin/helm: tools/packaging/go.mod tools/packaging/go.sum | preflight-build
	@cd tools/packaging && go build -o '$(CURDIR)/$@' helm.sh/helm/v4/cmd/helm
	@touch $@

bin/e2e-server: FORCE | preflight-build
	@go build -ldflags '$(LDFLAGS)' -o $@ ./test/e2e/server

bin/openstack-lab: FORCE | preflight-build
	@go build -ldflags '$(LDFLAGS)' -o $@ ./test/openstack

bin/vlanshim: FORCE | preflight-build
	@go build -ldflags '$(LDFLAGS)' -o $@ ./test/openstack/vlanshim

# Kubernetes takes seconds even when nothing changed, so make decides.
# Go leaves an up-to-date program alone, but make compares times.
bin/kubelab: $(shell find test/kubelab -type f \( -name '*.go' -o -name 'go.*' \) -not -name '*_test.go' 2>/dev/null) hack/build-module.sh | preflight-build
	@hack/build-module.sh test/kubelab . $@ k8s.io/kubernetes k8s.io/component-base/version.gitVersion
	@touch $@

bin/policies: $(wildcard test/policies/controller/*) hack/build-module.sh | preflight-build
	@hack/build-module.sh test/policies/controller . $@ sigs.k8s.io/kube-network-policies main.version
	@touch $@

# The programs of the test's images come from the same module.
bin/k8s-e2e/e2e.test: test/k8se2e/go.mod test/k8se2e/go.sum hack/build-module.sh | preflight-build
	@hack/build-module.sh test/k8se2e tool $(@D)/ k8s.io/kubernetes k8s.io/component-base/version.gitVersion
	@cd test/k8se2e && go test -c -vet=off -ldflags '-s -w' -o '$(CURDIR)/$@' k8s.io/kubernetes/test/e2e
	@cd test/k8se2e && install -m 644 "$$(go list -m -f '{{.Dir}}' k8s.io/kubernetes)"/test/images/agnhost/porter/localhost.* '$(CURDIR)/$(@D)/'
	@touch $@

bin/k8s-e2e/coredns: $(wildcard test/k8se2e/coredns/*) hack/build-module.sh | preflight-build
	@hack/build-module.sh test/k8se2e/coredns . $@ github.com/coredns/coredns github.com/coredns/coredns/coremain.GitCommit
	@touch $@

CONTAINERD := github.com/containerd/containerd/v2
bin/containerd/containerd: test/e2e/containerd/go.mod test/e2e/containerd/go.sum hack/build-module.sh | preflight-build
	@hack/build-module.sh test/e2e/containerd tool $(@D)/ $(CONTAINERD) $(CONTAINERD)/version.Version
	@touch $@

PLUGINS := github.com/containernetworking/plugins
bin/reference/bridge: test/bench/reference/go.mod test/bench/reference/go.sum hack/build-module.sh | preflight-build
	@hack/build-module.sh test/bench/reference tool $(@D)/ $(PLUGINS) $(PLUGINS)/pkg/utils/buildversion.BuildVersion
	@touch $@
