package deploy

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/cluster"
	"fairlead.dev/fairlead/test/pages"
)

// TestInstallPage runs the commands of docs/operator/install.md, in order, on a cluster of
// its own for each way to install, and before the removal those of docs/operator/upgrade.md.
// A kubelet of the test makes pods ready and ends them.
func TestInstallPage(t *testing.T) {
	if testing.Short() {
		t.Skip("starts control planes of its own, which short mode does without")
	}
	page, upgrade := readPage(t, "operator/install.md"), readPage(t, "operator/upgrade.md")
	run := map[string]bool{}
	for _, way := range []struct{ heading, upgrades, removes string }{
		{"## With Helm", "helm ", "--set node.cleanup=true"},
		{"## With kustomize", "kubectl apply ", "-k removal"},
	} {
		t.Run(way.heading, func(t *testing.T) {
			c := cluster.Own(t)
			for _, name := range []string{"node-a", "node-b"} {
				c.Node(name)
			}
			kubelet(t, c)
			w := newWorkdir(t, c, page)
			for _, command := range commands(section(t, page, way.heading)) {
				if strings.HasSuffix(command, way.removes) {
					w.run(t, "helm package fairlead/deploy/chart --version 1.2.3")
					for _, command := range commands(upgrade) {
						if strings.HasPrefix(command, way.upgrades) || strings.HasPrefix(command, "kubectl -n ") {
							run[command] = true
							w.run(t, command)
						}
					}
				}
				run[command] = true
				printed := w.run(t, command)
				if strings.HasPrefix(command, "helm install ") {
					wantNotes(t, printed, commands(page))
				}
				if strings.Contains(command, "deploy/fairlead-controller") {
					wantPods(t, c, []string{"node-a", "node-b"})
					listAll(t, c)
				}
			}
			wantNothing(t, c)
		})
	}
	for _, command := range slices.Concat(commands(page), commands(upgrade)) {
		if !run[command] {
			t.Errorf("a page has the command %q in a section that is not run", command)
		}
	}
}

// wantNotes checks that the commands in the notes of the chart, which Helm prints, are those
// of the page.
func wantNotes(t *testing.T, printed string, page []string) {
	t.Helper()
	found := regexp.MustCompile(`(?m)^ +(kubectl .*)$`).FindAllStringSubmatch(printed, -1)
	if len(found) == 0 {
		t.Errorf("the notes have no command:\n%s", printed)
	}
	for _, m := range found {
		if !slices.Contains(page, m[1]) {
			t.Errorf("the notes have the command %q, which is not on the page", m[1])
		}
	}
}

// readPage returns the text of a page of the documentation.
func readPage(t *testing.T, page string) string {
	t.Helper()
	text, err := os.ReadFile(path(t, "..", "docs", filepath.FromSlash(page)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// listAll lists the objects of each kind. A definition that is deleted before its kind was
// used once takes minutes to go: the API server's own listing finds a storage that is being
// made, again and again.
func listAll(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	crds, err := v1alpha1.CRDs()
	if err != nil {
		t.Fatal(err)
	}
	for _, crd := range crds {
		c.Eventually(t, "a list of "+crd.Name, func(ctx context.Context) error {
			list := &metav1.PartialObjectMetadataList{}
			list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(crd.Spec.Names.ListKind))
			return c.Client.List(ctx, list)
		})
	}
}

// section returns a section of a page, with the sections below it.
func section(t *testing.T, page, heading string) string {
	t.Helper()
	_, rest, found := strings.Cut(page, "\n"+heading+"\n")
	if !found {
		t.Fatalf("the page has no section %q", heading)
	}
	below, _, _ := strings.Cut(rest, "\n## ")
	return below
}

// commands returns the commands in indented blocks, but for those that no test runs.
func commands(text string) (out []string) {
	for _, b := range pages.Blocks(text) {
		if b.Language != "" {
			continue
		}
		for _, command := range b.Commands() {
			if _, why := pages.WhyNotRun(command); why == "" {
				out = append(out, command)
			}
		}
	}
	return out
}

// workdir is an operator's directory: the source as "fairlead", and the files of the page.
type workdir struct {
	dir string
	env []string
}

func newWorkdir(t *testing.T, c *cluster.Cluster, page string) *workdir {
	t.Helper()
	dir, bin := t.TempDir(), t.TempDir()
	if err := os.Symlink(path(t, ".."), filepath.Join(dir, "fairlead")); err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile("(?s)```yaml\n# ([a-z]+/[a-z]+\\.yaml)\n(.*?)```").FindAllStringSubmatch(page, -1) {
		file := filepath.Join(dir, m[1])
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(m[2]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	program, err := helmProgram()
	if err != nil {
		t.Fatal(err)
	}
	kubelab, err := cluster.Kubelab()
	if err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\nexec '%s' kubectl \"$@\"\n", kubelab)
	if err := os.WriteFile(filepath.Join(bin, "kubectl"), []byte(script), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	if err := os.Symlink(program, filepath.Join(bin, "helm")); err != nil {
		t.Fatal(err)
	}
	env := append(helmEnv(t), "KUBECONFIG="+c.Kubeconfig, "PATH="+bin+":"+os.Getenv("PATH"))
	return &workdir{dir: dir, env: env}
}

// run runs a command as a shell does, and returns its output.
func (w *workdir) run(t *testing.T, command string) string {
	t.Helper()
	var out bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-o", "pipefail", "-c", command)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = w.dir, w.env, &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", command, err, &out)
	}
	return out.String()
}

// kubelet does the work of the kubelets for Fairlead's pods: a pod that is bound is ready,
// and a pod that is deleted ends.
func kubelet(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	api, err := client.NewWithWatch(c.REST, client.Options{Scheme: c.Client.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	pods, err := api.Watch(t.Context(), &corev1.PodList{}, client.InNamespace(release))
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	t.Cleanup(func() { pods.Stop(); <-ended })
	go func() {
		defer close(ended)
		for event := range pods.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); ok && event.Type != watch.Deleted {
				serve(context.WithoutCancel(t.Context()), t, api, pod)
			}
		}
	}()
}

func serve(ctx context.Context, t *testing.T, api client.Client, pod *corev1.Pod) {
	var err error
	switch {
	case pod.DeletionTimestamp != nil:
		err = api.Delete(ctx, pod, client.GracePeriodSeconds(0), client.Preconditions{UID: &pod.UID})
	case pod.Spec.NodeName != "" && pod.Status.Phase == corev1.PodPending:
		before := pod.DeepCopy()
		pod.Status.Phase = corev1.PodRunning
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue})
		err = api.Status().Patch(ctx, pod, client.MergeFrom(before))
	}
	if client.IgnoreNotFound(err) != nil {
		t.Errorf("the kubelet's work for pod %s: %v", pod.Name, err)
	}
}
