package deploy

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"fairlead.dev/fairlead/internal/config"
	"fairlead.dev/fairlead/test/cluster"
)

// release is the namespace of releases in these tests.
const release = cluster.AccountNamespace

// helmProgram builds bin/helm, once.
var helmProgram = sync.OnceValues(func() (string, error) {
	chart, err := cluster.Deploy("chart")
	if err != nil {
		return "", err
	}
	root := filepath.Join(chart, "..", "..")
	program := filepath.Join(root, "bin", "helm")
	build := exec.Command("go", "build", "-o", program, "helm.sh/helm/v4/cmd/helm")
	build.Dir = filepath.Join(root, "tools", "packaging")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build helm: %w\n%s", err, out)
	}
	return program, nil
})

// helm runs helm and returns its output. An error has the messages of helm.
func helm(t *testing.T, args ...string) (string, error) {
	t.Helper()
	program, err := helmProgram()
	if err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.Env = helmEnv(t)
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("helm %s: %w\n%s", strings.Join(args, " "), err, &stderr)
	}
	return stdout.String(), nil
}

// helmEnv keeps the files of helm in a directory of the test.
func helmEnv(t *testing.T) []string {
	dir := t.TempDir()
	return append(os.Environ(), "HELM_CACHE_HOME="+dir, "HELM_CONFIG_HOME="+dir, "HELM_DATA_HOME="+dir)
}

// template returns the objects of the chart with some settings.
func template(t *testing.T, args ...string) map[string]*unstructured.Unstructured {
	t.Helper()
	out, err := helm(t, append([]string{"template", "fairlead", path(t, "chart"), "--namespace", release}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return objectsIn(t, out)
}

// objectsIn returns the objects of a YAML stream by "Kind namespace/name".
func objectsIn(t *testing.T, stream string) map[string]*unstructured.Unstructured {
	t.Helper()
	out := map[string]*unstructured.Unstructured{}
	for _, text := range regexp.MustCompile(`(?m)^---$`).Split(stream, -1) {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		if len(o.Object) == 0 {
			continue // comments alone
		}
		out[fmt.Sprintf("%s %s/%s", o.GetKind(), o.GetNamespace(), o.GetName())] = o
	}
	return out
}

const (
	deployment = "Deployment " + release + "/fairlead-controller"
	daemonSet  = "DaemonSet " + release + "/fairlead-node"
)

// at returns a part of an object by a path as "spec/containers/0/image".
func at(o any, path string) any {
	for name := range strings.SplitSeq(path, "/") {
		switch v := o.(type) {
		case map[string]any:
			o = v[name]
		case []any:
			var i int
			if _, err := fmt.Sscan(name, &i); err != nil || i >= len(v) {
				return nil
			}
			o = v[i]
		default:
			return nil
		}
	}
	return o
}

// configOf returns the configuration that an object of the chart has.
func configOf[T any](t *testing.T, objects map[string]*unstructured.Unstructured, program string, into T) T {
	t.Helper()
	text, _ := at(objects["ConfigMap "+release+"/fairlead-"+program+"-config"].Object, "data/"+program+".yaml").(string)
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := config.Load(file, &into, func() error { return nil }); err != nil {
		t.Errorf("%v in\n%s", err, text)
	}
	return into
}
