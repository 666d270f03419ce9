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
	// says has words in the output of the commands.
	says []string
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

// definition returns a command that defines a kind of objects in namespaces.
func definition(group, kind, singular, plural string) string {
	return `kubectl apply -f - <<EOF
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: ` + plural + "." + group + `}
spec:
  group: ` + group + `
  scope: Namespaced
  names: {kind: ` + kind + `, singular: ` + singular + `, plural: ` + plural + `}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
EOF
kubectl wait --for=condition=Established --timeout=1m crd/` + plural + "." + group + "\n"
}

// underKuryr are the objects of Kuryr-Kubernetes and of pods that it serves. Its pod has a
// finalizer of another program too.
const underKuryr = `kubectl -n kube-system create configmap kuryr-config --from-literal=kuryr.conf='[neutron_defaults]'
kubectl create namespace under-kuryr
kubectl annotate namespace under-kuryr openstack.org/kuryr-project=8d777f385d3dfec8815d20f7496026dc
kubectl apply -f - <<EOF
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata:
  namespace: under-kuryr
  name: storage
  annotations: {openstack.org/kuryr-config: '{"subnetId": "0c1f7a10-0000-4000-8000-000000000004"}'}
---
apiVersion: v1
kind: Pod
metadata: {namespace: under-kuryr, name: web-0, finalizers: [example.org/other, kuryr.openstack.org/pod-finalizer]}
spec: {nodeSelector: {fairlead.dev/test: nowhere}, containers: [{name: nothing, image: example.org/nothing}]}
---
apiVersion: v1
kind: Service
metadata: {namespace: under-kuryr, name: web, finalizers: [kuryr.openstack.org/service-finalizer]}
spec: {ports: [{port: 80}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: under-kuryr, name: deny, finalizers: [kuryr.openstack.org/networkpolicy-finalizer]}
spec: {podSelector: {}}
---
apiVersion: openstack.org/v1
kind: KuryrPort
metadata: {namespace: under-kuryr, name: web-0, finalizers: [kuryr.openstack.org/kuryrport-finalizer]}
status:
  vifs:
    eth0:
      default: true
      vif: {versioned_object.name: VIFVlanNested, versioned_object.data: {id: 5d8a1f6e-0000-4000-8000-000000000001}}
---
apiVersion: openstack.org/v1
kind: KuryrNetwork
metadata: {namespace: under-kuryr, name: under-kuryr, finalizers: [kuryrnetwork.finalizers.kuryr.openstack.org]}
---
apiVersion: openstack.org/v1
kind: KuryrNetworkPolicy
metadata: {namespace: under-kuryr, name: np-deny}
---
apiVersion: openstack.org/v1
kind: KuryrLoadBalancer
metadata: {namespace: under-kuryr, name: web, finalizers: [kuryr.openstack.org/kuryrloadbalancer-finalizers]}
EOF
`

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
		page:   "operator/openstack-fabric.md",
		before: "kubectl -n fairlead-system delete secret openstack --ignore-not-found",
		after:  "kubectl -n fairlead-system get secret openstack -o yaml | grep 'clouds.yaml:'",
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
		page: "operator/migrate-kuryr.md",
		before: definition("k8s.cni.cncf.io", "NetworkAttachmentDefinition", "network-attachment-definition", "network-attachment-definitions") +
			definition("openstack.org", "KuryrPort", "kuryrport", "kuryrports") + definition("openstack.org", "KuryrNetwork", "kuryrnetwork", "kuryrnetworks") +
			definition("openstack.org", "KuryrNetworkPolicy", "kuryrnetworkpolicy", "kuryrnetworkpolicies") +
			definition("openstack.org", "KuryrLoadBalancer", "kuryrloadbalancer", "kuryrloadbalancers") +
			workload("Deployment", "kuryr-controller") + workload("DaemonSet", "kuryr-cni") + underKuryr,
		after: `test "$(kubectl get crd -o name | grep -c openstack.org)" = 0 && grep 'id: 5d8a1f6e-0000-4000-8000-000000000001' kuryr.yaml &&
test "$(kubectl -n kube-system get deployment kuryr-controller -o jsonpath='{.spec.replicas}')" = 0 &&
kubectl -n kube-system get daemonset kuryr-cni -o yaml | grep 'operator: NotIn' &&
test "$(kubectl -n under-kuryr get pod web-0 -o jsonpath='{.metadata.finalizers[*]}')" = example.org/other &&
test -z "$(kubectl -n under-kuryr get service/web networkpolicy/deny -o jsonpath='{.items[*].metadata.finalizers}')" &&
test -z "$(kubectl get node node-1 -o jsonpath={.spec.unschedulable})" && kubectl label node node-1 fairlead.dev/migrated-`,
		says: []string{"[neutron_defaults]", "under-kuryr/web-0 eth0 VIFVlanNested 5d8a1f6e-0000-4000-8000-000000000001", `{"subnetId": "0c1f7a10`, "8d777f385d3dfec8815d20f7496026dc"},
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
			found, output := 0, ""
			for _, command := range commands(readPage(t, p.page)) {
				if strings.HasPrefix(command, "kubectl ") {
					found++
					output += w.run(t, strings.NewReplacer(p.replace...).Replace(command))
				}
			}
			if found == 0 {
				t.Error("the page has no commands of kubectl")
			}
			for _, words := range p.says {
				if !strings.Contains(output, words) {
					t.Errorf("the commands do not say %q:\n%s", words, output)
				}
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
