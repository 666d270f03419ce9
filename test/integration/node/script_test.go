package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
)

// script executes a script of a page of the operator's on the node. A program in the node's
// directory stands in for one of the machine. replace has pairs of texts: a path of an
// installation, and that of the test.
func (n *labNode) script(t *testing.T, page, title string, replace ...string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../../docs/operator", page))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("(?ms)^```sh\n# on the node: " + title + "\n(.*?)^```$").FindSubmatch(text)
	if found == nil {
		t.Fatalf("page %s has no script to %s", page, title)
	}
	script := strings.NewReplacer(replace...).Replace(string(found[1]))
	if err := n.runtime(func(*libcni.CNIConfig) error {
		cmd := exec.CommandContext(t.Context(), "bash", "-c", script)
		cmd.Env = append(os.Environ(), "PATH="+n.dir+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}); err != nil {
		t.Errorf("the script to %s: %v", title, err)
	}
}

// standIn writes a program that stands in for one of the machine.
func (n *labNode) standIn(t *testing.T, name, script string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(n.dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
}
