package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"fairlead.dev/fairlead/test/harness"
	"fairlead.dev/fairlead/test/openstack/lab"
)

// nodes are the chassis that are nodes of kubelab too.
var nodes = []string{"node-1", "node-2"}

// firstNumber is the number of the first chassis: its tunnel address is 172.31.255.11.
const firstNumber = 11

// running is a link to the state directory of the laboratory that up has started.
func (s settings) running() string { return filepath.Join(s.bin, "openstack", "running") }

// up runs a laboratory beside kubelab until the user ends it.
func (s settings) up(ctx context.Context, stdout io.Writer) error {
	if l, err := lab.Open(s.running()); err == nil && lab.Alive(l.State) {
		return fmt.Errorf("the OpenStack laboratory of this checkout runs already, in %s: make openstack-lab-down ends it", l.State)
	}
	l, err := lab.Up(ctx, s.options)
	if err != nil {
		return err
	}
	err = s.serve(ctx, l, stdout)
	if ctx.Err() != nil { // the user ends it
		_, _ = fmt.Fprintln(stdout, "ending the laboratory")
		err = nil
	}
	return errors.Join(err, end(ctx, l))
}

// serve adds chassis and kubelab to a laboratory, and returns when the context ends or
// kubelab has ended.
func (s settings) serve(ctx context.Context, l *lab.Lab, stdout io.Writer) (err error) {
	if err := errors.Join(remove(s.running()), os.Symlink(l.State, s.running())); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove(s.running())) }()
	var chassis []*lab.Chassis
	for i, name := range nodes {
		c, err := l.Chassis(ctx, name, firstNumber+i)
		if err != nil {
			return err
		}
		chassis = append(chassis, c)
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	processes := &harness.Processes{Logs: filepath.Join(l.State, "log"), Failed: fail}
	here := func(fn func() error) error { return fn() }
	kubelab, data := filepath.Join(s.bin, "kubelab"), filepath.Join(l.State, "kubelab")
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), downTimeout)
		defer cancel()
		_, downErr := processes.Run(ctx, here, kubelab, "down", "--dir", data)
		err = errors.Join(err, downErr)
	}()
	kubernetes, err := processes.StartKubernetes(ctx, here, kubelab,
		"--dir", data, "--nodes", strconv.Itoa(len(nodes)), "--owner-pid", strconv.Itoa(os.Getpid()))
	if err != nil {
		return err
	}
	describe(stdout, l, chassis, kubernetes)
	<-ctx.Done()
	return context.Cause(ctx)
}

// down ends the laboratory that up has started.
func (s settings) down(ctx context.Context, stdout io.Writer) error {
	dir, err := os.Readlink(s.running())
	if errors.Is(err, os.ErrNotExist) {
		_, _ = fmt.Fprintln(stdout, "no OpenStack laboratory of this checkout is running")
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(lab.End(ctx, dir), remove(s.running()))
}

// remove removes a file that may be missing.
func remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// describe prints the places of the laboratory and the next steps.
func describe(out io.Writer, l *lab.Lab, chassis []*lab.Chassis, kubernetes harness.Kubernetes) {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(out, format+"\n", args...) }
	say("")
	say("OpenStack of Debian %s:", l.Release)
	say("  clouds.yaml  %s (clouds %s, %s, %s)", l.Clouds, lab.K8s, lab.Member, lab.Admin)
	for _, service := range [][2]string{{"Keystone", l.KeystoneURL}, {"Neutron", l.NeutronURL}, {"Octavia", l.OctaviaURL}} {
		if service[1] != "" {
			say("  %-12s %s", service[0], service[1])
		}
	}
	say("  OVN          %s, %s", l.OVNNorthbound, l.OVNSouthbound)
	for _, c := range chassis {
		say("  chassis      %s: network namespace %s, tunnel address %v, %s", c.Name, c.Namespace, c.Tunnel, c.OVSDB)
	}
	say("  logs         %s", filepath.Join(l.State, "log"))
	say("Kubernetes with the nodes %v:", nodes)
	say("  kubeconfig   %s", kubernetes.Kubeconfig)
	say("")
	say("Next, in another terminal:")
	say("  %s --os-cloud %s network list", filepath.Join(l.State, "bin", "openstack"), lab.K8s)
	say("  %s show", filepath.Join(l.State, "bin", "ovn-sbctl"))
	say("  %s=%s go test -count=1 -v ./test/openstack/...", lab.Variable, l.State)
	say("Ctrl-C, or make openstack-lab-down, ends it.")
}
