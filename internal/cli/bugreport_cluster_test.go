package cli

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/test/cluster"
)

// TestBugReport packs a report of a real cluster, and looks for a secret in it.
func TestBugReport(t *testing.T) {
	c := cluster.New(t)
	const canary = "canary-7d1f"
	c.Node("bug-1")
	c.Pod("web", "bug-1", func(p *corev1.Pod) {
		p.Annotations = map[string]string{"example.org/token": canary, "fairlead.dev/pools": "blue"}
		p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "PASSWORD", Value: canary}}
	})
	create(t, c, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "s"}, StringData: map[string]string{"password": canary}})
	g := readGuide(t, "user/cli.md", "fairlead bugreport")
	t.Chdir(t.TempDir())
	// The cluster may lack the kinds of networks; then the code is 1.
	got := call(t, append(g.args("fairlead bugreport"), "--kubeconfig", c.Kubeconfig)...)
	if _, err := os.Stat(strings.TrimSuffix(got.Stdout, "\n")); got.Code == exitError || err != nil {
		t.Errorf("got %+v, file: %v", got, err)
	}
	file := "report.tar.gz"
	got = call(t, append(g.args("fairlead bugreport -o report.tar.gz --node node-7"), "--kubeconfig", c.Kubeconfig)...)
	if got.Code == exitError || got.Stdout != file+"\n" {
		t.Fatalf("got %+v", got)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	zip, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	contents := map[string]string{}
	for r := tar.NewReader(zip); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		raw, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		_, name := path.Split(header.Name)
		contents[name] = string(raw)
		if strings.Contains(string(raw), canary) {
			t.Errorf("%s has the secret", header.Name)
		}
	}
	for name, want := range map[string]string{
		"pods.yaml": "fairlead.dev/pools: blue", "nodes.yaml": "name: bug-1", "ippools.fairlead.dev.yaml": "kind: IPPoolList",
		"events.events.k8s.io.yaml": "kind: EventList", "index.txt": "Report of Fairlead",
	} {
		if !strings.Contains(contents[name], want) {
			t.Errorf("%s lacks %q:\n%.2000s", name, want, contents[name])
		}
	}
}
