// Package docs tests the documentation: its links lead somewhere, and its
// examples are what the programs accept.
package docs

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/config"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block"
	"fairlead.dev/fairlead/internal/nad"
	"fairlead.dev/fairlead/internal/pod"
	testpages "fairlead.dev/fairlead/test/pages"
)

// pages returns the text of every page by its path.
func pages(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".md" {
			return err
		}
		text, err := os.ReadFile(path)
		out[path] = string(text)
		return err
	})
	if err != nil || len(out) == 0 {
		t.Fatalf("pages: %d, error %v", len(out), err)
	}
	return out
}

func TestLinksLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#\s]+)(#[^)]*)?\)`)
	all := pages(t)
	for _, page := range []string{"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"} {
		text, err := os.ReadFile(filepath.Join("..", page))
		if err != nil {
			t.Fatal(err)
		}
		all["../"+page] = string(text)
	}
	for page, text := range all {
		if page == "user/reference/api.md" {
			continue // generated, with patterns in it that look like links
		}
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), m[1])); err != nil {
				t.Errorf("%s: link to %s: %v", page, m[1], err)
			}
		}
	}
}

// TestExamples decodes every YAML block: a resource by its kind, a configuration by
// the program that its first line, a comment, names.
func TestExamples(t *testing.T) {
	found := 0
	for page, text := range pages(t) {
		for _, b := range testpages.Blocks(text) {
			if b.Language != "yaml" {
				continue
			}
			found++
			example := strings.Join(b.Lines, "\n") + "\n"
			if err := check(example); err != nil {
				t.Errorf("%s: %v in the example\n%s", page, err, example)
			}
		}
	}
	if found == 0 {
		t.Error("no examples found")
	}
}

// file is the first line of an example that is a file of an operator's, or a part of one.
var file = regexp.MustCompile(`^# (part of )?([a-z]+/)?(kustomization|values|prometheus)\.ya?ml\n`)

func check(example string) error {
	if strings.HasPrefix(example, "# fairlead-") {
		return checkDefaults(example)
	}
	if strings.HasPrefix(example, "# part of fairlead-controller's file:") {
		c := config.DefaultController()
		if err := yaml.UnmarshalStrict([]byte(example), &c); err != nil {
			return err
		}
		return c.Validate([]string{config.DriverNative, config.DriverNeutron})
	}
	if strings.HasPrefix(example, "# part of fairlead-node's file:") {
		n := config.DefaultNode()
		n.NodeName = "node-1"
		if err := yaml.UnmarshalStrict([]byte(example), &n); err != nil {
			return err
		}
		if err := n.Complete(); err != nil {
			return err
		}
		return n.Validate()
	}
	if strings.HasPrefix(example, "# part of a pod\n") {
		return checkPod(example)
	}
	if file.MatchString(example) {
		return nil // test/deploy and test/monitoring use it: see TestEveryBlockIsTested
	}
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal([]byte(example), &kind); err != nil {
		return err
	}
	switch kind.Kind {
	case "Pod":
		return checkPod(example)
	case "ClusterRole":
		return yaml.UnmarshalStrict([]byte(example), &rbacv1.ClusterRole{}) // test/e2e uses it
	case nad.Kind.Kind:
		return checkNetwork(example)
	case "IPClaim":
		return yaml.UnmarshalStrict([]byte(example), &v1alpha1.IPClaim{})
	case "IPReservation":
		var r v1alpha1.IPReservation
		if err := yaml.UnmarshalStrict([]byte(example), &r); err != nil {
			return err
		}
		_, err := ipam.ParseReservation(r.Spec.Domain, r.Spec.Ranges)
		return err
	default:
		var pool v1alpha1.IPPool
		if err := yaml.UnmarshalStrict([]byte(example), &pool); err != nil {
			return err
		}
		_, err := block.PoolOf(&pool)
		return err
	}
}

// checkPod checks that the annotations of the example of a pod are understood.
func checkPod(example string) error {
	var p corev1.Pod
	if err := yaml.UnmarshalStrict([]byte(example), &p); err != nil {
		return err
	}
	if p.Namespace == "" {
		p.Namespace = metav1.NamespaceDefault // as kubectl does
	}
	for _, read := range []func(*corev1.Pod) ([]string, error){pod.Pools, pod.AdditionalPools} {
		if _, err := read(&p); err != nil {
			return err
		}
	}
	if _, err := pod.WishesOf(&p); err != nil {
		return err
	}
	_, err := pod.Networks(&p)
	return err
}

// checkNetwork checks that pods can be attached to the example of a network, and that
// every option has an effect.
func checkNetwork(example string) error {
	var o struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			Config string `json:"config"`
		} `json:"spec"`
	}
	if err := yaml.UnmarshalStrict([]byte(example), &o); err != nil {
		return err
	}
	n, err := nad.ParseWithResource(o.Spec.Config, nil, o.Annotations[nad.AnnotationResource])
	if err == nil {
		err = n.Refused
	}
	if err == nil && (n.Binding == nil && !n.Delegated() || len(n.Warnings)+len(n.Ignored) > 0) {
		err = fmt.Errorf("not attached as it stands: %q, %q", n.Warnings, n.Ignored)
	}
	return err
}

// checkDefaults checks that the example of a configuration shows every default
// as it is.
func checkDefaults(example string) error {
	var shown, real any
	switch {
	case strings.HasPrefix(example, "# fairlead-controller:"):
		c := config.DefaultController()
		shown, real = &config.Controller{}, &c
	case strings.HasPrefix(example, "# fairlead-node:"):
		n := config.DefaultNode()
		// Values that follow from the machine.
		n.NodeName, n.CNI.PluginSource = "node-1", "/usr/local/bin/fairlead-cni"
		if err := n.Complete(); err != nil {
			return err
		}
		shown, real = &config.Node{}, &n
	}
	if err := yaml.UnmarshalStrict([]byte(example), shown); err != nil {
		return err
	}
	if diff := cmp.Diff(real, shown, cmpopts.EquateEmpty()); diff != "" {
		return fmt.Errorf("not the defaults (-default +shown):\n%s", diff)
	}
	return nil
}

// eachSource calls f with each Go file below a folder but for tests.
func eachSource(t *testing.T, dir string, f func(path string, source []byte)) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		if err == nil {
			f(path, source)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
