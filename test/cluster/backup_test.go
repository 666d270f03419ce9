package cluster_test

import (
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/test/cluster"
)

func TestRestore(t *testing.T) {
	if os.Getenv("FAIRLEAD_TEST_KUBECONFIG") != "" {
		t.Skip("restores the control plane, and FAIRLEAD_TEST_KUBECONFIG names another cluster")
	}
	c := cluster.Exclusive(t)
	node := c.Node("node-a").Name
	before := c.Pod("before", node)
	backup := filepath.Join(t.TempDir(), "etcd")
	if err := c.Backup(backup); err != nil {
		t.Fatal(err)
	}
	after := c.Pod("after", node)
	for range 2 { // a backup can be restored again
		if err := c.Restore(backup); err != nil {
			t.Fatal(err)
		}
		if err := c.Client.Get(t.Context(), client.ObjectKeyFromObject(before), &corev1.Pod{}); err != nil {
			t.Errorf("the pod of the backup: %v", err)
		}
		if err := c.Client.Get(t.Context(), client.ObjectKeyFromObject(after), &corev1.Pod{}); !apierrors.IsNotFound(err) {
			t.Errorf("the pod after the backup: %v; want not found", err)
		}
	}
}
