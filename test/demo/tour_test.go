package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestTours plays every page of the documentation with commands for the cluster of make
// up, and checks that a second cluster is refused, and that nothing is left.
func TestTours(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	if os.Geteuid() != 0 {
		t.Skip("making network namespaces needs root")
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob(filepath.Join(root, "docs", "user", "tour*.md"))
	if err != nil || len(pages) == 0 {
		t.Fatalf("pages %v, error %v", pages, err)
	}
	for _, page := range []string{"user/getting-started.md", "operator/recover.md"} {
		pages = append(pages, filepath.Join(root, "docs", page))
	}
	kubelab := filepath.Join(root, "bin", "kubelab")
	if _, err := os.Stat(kubelab); err != nil {
		t.Fatalf("%v: run make bin/kubelab", err)
	}
	bin := build(t, ".", "../../cmd/...", "../podrunner")
	if err := os.Symlink(kubelab, filepath.Join(bin, "kubelab")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", "/tmp") // the demo refuses a long path
	demo := func(want int, says string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "demo"), args...)
		cmd.Dir = root // the commands of the pages are given at the root of the checkout
		out, _ := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != want || !strings.Contains(string(out), says) {
			t.Errorf("demo %v: exit status %d; want %d and %q\n%s", args, got, want, says, out)
		}
	}
	for _, page := range pages {
		args := []string{"play", page}
		if filepath.Base(page) == "tour-openstack.md" {
			args = append(args, "--openstack")
		}
		t.Run(filepath.Base(page), func(*testing.T) { demo(0, "demo: OK commands=", args...) })
	}
	demo(0, "The cluster runs until make down", "up", "--nodes", "1")
	demo(1, errRuns.Error(), "up")
	demo(0, "fairlead0", "shell", "node-1", "ip", "link")
	demo(1, "no node and no running pod is named node-2; nodes: node-1", "shell", "node-2")
	demo(0, "demo: DOWN leaked=0\n", "down")
	demo(0, "no cluster of this checkout runs", "down")
	demo(1, "no cluster of this checkout runs", "shell", "node-1")
}

func TestCommandsOf(t *testing.T) {
	const page = "# A\n\n    not this\n\n## First\n\n```console\n$ one <<EOF\n> two\n> EOF\nprinted 10....\n$ three\n```\n\n```yaml\n$ no\n```\n\n## Second\n\n```console\n$ four\n```\n"
	want := []command{
		{heading: "First", lines: []string{"one <<EOF", "two", "EOF"}, prints: []string{"printed 10...."}},
		{lines: []string{"three"}},
		{heading: "Second", lines: []string{"four"}},
	}
	if diff := cmp.Diff(want, commandsOf(page), cmp.AllowUnexported(command{})); diff != "" {
		t.Errorf("commands (-want +got):\n%s", diff)
	}
}

func TestMissing(t *testing.T) {
	tests := []struct{ name, prints, output, want string }{
		{"nothing is asked", "", "a\n", ""},
		{"among others", "b   c", "a\n b c \nd\n", ""},
		{"any text", "eth0@... UP 10.244....", "eth0@if5   UP  10.244.0.7/32 fe80::1/64\n", ""},
		{"a dot is a dot", "10.244....", "10x244.1\n", "10.244...."},
		{"part of a line", "b", "a b\n", "b"},
		{"in the other order", "b\na", "a\nb\n", "a"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := command{prints: strings.FieldsFunc(tt.prints, func(r rune) bool { return r == '\n' })}
			if got := c.missing(tt.output); got != tt.want {
				t.Errorf("missing %q; want %q", got, tt.want)
			}
		})
	}
}
