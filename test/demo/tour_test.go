package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// played are the pages that are played, one cluster after the other. The longest is the
// first, so that the others are played beside it.
var played = [][]string{
	{"docs/operator/recover.md"},
	{
		"test/demo/testdata/pods.md",
		"docs/user/getting-started.md", "docs/user/pools.md", "docs/user/further-networks.md",
		"docs/operator/events.md", "docs/operator/network.md", "docs/operator/packet-filter.md",
		"docs/operator/openstack-fabric.md", "docs/operator/runbook.md",
		"docs/operator/migrate-calico-cilium.md", "docs/operator/lost-nodes.md",
	},
	{"docs/user/tour.md"},
	{"docs/user/tour-openstack.md", "docs/operator/openstack.md", "docs/operator/recover.md"},
	{"docs/user/tour-machines.md"},
	{"docs/user/tour-networks.md"},
}

// TestTours plays every page of the documentation with commands for the cluster of make
// up, and checks that a second cluster is refused, and that nothing is left.
func TestTours(t *testing.T) {
	t.Parallel()
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
	kubelab := filepath.Join(root, "bin", "kubelab")
	if _, err := os.Stat(kubelab); err != nil {
		t.Fatalf("%v: run make bin/kubelab", err)
	}
	programs := build(t, ".", "../../cmd/...", "../podrunner")
	for _, played := range played {
		t.Run(filepath.Base(played[0]), func(t *testing.T) {
			t.Parallel()
			args := append([]string{"play"}, played...)
			if slices.Contains(played, "docs/user/tour-openstack.md") {
				args = append(args, "--openstack")
			}
			newCheckout(t, root, programs, kubelab).demo(t, 0, "demo: OK commands=", args...)
		})
	}
	t.Run("up and down", func(t *testing.T) {
		t.Parallel()
		c := newCheckout(t, root, programs, kubelab)
		c.demo(t, 2, "--openstack: only with up or play", "--openstack")
		c.demo(t, 0, "The cluster runs until make down", "up", "--nodes", "1")
		c.demo(t, 1, errRuns.Error(), "up")
		c.demo(t, 0, "table inet fairlead", "shell", "node-1", "nft", "list", "tables")
		c.demo(t, 1, "no node and no running pod is named node-2; nodes: node-1", "shell", "node-2")
		c.demo(t, 1, "has no stand-in of Neutron", "neutron", "ports")
		c.demo(t, 2, "must be one of: ports, calls, stop, start", "neutron", "servers")
		c.demo(t, 0, "demo: DOWN leaked=0\n", "down")
		c.demo(t, 0, "no cluster of this checkout runs", "down")
		c.demo(t, 1, "no cluster of this checkout runs", "shell", "node-1")
		c.demo(t, 1, "no cluster of this checkout runs", "neutron", "ports")
	})
}

// checkout has the programs of a checkout, which runs one cluster at a time.
type checkout struct{ root, bin string }

// newCheckout returns the programs of a directory as those of another checkout.
func newCheckout(t *testing.T, root, programs, kubelab string) checkout {
	t.Helper()
	c := checkout{root: root, bin: t.TempDir()}
	entries, err := os.ReadDir(programs)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries { // a program finds the others beside it, which a symbolic link would not be
		if err := os.Link(filepath.Join(programs, e.Name()), filepath.Join(c.bin, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(kubelab, filepath.Join(c.bin, "kubelab")); err != nil {
		t.Fatal(err)
	}
	return c
}

// demo runs the demo at the root of the checkout, where the commands of the pages are given.
func (c checkout) demo(t *testing.T, want int, says string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(c.bin, "demo"), args...)
	cmd.Dir = c.root
	cmd.Env = append(os.Environ(), "TMPDIR=/tmp") // the demo refuses a long path
	out, _ := cmd.CombinedOutput()
	if got := cmd.ProcessState.ExitCode(); got != want || !strings.Contains(string(out), says) {
		t.Errorf("demo %v: exit status %d; want %d and %q\n%s", args, got, want, says, out)
	}
}

func TestCommandsOf(t *testing.T) {
	const page = "# A\n\n    not this\n\n## First\n\n```console\n$ one <<EOF\n> two\n> EOF\nprinted 10....\n$ three\n```\n\n```yaml\n$ no\n```\n\n" +
		"```console openstack\n$ on ports\n```\n\n## Second\n\n- a\n\n  ```console\n  $ four\n  ```\n\n```console\n$ five\n```\n"
	want := []command{
		{heading: "First", lines: []string{"one <<EOF", "two", "EOF"}, prints: []string{"printed 10...."}},
		{lines: []string{"three"}},
		{heading: "Second", lines: []string{"four"}},
		{lines: []string{"five"}},
	}
	if diff := cmp.Diff(want, commandsOf(page, settings{}.language()), cmp.AllowUnexported(command{})); diff != "" {
		t.Errorf("commands (-want +got):\n%s", diff)
	}
	want = []command{{heading: "First", lines: []string{"on ports"}}}
	if diff := cmp.Diff(want, commandsOf(page, settings{OpenStack: true}.language()), cmp.AllowUnexported(command{})); diff != "" {
		t.Errorf("commands of a cluster on OpenStack (-want +got):\n%s", diff)
	}
}

func TestCommandsIn(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"a.md": "```console\n$ one\n```\n", "b.md": "```console\n$ two\n```\n", "none.md": "```yaml\na: b\n```\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	in := func(names ...string) (out []string, err error) {
		for i := range names {
			names[i] = filepath.Join(dir, names[i])
		}
		commands, err := settings{}.commandsIn(names)
		for _, c := range commands {
			out = append(out, c.lines...)
		}
		return out, err
	}
	got, err := in("a.md", "b.md")
	if diff := cmp.Diff([]string{"one", "two"}, got); err != nil || diff != "" {
		t.Errorf("error %v, commands (-want +got):\n%s", err, diff)
	}
	for name, want := range map[string]string{"none.md": "none.md has no commands for this cluster: must have blocks of ```console ", "missing.md": "no such file"} {
		if _, err := in("a.md", name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v; want %q", name, err, want)
		}
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
