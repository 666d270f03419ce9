package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/test/netlab"
)

// asProgram is the variable that makes the test binary run as the program.
const asProgram = "FAIRLEAD_TEST_AS_CNICONFORM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// conform runs the program in a host namespace of its own and returns its output and its
// exit status.
func conform(t *testing.T, args ...string) (string, int) {
	t.Helper()
	host, err := netlab.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = host.Close() })
	var out bytes.Buffer
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := host.Start(cmd); err != nil {
		t.Fatal(err)
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes network namespaces")
	}
}

// The reference plugins are the standard of comparison: a new finding here is a mistake
// of ours.
func TestBridge(t *testing.T) {
	needRoot(t)
	if testing.Short() {
		t.Skip("builds the reference plugins, which short mode does without")
	}
	dir := t.TempDir()
	const plugins = "github.com/containernetworking/plugins/plugins/"
	build := exec.CommandContext(t.Context(), "go", "build", "-o", dir, plugins+"main/bridge", plugins+"ipam/host-local")
	build.Dir = filepath.Join("..", "bench", "reference")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	config := filepath.Join(dir, "bridge.json")
	if err := os.WriteFile(config, []byte(`{"name": "conform", "type": "bridge", "bridge": "cni0", "isGateway": true,
		"ipam": {"type": "host-local", "dataDir": "`+dir+`", "ranges": [[{"subnet": "10.9.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	out, exit := conform(t, "--plugin", filepath.Join(dir, "bridge"), "--config", config, "--netns-dir", t.TempDir())
	if exit != 1 {
		t.Errorf("exit status %d", exit)
	}
	want := []string{
		// Its library answers with the newest version that it knows, and prints its name
		// if there is no command.
		"VERSION  must    FAILED  answers in the version that it is asked in (5 VERSION Success)",
		"ADD      must    FAILED  without CNI_COMMAND fails (2 Parameters)",
		"ADD      should  FAILED  without CNI_COMMAND: code 4 and the variable's name (5 Error)",
		"ADD      should  FAILED  with a CNI_CONTAINERID that is a path: code 4 and the variable's name (5 Error)",
		"ADD      should  FAILED  with a CNI_NETNS that is not there: code 4 and the variable's name (5 Error)",
		"ADD      should  FAILED  with a CNI_NETNS that is none: code 4 and the variable's name (5 Error)",
		"ADD      should  FAILED  with a CNI_IFNAME of 16 characters: code 4 and the variable's name (5 Error)",
		"ADD      should  FAILED  with a CNI_IFNAME that is a path: code 4 and the variable's name (5 Error)",
	}
	if diff := cmp.Diff(want, failures(out)); diff != "" {
		t.Errorf("what fails (-want +got):\n%s\n%s", diff, out)
	}
}

// This plugin succeeds always and does nothing.
func TestYes(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	plugin, config := filepath.Join(dir, "yes"), filepath.Join(dir, "yes.json")
	script := "#!/bin/sh\ncat >/dev/null\necho '{\"cniVersion\": \"1.0.0\", \"supportedVersions\": [\"1.0.0\", \"1.1.0\"]}'\n"
	if err := errors.Join(os.WriteFile(plugin, []byte(script), 0o700), os.WriteFile(config, []byte(`{"name": "n"}`), 0o600)); err != nil {
		t.Fatal(err)
	}
	out, exit := conform(t, "--plugin", plugin, "--config", config, "--netns-dir", dir)
	if exit != 1 || !strings.Contains(out, "ADD      must    FAILED  makes the interface, in 1.1.0") {
		t.Errorf("exit status %d:\n%s", exit, out)
	}
}

func TestNothingToTry(t *testing.T) {
	for _, args := range [][]string{
		nil,
		{"--plugin", "/bin/true"},
		{"--plugin", "/bin/true", "--config", "/no/such/file"},
		{"--plugin", "/bin/true", "--config", "/dev/null"},
		{"--no-such-flag"},
	} {
		if _, err := parse(args); err == nil {
			t.Errorf("%q is accepted", args)
		}
	}
	s := &session{plugin: "/bin/false", config: map[string]any{"name": "n"}}
	if err := s.all(); err == nil {
		t.Error("a plugin without a version is tried")
	}
}

// failures returns the lines about failed checks.
func failures(out string) []string {
	var lines []string
	for line := range strings.Lines(out) {
		if strings.Contains(line, " FAILED ") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}
