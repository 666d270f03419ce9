package cluster

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Kubectl runs kubectl as the administrator and returns its output. The test fails if
// kubectl fails.
func (c *Cluster) Kubectl(args ...string) string {
	c.tb.Helper()
	out, err := kubectl(c.Kubeconfig, args...)
	if err != nil {
		c.tb.Fatal(err)
	}
	return out
}

func kubectl(kubeconfig string, args ...string) (string, error) {
	program, err := findKubelab()
	if err != nil {
		return "", err
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(program, append([]string{"kubectl", "--kubeconfig", kubeconfig}, args...)...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("kubectl %s: %w\n%s%s", strings.Join(args, " "), err, &stdout, &stderr)
	}
	return stdout.String(), nil
}

// Kustomize returns the objects of a kustomization, as YAML.
func Kustomize(dir string) (string, error) { return kubectl(os.DevNull, "kustomize", dir) }

// Deploy returns the path of a file or folder in deploy/.
func Deploy(elem ...string) (string, error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	return filepath.Join(append([]string{root, "deploy"}, elem...)...), nil
}
