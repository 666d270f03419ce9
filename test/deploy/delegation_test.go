package deploy

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"fairlead.dev/fairlead/test/cluster"
)

// testDelegation adds deploy/delegation to an installation as docs/operator/delegation.md
// shows it: the API server takes it, and the daemon has more than before and nothing less.
func testDelegation(t *testing.T, c *cluster.Cluster) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(exampleIn(t, "delegation.md", dir)), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Kubectl("apply", "--server-side", "--dry-run=server", "-k", dir)

	before, after := daemonOf(t, c, path(t)), daemonOf(t, c, dir)
	if privileged := after.Containers[0].SecurityContext.Privileged; !after.HostPID || privileged == nil || !*privileged {
		t.Errorf("hostPID %v, privileged %v; want both", after.HostPID, privileged)
	}
	for _, want := range append([]string{"/var/lib/cni", "/run/cni"}, hostPaths(before)...) {
		if !slices.Contains(hostPaths(after), want) {
			t.Errorf("%s is not mounted; only %v are", want, hostPaths(after))
		}
	}
}

// daemonOf returns the pods of fairlead-node in a kustomization.
func daemonOf(t *testing.T, c *cluster.Cluster, dir string) corev1.PodSpec {
	t.Helper()
	for text := range strings.SplitSeq(c.Kubectl("kustomize", dir), "\n---\n") {
		set := appsv1.DaemonSet{}
		if err := yaml.Unmarshal([]byte(text), &set); err == nil && set.Kind == "DaemonSet" {
			return set.Spec.Template.Spec
		}
	}
	t.Fatalf("the kustomization %s has no DaemonSet", dir)
	return corev1.PodSpec{}
}

// hostPaths are the directories of the host that the first container has at the same path.
func hostPaths(spec corev1.PodSpec) (out []string) {
	for _, m := range spec.Containers[0].VolumeMounts {
		i := slices.IndexFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		if i >= 0 && spec.Volumes[i].HostPath != nil && spec.Volumes[i].HostPath.Path == m.MountPath {
			out = append(out, m.MountPath)
		}
	}
	return out
}
