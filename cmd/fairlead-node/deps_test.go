package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// What is linked is in memory on every node. Of Kubernetes that is what the
// daemon asks for: with client-go's scheme, or what is built on it, come the types
// of every API, which weigh more than the daemon.
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
			t.Errorf("the daemon links %s, and asks for nothing of it", dep)
		}
	}
}
