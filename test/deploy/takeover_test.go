package deploy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/cluster"
)

// TestTakeOver makes an installation with kustomize a release of Helm, with its pods and
// objects. An upgrade of the release is refused while the cluster has an older definition
// than the chart.
func TestTakeOver(t *testing.T) {
	c := cluster.Own(t)
	nodes := []string{"node-a", "node-b"}
	for _, name := range nodes {
		c.Node(name)
	}
	kubelet(t, c)
	c.Kubectl("apply", "--server-side", "-k", path(t))
	wantPods(t, c, nodes)
	pool := &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "mine"}, Spec: v1alpha1.IPPoolSpec{Ranges: []string{"10.60.0.0/24"}}}
	if err := c.Client.Create(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	spec := pool.Spec.DeepCopy()

	takeOver(t, c)
	c.Kubectl("-n", release, "rollout", "status", "--timeout=1m", "ds/fairlead-node")
	c.Kubectl("-n", release, "rollout", "status", "--timeout=1m", "deploy/fairlead-controller")
	wantPods(t, c, nodes)
	if err := c.Client.Get(t.Context(), client.ObjectKeyFromObject(pool), pool); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(*spec, pool.Spec); diff != "" {
		t.Errorf("the pool (-before +after):\n%s", diff)
	}
}

func takeOver(t *testing.T, c *cluster.Cluster) {
	flags := []string{"fairlead", path(t, "chart"), "--namespace", release, "--kubeconfig", c.Kubeconfig, "--force-conflicts"}
	if _, err := helm(t, append([]string{"install", "--take-ownership"}, flags...)...); err != nil {
		t.Fatal(err)
	}
	upgrade := append([]string{"upgrade"}, flags...)

	// A definition without a field of the chart's is older.
	const properties = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/"
	c.Kubectl("patch", "crd", "ipclaims.fairlead.dev", "--type=json", "-p", `[{"op": "remove", "path": "`+properties+`mac"}]`)
	_, err := helm(t, upgrade...)
	for _, want := range []string{"ipclaims.fairlead.dev in the cluster is older than this chart: it lacks .spec.mac", "helm show crds CHART | kubectl apply --server-side"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("an upgrade with an older definition: %v; must have %q", err, want)
		}
	}
	crds, err := helm(t, "show", "crds", path(t, "chart"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "crds.yaml")
	if err := os.WriteFile(file, []byte(crds), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Kubectl("apply", "--server-side", "--force-conflicts", "-f", file)
	// A definition that has more than that of the chart is no reason to refuse.
	c.Kubectl("patch", "crd", "ipclaims.fairlead.dev", "--type=json", "-p",
		`[{"op": "add", "path": "`+properties+`later", "value": {"type": "string"}}]`)
	if _, err := helm(t, upgrade...); err != nil {
		t.Errorf("an upgrade with a newer definition: %v", err)
	}
}
