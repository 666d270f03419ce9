package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// The daemon links only the Kubernetes APIs that it uses, since the linked code is in memory on
// every node. client-go's scheme, and each package that uses it, adds the types of every API,
// which need more memory than the daemon itself.
func TestDependencies(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(string(out))
	for _, dep := range []string{"k8s.io/api/core/v1", "k8s.io/api/events/v1"} {
		if !slices.Contains(deps, dep) {
			t.Fatalf("list of dependencies %q lacks %s", deps, dep)
		}
	}
	for _, dep := range deps {
		switch {
		case strings.HasPrefix(dep, "k8s.io/client-go/kubernetes"), dep == "sigs.k8s.io/controller-runtime/pkg/client":
			t.Errorf("the daemon links %s", dep)
		case strings.HasPrefix(dep, "k8s.io/api/") && dep != "k8s.io/api/core/v1" && dep != "k8s.io/api/events/v1":
			t.Errorf("the daemon links %s, and does not use it", dep)
		}
	}
}
