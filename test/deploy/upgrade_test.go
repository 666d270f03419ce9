package deploy

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block"
	"fairlead.dev/fairlead/test/cluster"
)

// TestUpgrade upgrades an installation of 0.1.0, with objects of each kind that 0.1.0 wrote.
func TestUpgrade(t *testing.T) {
	for _, way := range []struct {
		name    string
		upgrade func(t *testing.T, c *cluster.Cluster)
	}{
		{"with kustomize", func(t *testing.T, c *cluster.Cluster) {
			c.Kubectl("apply", "--server-side", "-k", path(t))
		}},
		{"to Helm", takeOver},
	} {
		t.Run(way.name, func(t *testing.T) {
			c := cluster.Own(t)
			nodes := []string{"node-a", "node-b"}
			for _, name := range nodes {
				c.Node(name)
			}
			kubelet(t, c)
			c.Kubectl("apply", "--server-side", "-f", filepath.Join("testdata", "0.1.0", "manifests.yaml"))
			c.Kubectl("wait", "--for=condition=Established", "--timeout=1m", "crd/ippools.fairlead.dev")
			stored := store(t, c)
			wantPods(t, c, nodes)

			way.upgrade(t, c)
			c.Kubectl("-n", release, "rollout", "status", "--timeout=1m", "ds/fairlead-node")
			c.Kubectl("-n", release, "rollout", "status", "--timeout=1m", "deploy/fairlead-controller")
			wantPods(t, c, nodes)
			wantStored(t, c, stored)
		})
	}
}

// takeOver makes an installation with kustomize a release. An upgrade of the release is
// refused while the cluster has an older definition than the chart.
func takeOver(t *testing.T, c *cluster.Cluster) {
	old := c.Kubectl("get", "crd", "ipclaims.fairlead.dev", "-o", "json")
	flags := []string{"fairlead", path(t, "chart"), "--namespace", release, "--kubeconfig", c.Kubeconfig, "--force-conflicts"}
	if _, err := helm(t, append([]string{"install", "--take-ownership"}, flags...)...); err != nil {
		t.Fatal(err)
	}
	upgrade := append([]string{"upgrade"}, flags...)

	file := filepath.Join(t.TempDir(), "crds.yaml")
	apply := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c.Kubectl("apply", "--server-side", "--force-conflicts", "-f", file)
	}
	c.Kubectl("patch", "crd", "ipclaims.fairlead.dev", "--type=merge", "-p", `{"spec":`+specOf(t, old)+`}`)
	_, err := helm(t, upgrade...)
	for _, want := range []string{"ipclaims.fairlead.dev in the cluster is older than this chart: it lacks .spec.mac", "helm show crds CHART | kubectl apply --server-side"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("an upgrade with a definition of 0.1.0: %v; must have %q", err, want)
		}
	}
	crds, err := helm(t, "show", "crds", path(t, "chart"))
	if err != nil {
		t.Fatal(err)
	}
	apply(crds)
	// A definition that has more than that of the chart is no reason to refuse.
	c.Kubectl("patch", "crd", "ipclaims.fairlead.dev", "--type=json", "-p",
		`[{"op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/later", "value": {"type": "string"}}]`)
	if _, err := helm(t, upgrade...); err != nil {
		t.Errorf("an upgrade with a newer definition: %v", err)
	}
}

func specOf(t *testing.T, object string) string {
	t.Helper()
	var o struct {
		Spec json.RawMessage `json:"spec"`
	}
	if err := json.Unmarshal([]byte(object), &o); err != nil {
		t.Fatal(err)
	}
	return string(o.Spec)
}

// store creates the objects of testdata/0.1.0, with their status.
func store(t *testing.T, c *cluster.Cluster) (stored []*unstructured.Unstructured) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", "0.1.0", "objects.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objectsIn(t, string(raw)) {
		created := o.DeepCopy()
		if err := c.Client.Create(t.Context(), created); err != nil {
			t.Fatal(err)
		}
		if status := o.Object["status"]; status != nil {
			created.Object["status"] = status
			if err := c.Client.Status().Update(t.Context(), created); err != nil {
				t.Fatal(err)
			}
		}
		stored = append(stored, o)
	}
	if len(stored) != 6 {
		t.Fatalf("%d objects; 0.1.0 has six kinds", len(stored))
	}
	return stored
}

// wantStored reads each object by the present types: everything that was stored is read, and
// the API server takes it back unchanged.
func wantStored(t *testing.T, c *cluster.Cluster, stored []*unstructured.Unstructured) {
	t.Helper()
	for _, want := range stored {
		typed, err := c.Client.Scheme().New(want.GroupVersionKind())
		if err != nil {
			t.Fatal(err)
		}
		o := typed.(client.Object)
		if err := c.Client.Get(t.Context(), client.ObjectKeyFromObject(want), o); err != nil {
			t.Fatal(err)
		}
		var got map[string]any
		raw, err := json.Marshal(o)
		if err == nil {
			err = json.Unmarshal(raw, &got)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range []string{"spec", "status"} {
			if diff := cmp.Diff(want.Object[part], got[part]); diff != "" {
				t.Errorf("%s of %s %s (-stored +read):\n%s", part, want.GetKind(), want.GetName(), diff)
			}
		}
		readByPrograms(t, o)
		// A later change of labels or status passes the present rules.
		if err := writeBack(t.Context(), c.Client, o); err != nil {
			t.Errorf("write %s %s back: %v", want.GetKind(), want.GetName(), err)
		}
	}
}

func writeBack(ctx context.Context, api client.Client, o client.Object) error {
	o.SetLabels(map[string]string{"upgraded": "true"})
	if err := api.Update(ctx, o); err != nil {
		return err
	}
	if err := api.Status().Update(ctx, o); err != nil && !apierrors.IsNotFound(err) { // a block has no status
		return err
	}
	return nil
}

// readByPrograms converts an object as the programs do: nothing is damaged.
func readByPrograms(t *testing.T, o client.Object) {
	t.Helper()
	switch o := o.(type) {
	case *v1alpha1.IPPool:
		if _, err := block.PoolOf(o); err != nil {
			t.Error(err)
		}
	case *v1alpha1.IPReservation:
		if _, err := ipam.ParseReservation(o.Spec.Domain, o.Spec.Ranges); err != nil {
			t.Error(err)
		}
	case *v1alpha1.IPBlock:
		b, err := block.Decode(o)
		if err != nil {
			t.Fatal(err)
		}
		got := map[int]ipam.State{}
		for s := range b.Slots() {
			got[s.Ordinal] = s.State
		}
		want := map[int]ipam.State{2: ipam.Taken, 3: ipam.Taken, 5: ipam.Freed, 9: ipam.Held}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("slots of 0.1.0 (-want +got):\n%s", diff)
		}
	}
}
