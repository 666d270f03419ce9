package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
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

// TestPrograms checks the table of the programs of test: each has a row, and each row quotes the
// source of its program.
func TestPrograms(t *testing.T) {
	raw, err := os.ReadFile("dev/regressions.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?m)^\\| `(test/[a-z0-9]+)` \\| .* \\| \"([^\"]+)\" \\|$").FindAllStringSubmatch(string(raw), -1)
	has := map[string]bool{}
	for _, row := range rows {
		has[row[1]] = true
		if !strings.Contains(sourceOf(t, row[1]), row[2]) {
			t.Errorf("the source of %s has no %q", row[1], row[2])
		}
	}
	mains, err := filepath.Glob("../test/*/main.go")
	if err != nil || len(mains) == 0 {
		t.Fatalf("programs of test: %v, %v", mains, err)
	}
	for _, main := range mains {
		dir := "test/" + filepath.Base(filepath.Dir(main))
		// These are a part of other programs and tests.
		if part := slices.Contains([]string{"test/kubelab", "test/multus", "test/podrunner"}, dir); !part && !has[dir] {
			t.Errorf("%s has no row of what it finds alone: add one, or remove the program", dir)
		}
	}
}

// sourceOf returns the Go files of a folder.
func sourceOf(t *testing.T, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(raw)
	}
	return out.String()
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
