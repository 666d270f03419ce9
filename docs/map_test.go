package docs

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestMap compares README's map of the folders with the tree: each folder with Go files is in it
// once, and the map names no other.
func TestMap(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	folders, twice := mapped(string(readme))
	if len(twice) > 0 {
		t.Errorf("the map of README.md names more than once: %q", twice)
	}
	for _, broken := range differs(folders, goFolders(t)) {
		t.Error(broken)
	}
}

// mapped returns the folders that the map of a page names: those of the first column, and the
// code in the second, which is a path below the folder, or below the first of several.
func mapped(page string) (folders, twice []string) {
	_, table, _ := strings.Cut(page, "\n## Map of the folders\n")
	table, _, _ = strings.Cut(table, "\n## ")
	code := regexp.MustCompile("`([^`]+)`")
	for line := range strings.Lines(table) {
		columns := strings.Split(strings.Trim(line, "| \n"), " | ")
		if len(columns) != 2 || !strings.HasPrefix(columns[0], "`") {
			continue
		}
		var of []string
		for _, m := range code.FindAllStringSubmatch(columns[0], -1) {
			of = append(of, m[1])
		}
		folders = append(folders, of...)
		for _, m := range code.FindAllStringSubmatch(columns[1], -1) {
			folders = append(folders, below(of, m[1]))
		}
	}
	for i, f := range folders {
		if slices.Contains(folders[:i], f) {
			twice = append(twice, f)
		}
	}
	return folders, twice
}

// below returns a path below one of several folders: below the first if none has it.
func below(folders []string, name string) string {
	for _, f := range folders {
		if info, err := os.Stat(filepath.Join("..", f, name)); err == nil && info.IsDir() {
			return path.Join(f, name)
		}
	}
	return path.Join(folders[0], name)
}

// differs returns a line for each folder that is in the map alone, or in the tree alone. A folder
// of the map may hold others alone.
func differs(folders, tree []string) (lines []string) {
	for _, f := range folders {
		if !slices.ContainsFunc(tree, func(one string) bool { return one == f || strings.HasPrefix(one, f+"/") }) {
			if _, err := os.Stat(filepath.Join("..", f)); err != nil {
				lines = append(lines, "the map of README.md names "+f+", which is no folder: remove it, or write its new name")
			}
		}
	}
	for _, f := range tree {
		if !slices.Contains(folders, f) {
			lines = append(lines, "the map of README.md lacks "+f+": add a row, or its path below its folder, in code")
		}
	}
	return lines
}

// goFolders returns the folders with Go files: all of the product, the first level below test, and
// of other modules their root.
func goFolders(t *testing.T) (out []string) {
	t.Helper()
	for _, root := range []string{"api", "cmd", "docs", "hack", "internal", "test", "tools"} {
		err := filepath.WalkDir(filepath.Join("..", root), func(file string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.IsDir() && d.Name() == "testdata" {
				return filepath.SkipDir
			}
			dir, _ := filepath.Rel("..", filepath.Dir(file))
			dir = filepath.ToSlash(dir)
			parts := strings.Split(dir, "/")
			if root == "test" || root == "tools" || root == "hack" {
				dir = strings.Join(parts[:min(2, len(parts))], "/")
			}
			if filepath.Ext(file) == ".go" && dir != root && !slices.Contains(out, dir) {
				out = append(out, dir)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func TestDiffers(t *testing.T) {
	page := "\n## Map of the folders\n| folder | content |\n|---|---|\n" +
		"| `internal/run`, `internal/config` | the start; `inner` |\n| `internal/run` | again |\n\n## More\n| `internal/pod` | no |\n"
	folders, twice := mapped(page)
	if diff := cmp.Diff([]string{"internal/run", "internal/config", "internal/run/inner", "internal/run"}, folders); diff != "" {
		t.Errorf("folders of the map (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"internal/run"}, twice); diff != "" {
		t.Errorf("folders that are named twice (-want +got):\n%s", diff)
	}
	got := differs(folders, []string{"internal/run", "internal/config", "internal/pod"})
	if len(got) != 2 || !strings.Contains(got[0], "names internal/run/inner, which is no folder") || !strings.Contains(got[1], "lacks internal/pod") {
		t.Errorf("differences: %q", got)
	}
}
