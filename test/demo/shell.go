package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"fairlead.dev/fairlead/test/harness"
	"fairlead.dev/fairlead/test/lab"
	"fairlead.dev/fairlead/test/netlab"
	"fairlead.dev/fairlead/test/podrunner/sandbox"
)

// shell replaces this process by a command in a node or in a pod of the cluster that up
// has started; without a command, by a shell. It returns the exit code if that fails.
func (s settings) shell(args []string, stderr io.Writer) int {
	err := s.enter(args)
	_, _ = fmt.Fprintf(stderr, "shell: %v\n", err)
	return 1
}

func (s settings) enter(args []string) error {
	if len(args) == 0 {
		return errors.New("name a node (node-1) or a pod (default/web-0), and a command if you like: shell node-1 ip route")
	}
	k, err := s.place().running()
	if err != nil {
		return err
	}
	if k == nil {
		return errors.New("no cluster of this checkout runs: make up starts one")
	}
	inside, err := k.Work.Worker()
	if err == nil && inside == "" {
		err = errors.New("the cluster is starting or ending: try again")
	}
	if err != nil {
		return err
	}
	netns, err := namespaceOf(args[0], filepath.Join("/proc", inside, "root"), k.Work)
	if err != nil {
		return err
	}
	nsenter, err := exec.LookPath("nsenter")
	if err != nil {
		return fmt.Errorf("%w: it is in Debian's package util-linux", err)
	}
	command := slices.Clone(args[1:])
	for i := range command {
		command[i] = pathsOf(args[0], filepath.Join(k.Work.Tmpfs(), args[0])).Replace(command[i])
	}
	if len(command) == 0 {
		command = []string{"bash", "--norc"}
	}
	argv := append([]string{"nsenter", "--target", inside, "--mount", "--pid", "--net=" + netns, "--"}, command...)
	return syscall.Exec(nsenter, argv, append(os.Environ(), "PS1="+args[0]+"# "))
}

// pathsOf returns the replacement of the paths of an installation by those of a node: all
// nodes are in one file system.
func pathsOf(name, dir string) *strings.Replacer {
	node := &lab.Node{Machine: &netlab.Machine{Name: name}, Dir: dir}
	return strings.NewReplacer("/etc/cni/net.d", node.ConfDir(), "/run/fairlead", node.StateDir())
}

// namespaceOf returns the file of the network namespace of a node or pod. root is the root
// of the mount namespace in which the nodes are.
func namespaceOf(name, root string, work harness.Work) (string, error) {
	dirs, err := filepath.Glob(filepath.Join(root, work.Tmpfs(), "node-*"))
	if err != nil {
		return "", err
	}
	var nodes, pods []string
	for _, dir := range dirs {
		node := &labNode{Node: &lab.Node{Dir: dir}}
		if filepath.Base(dir) == name {
			return node.netnsFile(), nil
		}
		nodes = append(nodes, filepath.Base(dir))
		records, err := sandbox.Read(node.RunnerDir())
		if err != nil {
			return "", err
		}
		for _, r := range records {
			full := r.Namespace + "/" + r.Pod
			if r.State != sandbox.Ready {
				continue
			}
			if full == name || r.Namespace == "default" && r.Pod == name {
				return filepath.Join(root, r.NetnsPath), nil
			}
			pods = append(pods, full)
		}
	}
	slices.Sort(pods)
	return "", fmt.Errorf("no node and no running pod is named %s; nodes: %s; pods: %s", name, strings.Join(nodes, ", "), strings.Join(pods, ", "))
}
