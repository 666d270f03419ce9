package deploy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fairlead.dev/fairlead/test/cluster"
	"fairlead.dev/fairlead/test/pages"
)

// onPage is how the commands of a page, which begin with kubectl, are run.
type onPage struct {
	page string
	// before makes what the commands act on, and after succeeds if they have had their effect.
	before, after string
	// replace has the words of the page that stand for others, and the others.
	replace []string
}

// workload returns a command that makes a Deployment or a DaemonSet in kube-system, whose
// pods no node takes.
func workload(kind, name string) string {
	return `kubectl apply -f - <<EOF
apiVersion: apps/v1
kind: ` + kind + `
metadata: {namespace: kube-system, name: ` + name + `}
spec:
  selector: {matchLabels: {app: ` + name + `}}
  template:
    metadata: {labels: {app: ` + name + `}}
    spec: {nodeSelector: {fairlead.dev/test: nowhere}, containers: [{name: nothing, image: example.org/nothing}]}
EOF
`
}

var onPages = []onPage{
	{
		page:   "operator/check.md",
		before: "kubectl create namespace left && kubectl label namespace left fairlead.dev/check=1",
		after:  "! kubectl get namespace left",
	},
	{
		page:    "operator/observe.md",
		before:  "kubectl create namespace monitoring",
		after:   "kubectl -n monitoring get configmap -l grafana_dashboard=1 -o yaml | grep 'dashboard.json:'",
		replace: []string{"=deploy/", "=fairlead/deploy/"},
	},
	{
		page:   "operator/openstack.md",
		before: "echo 'clouds: {}' > clouds.yaml",
		after:  "kubectl -n fairlead-system get secret openstack -o yaml | grep 'clouds.yaml:'",
	},
	{
		page:  "operator/openstack-fabric.md",
		after: "kubectl -n fairlead-system get secret fairlead-openstack -o yaml | grep 'clouds.yaml:'",
	},
	{
		page: "operator/runbook.md",
		before: `kubectl --as=system:serviceaccount:fairlead-system:fairlead-controller --as-group=system:masters apply -f - <<EOF
apiVersion: fairlead.dev/v1alpha1
kind: IPBlock
metadata: {name: by-hand.4-0a630100}
spec: {domain: by-hand, cidr: 10.99.1.0/26, used: 1, slots: ["1 A 1 1 uid-a shop/a/eth0 node-1"]}
EOF`,
		after:   "! kubectl get ipblock by-hand.4-0a630100",
		replace: []string{"NAME", "by-hand.4-0a630100"},
	},
	{
		page:   "operator/migrate-multus.md",
		before: workload("DaemonSet", "kube-multus-ds") + "kubectl label node node-1 node-2 fairlead.dev/networks-attached-by=Fairlead",
		after: `kubectl -n kube-system get daemonset kube-multus-ds -o yaml | grep 'operator: NotIn' &&
test -z "$(kubectl get nodes -l fairlead.dev/networks-attached-by -o name)" && test -z "$(kubectl get node node-1 -o jsonpath={.spec.unschedulable})"`,
	},
	{
		page:   "operator/migrate-whereabouts.md",
		before: workload("Deployment", "whereabouts-reconciler") + workload("Deployment", "whereabouts-controller") + workload("DaemonSet", "whereabouts"),
		after: `test "$(kubectl -n kube-system get deployments whereabouts-reconciler whereabouts-controller -o jsonpath='{.items[*].spec.replicas}')" = "0 0" &&
kubectl -n kube-system get daemonset whereabouts -o yaml | grep 'fairlead.dev/whereabouts: nowhere'`,
	},
	{
		page: "user/keeping-an-address.md",
		before: `kubectl apply -f - <<EOF
apiVersion: fairlead.dev/v1alpha1
kind: IPPool
metadata: {name: wb-10.0.0.0-24}
spec: {ranges: [10.0.0.0/24]}
EOF`,
		after: "kubectl get ippool wb-10.0.0.0-24 -o yaml | grep 'sticky: StatefulSet'",
	},
}

// TestPages runs the commands of pages that need the API server and no program of Fairlead, on
// an installation, and has the API server take the objects of docs/operator/scale.md.
func TestPages(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane of its own, which short mode does without")
	}
	c := cluster.Own(t)
	for _, name := range []string{"node-1", "node-2"} {
		c.Node(name)
	}
	kubelet(t, c)
	c.Kubectl("apply", "--server-side", "-k", path(t))
	c.Kubectl("wait", "--for=condition=Established", "--timeout=1m", "crd/ippools.fairlead.dev", "crd/ipblocks.fairlead.dev", "crd/podattachments.fairlead.dev")
	wantPods(t, c, []string{"node-1", "node-2"})
	w := newWorkdir(t, c, "")
	for _, p := range onPages {
		t.Run(filepath.Base(p.page), func(t *testing.T) {
			w.run(t, p.before)
			found := 0
			for _, command := range commands(readPage(t, p.page)) {
				if strings.HasPrefix(command, "kubectl ") {
					found++
					w.run(t, strings.NewReplacer(p.replace...).Replace(command))
				}
			}
			if found == 0 {
				t.Error("the page has no commands of kubectl")
			}
			w.run(t, p.after)
		})
	}
	t.Run("scale.md", func(t *testing.T) {
		for _, b := range pages.Blocks(readPage(t, "operator/scale.md")) {
			if objects := strings.Join(b.Lines, "\n"); strings.HasPrefix(objects, "apiVersion: ") {
				if err := os.WriteFile(filepath.Join(w.dir, "objects.yaml"), []byte(objects), 0o600); err != nil {
					t.Fatal(err)
				}
				w.run(t, "kubectl apply --server-side --dry-run=server -f objects.yaml")
				return
			}
		}
		t.Error("the page has no objects")
	})
}
