package lint

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The budgets of a package and of a type of the product, as docs/dev/README.md has them.
const (
	maxPackageLines = 2500
	maxMethods      = 40
)

// TestBudgets counts the lines of each package and the methods of each type, tests and generated
// code apart.
func TestBudgets(t *testing.T) {
	lines, methods := map[string]int{}, map[string]int{}
	receiver := regexp.MustCompile(`(?m)^func \((?:\w+ )?\*?(\w+)(?:\[[^\]]*\])?\) `)
	for _, root := range []string{"api", "cmd", "internal"} {
		err := filepath.WalkDir(filepath.Join("..", "..", root), func(file string, _ fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") || strings.Contains(file, "zz_generated") {
				return err
			}
			text, err := os.ReadFile(file)
			dir := filepath.ToSlash(filepath.Dir(file))
			lines[dir] += strings.Count(string(text), "\n")
			for _, m := range receiver.FindAllStringSubmatch(string(text), -1) {
				methods[dir+"."+m[1]]++
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(lines) < 50 || len(methods) < 300 {
		t.Fatalf("%d packages and %d types with methods are found: the test reads the wrong folders", len(lines), len(methods))
	}
	for dir, n := range lines {
		if n > maxPackageLines {
			t.Errorf("%s has %d lines, at most %d: divide it by what its parts know", dir, n, maxPackageLines)
		}
	}
	for name, n := range methods {
		if n > maxMethods {
			t.Errorf("%s has %d methods, at most %d: it is several types", name, n, maxMethods)
		}
	}
}
