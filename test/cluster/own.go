package cluster

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Own gives a test a control plane that nobody else has and that ends with the test. Nothing is installed in it, not
// even our CRDs, and Namespace is empty: it is for tests of an installation. It takes the memory of a second control
// plane and seconds to start.
func Own(tb testing.TB) *Cluster {
	tb.Helper()
	if testing.Short() {
		tb.Skip("starts a control plane of its own, which short mode does without")
	}
	program, err := findKubelab()
	if err != nil {
		tb.Fatalf("no Kubernetes control plane: %v", err)
	}
	dir := filepath.Join(tb.TempDir(), "kubelab")
	if err := startKubelab(program, dir, os.Getpid()); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if out, err := exec.Command(program, "down", "--dir", dir).CombinedOutput(); err != nil {
			tb.Errorf("ending the control plane: %v\n%s", err, out)
		}
	})
	kubeconfig := filepath.Join(dir, "kubeconfig")
	cfg, err := restConfig(kubeconfig)
	if err != nil {
		tb.Fatal(err)
	}
	api, err := client.New(cfg, client.Options{Scheme: newScheme()})
	if err != nil {
		tb.Fatal(err)
	}
	rights := sync.OnceValue(func() error { return installRights(kubeconfig) })
	return &Cluster{REST: cfg, Kubeconfig: kubeconfig, Client: api, tb: tb, rights: rights}
}
