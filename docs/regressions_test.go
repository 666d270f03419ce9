package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestRegressions holds dev/regressions.md against the tests: those that it names
// exist, and what they name as their source is on it.
func TestRegressions(t *testing.T) {
	raw, err := os.ReadFile("dev/regressions.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(raw)
	tests := testFiles(t)
	named := regexp.MustCompile("`([a-z0-9/-]+)\\.(Test\\w+)`").FindAllStringSubmatch(page, -1)
	if len(named) == 0 {
		t.Fatal("the page names no test")
	}
	for _, m := range named {
		if !strings.Contains(tests[m[1]], "\nfunc "+m[2]+"(") {
			t.Errorf("there is no %s in %s", m[2], m[1])
		}
	}
	source := regexp.MustCompile(`\b((?:whereabouts|multus|plugins|cni|go-cni|ib-sriov-cni|containerd|cri-o|calico|cilium|spiderpool|kube-ovn|OVN-Kubernetes|kubernetes)#\d+)\b`)
	for dir, text := range tests {
		for _, m := range source.FindAllStringSubmatch(text, -1) {
			if !regexp.MustCompile(`\b` + m[1] + `\b`).MatchString(page) {
				t.Errorf("a test in %s names %s, and the page does not", dir, m[1])
			}
		}
	}
}

// testFiles returns the text of the tests of each folder.
func testFiles(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, root := range []string{"api", "cmd", "docs", "internal", "test", "tools"} {
		err := filepath.WalkDir(filepath.Join("..", root), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			raw, err := os.ReadFile(path)
			dir, _ := filepath.Rel("..", filepath.Dir(path))
			out[filepath.ToSlash(dir)] += string(raw)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}
