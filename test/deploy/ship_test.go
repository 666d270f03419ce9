package deploy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"fairlead.dev/fairlead/internal/config"
	"fairlead.dev/fairlead/test/cluster"
	"fairlead.dev/fairlead/test/pages"
	"fairlead.dev/fairlead/test/scrape"
)

// testOpenStack builds the kustomization that docs/operator/openstack.md shows: the
// controller has the Secret where it reads it by default.
func testOpenStack(t *testing.T, c *cluster.Cluster) {
	page, err := os.ReadFile(path(t, "..", "docs", "operator", "openstack.md"))
	if err != nil {
		t.Fatal(err)
	}
	example := regexp.MustCompile("(?s)```yaml\n(# kustomization.yaml\n.*?)```").FindSubmatch(page)
	if example == nil {
		t.Fatal("openstack.md shows no kustomization")
	}
	dir := t.TempDir()
	base, err := filepath.Rel(dir, path(t))
	if err != nil {
		t.Fatal(err)
	}
	overlay := strings.ReplaceAll(string(example[1]), "../fairlead/deploy", base)
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(overlay), 0o600); err != nil {
		t.Fatal(err)
	}
	var found bool
	for text := range strings.SplitSeq(c.Kubectl("kustomize", dir), "\n---\n") {
		var d appsv1.Deployment
		if err := yaml.Unmarshal([]byte(text), &d); err != nil || d.Kind != "Deployment" {
			continue
		}
		found = true
		spec := d.Spec.Template.Spec
		at := filepath.Dir(config.DefaultController().OpenStack.CloudsFile)
		if m := spec.Containers[0].VolumeMounts; !slices.ContainsFunc(m, func(m corev1.VolumeMount) bool { return m.Name == "openstack" && m.MountPath == at }) {
			t.Errorf("the controller mounts %+v; must have openstack at %s", m, at)
		}
		if v := spec.Volumes[len(spec.Volumes)-1]; v.Name != "openstack" || v.Secret == nil || v.Secret.SecretName != "openstack" || !*v.Secret.Optional {
			t.Errorf("the last volume is %+v; must be the optional Secret openstack", v)
		}
	}
	if !found {
		t.Error("the kustomization has no Deployment")
	}
}

// testOverlay builds the kustomization that docs/operator/install.md shows.
func testOverlay(t *testing.T, c *cluster.Cluster) {
	dir := t.TempDir()
	overlay := exampleIn(t, "install.md", dir)
	digest := "sha256:" + strings.Repeat("0123456789abcdef", 4)
	for _, tt := range []struct{ overlay, want string }{
		{overlay, "images.example/fairlead:v1.2.3"},
		{strings.Replace(overlay, "newTag: v1.2.3", `digest: "`+digest+`"`, 1), "images.example/fairlead@" + digest},
	} {
		if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(tt.overlay), 0o600); err != nil {
			t.Fatal(err)
		}
		images := regexp.MustCompile(`image: (\S+)`).FindAllStringSubmatch(c.Kubectl("kustomize", dir), -1)
		if len(images) != 2 {
			t.Errorf("%d images; must be 2", len(images))
		}
		for _, m := range images {
			if m[1] != tt.want {
				t.Errorf("image %s is not that of the overlay, %s", m[1], tt.want)
			}
		}
	}
}

// testOverlayParts builds the kustomization of docs/operator/install.md with each of the parts
// that the page adds to it: the controller reads a file of the operator's, and the daemon
// reaches Open vSwitch.
func testOverlayParts(t *testing.T, c *cluster.Cluster) {
	dir := t.TempDir()
	overlay, parts := exampleIn(t, "install.md", dir), 0
	for _, b := range pages.Blocks(readPage(t, "operator/install.md")) {
		if b.Language == "yaml" && b.Lines[0] == "# part of cluster/kustomization.yaml" {
			overlay += strings.Join(b.Lines, "\n") + "\n"
			parts++
		}
	}
	for name, text := range map[string]string{"kustomization.yaml": overlay, "controller.yaml": "workers: 41\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	built := c.Kubectl("kustomize", dir)
	for _, want := range []string{"workers: 41", "- mountPath: /run/openvswitch\n", "path: /run/openvswitch\n          type: DirectoryOrCreate\n"} {
		if !strings.Contains(built, want) {
			t.Errorf("with %d parts of the page the objects lack %q", parts, want)
		}
	}
}

// exampleIn returns the kustomization that a page for operators shows, for a directory
// instead of the operator's own.
func exampleIn(t *testing.T, page, dir string) string {
	t.Helper()
	text, err := os.ReadFile(path(t, "..", "docs", "operator", page))
	if err != nil {
		t.Fatal(err)
	}
	example := regexp.MustCompile("(?s)```yaml\n(# (?:cluster/)?kustomization.yaml\n.*?)```").FindSubmatch(text)
	if example == nil {
		t.Fatalf("%s shows no kustomization", page)
	}
	base, err := filepath.Rel(dir, path(t))
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(example[1]), "../fairlead/deploy", base)
}

// testPrograms checks that the manifests execute programs of this source, and that they
// mount the directories of the configuration. The image has all programs: see
// tools/packaging/images.
func testPrograms(t *testing.T, c *cluster.Cluster) {
	_, controller := controllerPod(t, c)
	set := &appsv1.DaemonSet{}
	if err := c.Client.Get(t.Context(), client.ObjectKey{Namespace: cluster.AccountNamespace, Name: "fairlead-node"}, set); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{controller.Command[0], set.Spec.Template.Spec.Containers[0].Command[0], "fairlead-cni", "fairlead"} {
		if _, err := os.Stat(path(t, "..", "cmd", program)); err != nil {
			t.Errorf("no program %s: %v", program, err)
		}
	}
	node := config.DefaultNode()
	node.NodeName = "node-a"
	err := config.Load(path(t, "config", "node.yaml"), &node, func() error { return errors.Join(node.Complete(), node.Validate()) })
	if err != nil {
		t.Error(err)
	}
	mounts := set.Spec.Template.Spec.Containers[0].VolumeMounts
	for _, dir := range []string{node.CNI.BinDir, node.CNI.ConfDir, node.StateDir} {
		if !slices.ContainsFunc(mounts, func(m corev1.VolumeMount) bool { return m.MountPath == dir && !m.ReadOnly }) {
			t.Errorf("%s of config/node.yaml is not mounted", dir)
		}
	}
}

// controllerPod returns the pod of the Deployment and its container.
func controllerPod(t *testing.T, c *cluster.Cluster) (corev1.PodSpec, corev1.Container) {
	t.Helper()
	d := &appsv1.Deployment{}
	if err := c.Client.Get(t.Context(), client.ObjectKey{Namespace: cluster.AccountNamespace, Name: "fairlead-controller"}, d); err != nil {
		t.Fatal(err)
	}
	return d.Spec.Template.Spec, d.Spec.Template.Spec.Containers[0]
}

// testController runs the controller like the Deployment: with its user, its
// configuration and its rights.
func testController(t *testing.T, c *cluster.Cluster) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: runs a program as another user")
	}
	spec, container := controllerPod(t, c)
	uid := uint32(*spec.SecurityContext.RunAsUser)
	if uid == 0 || !*spec.SecurityContext.RunAsNonRoot {
		t.Fatal("the controller runs as root")
	}
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { // other users cannot enter it
		t.Fatal(err)
	}
	shipped, err := os.ReadFile(path(t, "config", "controller.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	account, err := os.ReadFile(c.Account(cluster.ControllerAccount, ""))
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, file, socket := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "controller.yaml"), filepath.Join(dir, "web", "metrics.sock")
	for name, content := range map[string]string{
		kubeconfig: string(account),
		file:       string(shipped) + fmt.Sprintf("kubeconfig: %s\nmetricsAddress: \"unix:%s\"\n", kubeconfig, socket),
	} {
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Mkdir(filepath.Dir(socket), 0o700), os.Chown(filepath.Dir(socket), int(uid), int(uid))); err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", dir, "./cmd/"+container.Command[0])
	build.Dir = path(t, "..")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	cmd := exec.Command(filepath.Join(dir, container.Command[0]), "--config="+file)
	cmd.Stderr = &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	// Creating the Lease needs another right than updating it.
	c.Eventually(t, "the controller to lead", func(ctx context.Context) error {
		lease := &coordinationv1.Lease{}
		err := c.Client.Get(ctx, client.ObjectKey{Namespace: cluster.AccountNamespace, Name: "fairlead-controller"}, lease)
		if err == nil && !lease.Spec.RenewTime.After(lease.Spec.AcquireTime.Time) {
			err = errors.New("the Lease is not renewed")
		}
		return err
	})
	scrape.Declared(t, path(t, ".."), "fairlead-controller", socket)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	select {
	case err := <-ended:
		if err != nil || strings.Contains(log.String(), "forbidden") {
			t.Errorf("the controller ended with %v\n%s", err, log.String())
		}
	case <-time.After(time.Minute):
		_ = cmd.Process.Kill()
		t.Errorf("the controller did not end\n%v", <-ended)
	}
}
