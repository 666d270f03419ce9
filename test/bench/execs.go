package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"time"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/test/netlab"
)

// execution is a program to execute as a runtime executes a plugin: with a pipe for input
// and one for output.
type execution struct {
	ns    *netlab.Namespace // the namespace in which it is started
	path  string
	env   []string // in addition to the bench's own
	stdin []byte
}

// run executes it and returns its output and the time from before its start to after its
// end.
func (e execution) run(ctx context.Context) (stdout []byte, took time.Duration, err error) {
	var out, said bytes.Buffer
	cmd := exec.CommandContext(ctx, e.path)
	cmd.Env = append(os.Environ(), e.env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(e.stdin), &out, &said
	err = e.ns.Do(func() error {
		start := time.Now()
		err := cmd.Run()
		took = time.Since(start)
		return err
	})
	if err != nil {
		return nil, took, fmt.Errorf("%s: %w: %s%s", e.path, err, said.Bytes(), out.Bytes())
	}
	return out.Bytes(), took, nil
}

// sandbox is a pod's network namespace, which the bench plugs and unplugs.
type sandbox struct{ *netlab.Namespace }

// newSandboxes creates sandboxes, and a function that closes them.
func newSandboxes(n int) (all []sandbox, done func(), err error) {
	done = func() {
		for _, s := range all {
			s.Close()
		}
	}
	for range n {
		ns, err := netlab.NewNamespace()
		if err != nil {
			done()
			return nil, nil, err
		}
		all = append(all, sandbox{ns})
	}
	return all, done, nil
}

// cniCall is one call of a CNI plugin.
type cniCall struct {
	verb, containerID, path string
	ifName                  string // empty for eth0
	sandbox                 sandbox
	pod                     *corev1.Pod // nil: the call has no arguments of Kubernetes
}

func (c cniCall) args() string {
	if c.pod == nil {
		return ""
	}
	return fmt.Sprintf("IgnoreUnknown=1;K8S_POD_NAMESPACE=%s;K8S_POD_NAME=%s;K8S_POD_INFRA_CONTAINER_ID=%s;K8S_POD_UID=%s",
		c.pod.Namespace, c.pod.Name, c.containerID, c.pod.UID)
}

// request returns the call as the plugin sends it to fairlead-node.
func (c cniCall) request(config []byte) cniproto.Request {
	return cniproto.Request{
		RequestID: c.containerID, Verb: c.verb, ContainerID: c.containerID, Netns: c.sandbox.Path(), IfName: cmp.Or(c.ifName, "eth0"),
		Args: c.args(), Path: c.path, Config: config,
	}
}

func (c cniCall) env() []string {
	return []string{
		"CNI_COMMAND=" + c.verb, "CNI_CONTAINERID=" + c.containerID, "CNI_NETNS=" + c.sandbox.Path(),
		"CNI_IFNAME=" + cmp.Or(c.ifName, "eth0"), "CNI_ARGS=" + c.args(), "CNI_PATH=" + c.path,
	}
}
