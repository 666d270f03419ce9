package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fairlead.dev/fairlead/test/pages"
)

// guide is the commands of a page that a test gives.
type guide struct {
	t     *testing.T
	page  string
	left  []string
	given []string
}

// readGuide reads the commands of a page, in indented blocks, that begin with some words. The
// test fails if it does not give each of them.
func readGuide(t *testing.T, page, begins string) *guide {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../docs", page))
	if err != nil {
		t.Fatal(err)
	}
	g := &guide{t: t, page: page}
	for _, b := range pages.Blocks(string(text)) {
		for _, command := range b.Commands() {
			if b.Language == "" && strings.HasPrefix(command, begins) {
				g.left = append(g.left, command)
			}
		}
	}
	t.Cleanup(func() {
		if len(g.left) > 0 && !t.Failed() && !t.Skipped() {
			t.Errorf("docs/%s has the commands %q, which the test does not give", page, g.left)
		}
	})
	return g
}

// args returns the arguments of a command of the page.
func (g *guide) args(command string) []string {
	g.t.Helper()
	if !slices.Contains(g.left, command) && !slices.Contains(g.given, command) {
		g.t.Fatalf("docs/%s does not have the command %q; left of its commands are %q", g.page, command, g.left)
	}
	g.given = append(g.given, command)
	g.left = slices.DeleteFunc(g.left, func(c string) bool { return c == command })
	return strings.Fields(command)[1:]
}
