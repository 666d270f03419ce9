package lint

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	// runsGo finds a call of the go command.
	runsGo = regexp.MustCompile(`exec\.Command(Context)?\((\w+(\.Context\(\))?, )?(append\(\[\]string\{)?"go"`)
	// looks finds a call that makes Go's cache see what the go command builds.
	looks = regexp.MustCompile(`\bsources\.(Look|Module)\(`)
	// mainClause finds a program, which go test does not run.
	mainClause = regexp.MustCompile(`(?m)^package main$`)
)

// TestNoCachedVerdicts looks for tests that build or run a program which Go's cache of verdicts
// does not see: they would pass, by the cache, when the program is broken. Such a test calls
// sources.Look, or its package is in the list of hack/suite.sh, which runs each time.
func TestNoCachedVerdicts(t *testing.T) {
	root := filepath.Join("..", "..")
	suite, err := os.ReadFile(filepath.Join(root, "hack", "suite.sh"))
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(suite), "\nuncached=(\n")
	list, _, _ = strings.Cut(list, "\n)\n")
	fresh := strings.Fields(list)
	if len(fresh) == 0 {
		t.Fatal("hack/suite.sh has no list of packages whose tests run each time")
	}
	runs, seen := map[string]bool{}, map[string]bool{}
	for path, source := range sourcesBelow(t, root) {
		dir := filepath.ToSlash(filepath.Dir(path))
		if runsGo.MatchString(source) && (strings.HasSuffix(path, "_test.go") || !mainClause.MatchString(source)) {
			runs[dir] = true
		}
		if looks.MatchString(source) {
			seen[dir] = true
		}
	}
	// These run with -count=1 in their own steps, or the files that they read are those of the step "generated files".
	for _, other := range []string{"hack/metrics/declared", "test/lint", "test/integration/sources"} {
		delete(runs, other)
	}
	for dir := range runs {
		if !seen[dir] && !slices.Contains(fresh, "./"+dir) {
			t.Errorf("%s: a test runs the go command, and Go's cache does not see what it builds: call sources.Look, or add ./%s to the list of hack/suite.sh", dir, dir)
		}
	}
	for _, dir := range fresh {
		if _, err := os.Stat(filepath.Join(root, dir)); err != nil {
			t.Errorf("hack/suite.sh lists %s: %v", dir, err)
		}
	}
}

func TestRunsGo(t *testing.T) {
	for source, want := range map[string]bool{
		`exec.Command("go", "build")`:                                         true,
		`exec.CommandContext(t.Context(), "go", append([]string{"list"})...)`: true,
		`exec.CommandContext(ctx, "go", "build")`:                             true,
		`exec.Command("goat", "build")`:                                       false,
		`exec.Command(os.Args[0], "go")`:                                      false,
	} {
		if got := runsGo.MatchString(source); got != want {
			t.Errorf("%s runs the go command: %v, want %v", source, got, want)
		}
	}
}

// sourcesBelow returns the Go files of this module by their paths.
func sourcesBelow(t *testing.T, root string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			_, other := os.Stat(filepath.Join(path, "go.mod"))
			if path != root && (other == nil || strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "bin") {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(path) != ".go" {
			return nil
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, path)
		out[filepath.ToSlash(relative)] = string(raw)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
