package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/test/integration/sources"
)

// podArgs returns the CNI_ARGS of a pod.
func (n *labNode) podArgs(p *labPod) string {
	return "IgnoreUnknown=1;K8S_POD_NAMESPACE=" + n.lab.cluster.Namespace + ";K8S_POD_NAME=" + p.name + ";K8S_POD_UID=" + string(p.uid)
}

// command runs a program on the node and returns its output.
func (n *labNode) command(cmd *exec.Cmd) (string, error) {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := n.Start(cmd); err != nil {
		return "", err
	}
	err := cmd.Wait()
	return out.String(), err
}

// lookAtSources makes the go command repeat a test if a program that the tests build has
// changed.
var lookAtSources = sync.OnceValue(func() error {
	const module = "fairlead.dev/fairlead/"
	return sources.Look(module+"cmd/fairlead-controller", module+"cmd/fairlead-node", module+"cmd/fairlead-cni", module+"test/cniconform", module+"test/multus")
})

// buildIn builds a package of the module in a directory.
func buildIn(t *testing.T, dir, program, pkg string) {
	t.Helper()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, pkg)
	build.Dir = dir
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// The plugin meets all requirements of the CNI specification, and all recommendations except
// the two below. test/cniconform checks them; it can check any plugin.
func TestConformance(t *testing.T) {
	l, n, pods := oneNode(t, "conform")
	raw, err := os.ReadFile(n.conflist())
	if err != nil {
		t.Fatal(err)
	}
	var list struct {
		Name    string
		Plugins []map[string]any
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		t.Fatal(err)
	}
	config := list.Plugins[0]
	config["name"] = list.Name
	stdin, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	file, program := filepath.Join(n.dir, "conform.json"), filepath.Join(l.binaries, "cniconform")
	if err := os.WriteFile(file, stdin, 0o600); err != nil {
		t.Fatal(err)
	}
	buildIn(t, "../../..", program, "./test/cniconform")
	out, err := n.command(exec.CommandContext(t.Context(), program, "--plugin", filepath.Join(n.dir, "bin", "fairlead"),
		"--config", file, "--args", n.podArgs(pods[0]), "--netns-dir", l.netns))
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	var missed []string
	for line := range strings.Lines(out) {
		if strings.Contains(line, " FAILED ") {
			missed = append(missed, strings.Join(strings.Fields(line), " "))
		}
	}
	want := []string{
		// Runtimes never use the ID of a sandbox again. A second ADD looks the same as an ADD that
		// comes late, after the DEL that cancelled it.
		"ADD should FAILED works again after a DEL, with the same CNI_CONTAINERID (2 ADD)",
		// A DEL needs only the container's ID, so that it never fails.
		"DEL should FAILED without CNI_IFNAME: code 4 and the variable's name (5 Error)",
	}
	if diff := cmp.Diff(want, missed); diff != "" {
		t.Errorf("recommendations that are not met (-want +got):\n%s\n%s", diff, out)
	}
}

// cnitool, the tool of the CNI project, works with all verbs and the configuration that the
// daemon installed.
func TestCNITool(t *testing.T) {
	l, n, pods := oneNode(t, "tool", "gc")
	before := n.state(t)
	tool := filepath.Join(l.binaries, "cnitool")
	buildIn(t, "../../bench/reference", tool, "github.com/containernetworking/cni/cnitool")
	// cnitool writes its cache to /var/lib/cni. Here /var/lib is a directory of the test.
	cache := t.TempDir()
	run := func(verb string, p *labPod) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "--propagation", "slave", "sh", "-c",
			`mount --bind "$0" /var/lib && exec "$@"`, cache, tool, verb, "fairlead", p.netns.Path())
		cmd.Env = append(os.Environ(), "NETCONFPATH="+filepath.Dir(n.conflist()), "CNI_PATH="+filepath.Join(n.dir, "bin"), "CNI_ARGS="+n.podArgs(p), "CNI_IFNAME=eth0")
		out, err := n.command(cmd)
		if err != nil {
			t.Fatalf("cnitool %s: %v\n%s", verb, err, out)
		}
		return out
	}
	p := pods[0]
	run("status", p)
	var result struct {
		CNIVersion string
		IPs        []struct{ Address string }
	}
	if out := run("add", p); json.Unmarshal([]byte(out), &result) != nil || result.CNIVersion != cniproto.Versions[len(cniproto.Versions)-1] ||
		len(result.IPs) != 2 || result.IPs[0].Address != p.addresses[0] {
		t.Errorf("add answered %s", out)
	}
	run("check", p)
	run("del", p)
	run("del", p)
	unplugged := func(context.Context) error {
		if diff := cmp.Diff(before, n.state(t)); diff != "" {
			return errors.New(diff)
		}
		return nil
	}
	l.cluster.Eventually(t, "nothing to be left", unplugged)
	// The gc of cnitool lists no valid attachment, so all attachments are removed.
	run("add", pods[1])
	run("gc", pods[1])
	l.cluster.Eventually(t, "nothing to be left", unplugged)
}
