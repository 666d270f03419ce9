#!/usr/bin/env bash
# Generates what follows from the API types: deepcopy functions, CRDs and the
# reference page; then what follows from the Helm chart and the types of the
# configuration: the chart's values and the manifests for kustomize; from the source of
# the programs the tables of metrics; and from the alerts a PrometheusRule. With --check it fails when that changed anything.
# usage: hack/generate.sh [--check]
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
generated=(
	api/v1alpha1/zz_generated.deepcopy.go api/v1alpha1/crd docs/user/reference/api.md
	deploy/chart/crds deploy/chart/values.yaml deploy/chart/values.schema.json docs/operator/values.md
	deploy/config deploy/controller.yaml deploy/node.yaml deploy/networks.yaml deploy/default-pool.yaml
	deploy/rights deploy/ui docs/operator/metrics.md deploy/monitoring/rules.yaml
)

tool() { go tool -modfile=tools/go.mod "$@"; }

# sums prints one line per generated file, so that uncommitted work of one's
# own counts as it is and a file that appears or goes counts as a change.
sums() { find "${generated[@]}" -type f | LC_ALL=C sort | xargs sha256sum; }

before=$(sums)
tool controller-gen object paths=./api/... crd output:crd:dir=api/v1alpha1/crd
tool crd-ref-docs --source-path=api/v1alpha1 --config=hack/crd-ref-docs.yaml --log-level=ERROR \
	--renderer=markdown --output-path=docs/user/reference/api.md
(cd tools/packaging && go run ./chart ../..)
go run ./hack/metrics
# The groups of a PrometheusRule are those of a rules file.
{
	cat <<'EOF'
# Generated from alerts.yaml by hack/generate.sh.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: fairlead
  namespace: fairlead-system
  labels:
    app.kubernetes.io/name: fairlead
spec:
EOF
	sed -n '/^groups:/,$ s/^/  /p' deploy/monitoring/alerts.yaml
} >deploy/monitoring/rules.yaml

if [ "${1:-}" = --check ]; then
	if ! changed=$(diff <(printf '%s\n' "$before") <(sums)); then
		printf 'Generated files were out of date; they are right now, commit them:\n' >&2
		printf '%s\n' "$changed" | awk '/^[<>]/ { print "  " $3 }' | LC_ALL=C sort -u >&2
		git --no-pager diff --stat -- "${generated[@]}" >&2 || true
		exit 1
	fi
fi
