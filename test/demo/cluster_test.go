package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/test/cluster"
)

// asProgram is the variable that makes the test binary run as the program.
const asProgram = "FAIRLEAD_TEST_AS_DEMO"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestLeavesTheUsersCluster runs the demo in an existing cluster, and checks that it
// leaves the cluster as it was.
func TestLeavesTheUsersCluster(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("making network namespaces needs root")
	}
	c := cluster.Own(t)
	bin := build(t, "../../cmd/fairlead-controller", "../../cmd/fairlead-node", "../../cmd/fairlead-cni", "../podrunner")
	tests := []struct {
		name string
		at   string // a piece of the line at which do is called
		do   func(t *testing.T, demo *os.Process)
		code int
		says []string
	}{
		{name: "to the end", code: 0, says: []string{"demo: OK nodes=1 pods=2 pings=4/4 leaked=0"}},
		{name: "interrupted while it installs", at: "using the cluster of", do: interrupt, code: 130},
		{name: "interrupted while pods start", at: "created 2 pods", do: interrupt, code: 130},
		{
			name: "the controller is killed", at: "all 2 pods run", code: 1,
			do:   func(t *testing.T, _ *os.Process) { kill(t, filepath.Join(bin, "fairlead-controller")) },
			says: []string{"fairlead-controller ended: signal: killed", "dropping the finalizers of 2 attachments"},
		},
	}
	before := clusterState(t, c)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out, code := runDemo(t, func(line string, demo *os.Process) bool {
				if tt.do == nil || !strings.Contains(line, tt.at) {
					return false
				}
				tt.do(t, demo)
				return true
			}, "--nodes", "1", "--pods", "2", "--kubeconfig", c.Kubeconfig, "--bin", bin)
			if code != tt.code {
				t.Errorf("exit status %d; want %d", code, tt.code)
			}
			for _, want := range tt.says {
				if !strings.Contains(out, want) {
					t.Errorf("it does not say %q", want)
				}
			}
			if diff := cmp.Diff(before, clusterState(t, c)); diff != "" {
				t.Errorf("objects in the cluster (-before +after):\n%s", diff)
			}
			if t.Failed() {
				t.Log(out)
			} else if _, logs, ok := strings.Cut(out, "\nlogs: "); ok {
				if err := os.RemoveAll(filepath.Dir(strings.TrimSpace(logs))); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// build builds programs into a directory, without cgo as make does.
func build(t *testing.T, packages ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"build", "-o", dir}, packages...)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return dir
}

// runDemo runs the demo and passes each line to see until that returns true. It returns
// the whole output and the exit status.
func runDemo(t *testing.T, see func(line string, demo *os.Process) bool, args ...string) (string, int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), asProgram+"=1", "TMPDIR=/tmp") // the demo refuses a long path, and keeps the logs of a failure there
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	seen := false
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		out.WriteString(lines.Text() + "\n")
		seen = seen || see(lines.Text(), cmd.Process)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

func interrupt(t *testing.T, demo *os.Process) {
	t.Helper()
	if err := demo.Signal(os.Interrupt); err != nil {
		t.Error(err)
	}
}

// kill kills the process of a program; there must be one.
func kill(t *testing.T, program string) {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if target, err := os.Readlink(link); err != nil || target != program {
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(link, "/proc/%d/exe", &pid); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
		return
	}
	t.Errorf("no process runs %s", program)
}

// clusterState returns the names of all objects that the demo makes, or could leave.
func clusterState(t *testing.T, c *cluster.Cluster) []string {
	t.Helper()
	var out []string
	for _, list := range []client.ObjectList{
		&corev1.NodeList{}, &corev1.NamespaceList{}, &apiextensionsv1.CustomResourceDefinitionList{}, &coordinationv1.LeaseList{},
	} {
		if err := c.Client.List(context.WithoutCancel(t.Context()), list); err != nil {
			t.Fatal(err)
		}
		objects, err := meta.ExtractList(list)
		if err != nil {
			t.Fatal(err)
		}
		for _, object := range objects {
			named := object.(client.Object)
			out = append(out, fmt.Sprintf("%T %s/%s", named, named.GetNamespace(), named.GetName()))
		}
	}
	slices.Sort(out)
	return out
}
