package v1alpha1_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// The kustomization installs every CRD that is generated.
func TestKustomizationHasEveryCRD(t *testing.T) {
	files, err := filepath.Glob("crd/fairlead.dev_*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile("crd/kustomization.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var k struct{ Resources []string }
	if err := yaml.Unmarshal(raw, &k); err != nil {
		t.Fatal(err)
	}
	for i := range k.Resources {
		k.Resources[i] = "crd/" + k.Resources[i]
	}
	if diff := cmp.Diff(files, k.Resources); diff != "" {
		t.Errorf("resources of the kustomization (-files +listed):\n%s", diff)
	}
}
