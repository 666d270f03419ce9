package cluster

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

var errNotAlone = errors.New("this control plane is not the test's alone to restart; take Exclusive, without FAIRLEAD_TEST_KUBECONFIG")

// Own gives a test a separate control plane that ends with the test. Nothing is installed
// in it, not even our CRDs, and Namespace is empty: it is for tests of an installation.
// It takes the memory of a second control plane and seconds to start.
func Own(tb testing.TB) *Cluster {
	tb.Helper()
	if testing.Short() {
		tb.Skip("starts a control plane of its own, which short mode does without")
	}
	program, err := findKubelab()
	if err != nil {
		tb.Fatalf("no Kubernetes control plane: %v", err)
	}
	l := lab{program: program, dir: filepath.Join(tb.TempDir(), "kubelab"), owner: os.Getpid()}
	if err := l.start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if out, err := exec.Command(program, "down", "--dir", l.dir).CombinedOutput(); err != nil {
			tb.Errorf("ending the control plane: %v\n%s", err, out)
		}
	})
	conn, err := dial(filepath.Join(l.dir, "kubeconfig"), l)
	if err != nil {
		tb.Fatal(err)
	}
	return conn.view(tb)
}

// Restart kills the control plane (etcd, API server, scheduler and controller manager) at
// once, and returns when it is ready again, at the same address and with all acknowledged
// state. It is only for the control plane of Exclusive or Own: other tests use that of
// New.
func (c *Cluster) Restart() error {
	if c.lab.owner != os.Getpid() {
		return errNotAlone
	}
	return c.lab.start("--resume")
}
