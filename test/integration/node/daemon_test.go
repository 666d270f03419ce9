package node

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/scrape"
)

// The whole path on a real kernel and with a real API server: two daemons on two nodes that
// share a link, and the plugin, which runs as under a runtime.
func TestDaemons(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes network namespaces")
	}
	l := newLab(t)
	n1, n2 := l.node(t, 0), l.node(t, 1)
	before1 := n1.state(t)
	n1.start(t)
	n2.start(t)
	for _, n := range []*labNode{n1, n2} {
		l.cluster.Eventually(t, "the network of "+n.name, func(ctx context.Context) error {
			var nn v1alpha1.NodeNetwork
			if err := l.cluster.Client.Get(ctx, types.NamespacedName{Name: n.name}, &nn); err != nil {
				return err
			}
			if len(nn.Status.Addresses) != 2 || nn.Status.BootID == "" ||
				!meta.IsStatusConditionTrue(nn.Status.Conditions, v1alpha1.ConditionAnnounced) {
				return fmt.Errorf("status %+v", nn.Status)
			}
			return nil
		})
		n.awaitConflist(t)
	}

	// The record is not there yet: ADD waits for it.
	p1, p2 := n1.pod(t, "p1"), n2.pod(t, "p2")
	added := make(chan pluginAnswer, 1)
	go func() { added <- n1.cni("ADD", p1, p1.netns.Path()) }()
	l.attachment(t, n1, p1, "10.244.1.5/32", "fd00:10:244:1::5/128")
	l.attachment(t, n2, p2, "10.244.2.5/32", "fd00:10:244:2::5/128")
	first := <-added
	first.wantOK(t, "ADD p1")
	n2.cni("ADD", p2, p2.netns.Path()).wantOK(t, "ADD p2")
	l.wantState(t, p1, v1alpha1.SandboxAttached, p1.containerID)
	l.wantState(t, p2, v1alpha1.SandboxAttached, p2.containerID)
	for _, address := range []string{"10.244.2.5", "fd00:10:244:2::5"} {
		l.wantTalk(t, p1, p2, address)
	}
	l.wantResult(t, first, p1)

	// Bad input: the error names the bad value, and nothing is changed.
	unplugged := n1.state(t)
	bad := n1.pod(t, "p9")
	n1.cni("ADD", bad, "/no/such/netns").wantError(t, 4, "CNI_NETNS", "/no/such/netns")
	n1.cni("ADD", bad, t.TempDir()).wantError(t, 4, "CNI_NETNS", "directory")
	if diff := cmp.Diff(unplugged, n1.state(t)); diff != "" {
		t.Errorf("bad input changed something:\n%s", diff)
	}

	// Both daemons are killed, and p2 ends while its daemon is away.
	n1.kill(t)
	n2.kill(t)
	n2.cni("DEL", p2, p2.netns.Path()).wantOK(t, "DEL p2 without a daemon")
	n1.start(t)
	n2.start(t)
	n1.call("CHECK", p1, p1.netns.Path(), prevResult(first)).wantOK(t, "CHECK after a restart")
	second := n1.cni("ADD", p1, p1.netns.Path())
	second.wantOK(t, "ADD p1 again")
	if !bytes.Equal(first.stdout, second.stdout) {
		t.Errorf("ADD again answered %s, first %s", second.stdout, first.stdout)
	}
	l.release(t, p2)
	l.wantState(t, p2, v1alpha1.SandboxDetached, p2.containerID)
	n1.cni("STATUS", p1, "").wantOK(t, "STATUS")

	// The DELs of a pod as containerd calls them.
	n1.cni("DEL", p1, p1.netns.Path()).wantOK(t, "DEL p1")
	n1.cni("DEL", p1, "").wantOK(t, "DEL p1 again")
	l.release(t, p1)
	l.wantState(t, p1, v1alpha1.SandboxDetached, p1.containerID)

	scrape.Declared(t, "../../..", "fairlead-node", filepath.Join(n1.dir, "metrics.sock"))

	// The daemon restores the route to its block if it is deleted.
	block := n1.removeBlock(t)
	l.cluster.Eventually(t, "the route again", func(context.Context) error {
		if !slices.Contains(n1.state(t).Routes, block) {
			return errors.New("it is not there")
		}
		return nil
	})

	// A daemon that stops leaves the files that the runtime needs; cleanup leaves nothing.
	n1.stop(t)
	if _, err := os.Stat(n1.conflist()); err != nil {
		t.Errorf("the network configuration went with the daemon: %v", err)
	}
	if out := n1.cleanUpAndWait(t); !strings.Contains(out, "removed") {
		t.Errorf("cleanup printed %q", out)
	}
	if diff := cmp.Diff(before1, n1.state(t)); diff != "" {
		t.Errorf("cleanup left a change (-before +after):\n%s", diff)
	}
	for _, path := range []string{n1.conflist(), filepath.Join(n1.dir, "bin", "fairlead"), filepath.Join(n1.dir, "state")} {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("cleanup left %s: %v", path, err)
		}
	}
}

// cleanUpAndWait cleans the node up as the pods of deploy/cleanup do, and stops the command
// when the node is clean. It returns what the command printed before.
func (n *labNode) cleanUpAndWait(t *testing.T) string {
	t.Helper()
	cmd := n.container("cleanup", "--config", n.config, "--cni", "--wait")
	cmd.Stderr = n.log
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Start(cmd); err != nil {
		t.Fatal(err)
	}
	var printed strings.Builder
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if lines.Text() == "clean; waiting to be stopped" {
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
			break
		}
		printed.WriteString(lines.Text() + "\n")
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("cleanup ended with %v after it printed %q", err, printed.String())
	}
	return printed.String()
}
