package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/test/harness"
	"fairlead.dev/fairlead/test/kubeclient"
	"fairlead.dev/fairlead/test/netlab"
)

// testbed is the cluster in which the attacks are tried.
type testbed struct {
	plan
	harness.Reporter
	processes *harness.Processes
	lab       *netlab.Lab
	// outsider is a machine on the nodes' link that is not a node.
	outsider *netlab.Namespace
	nodes    []*node
	// Client is the administrator's; it reads from the API server.
	client.Client
	rest  *rest.Config
	admin string // the administrator's kubeconfig
	// leading was started first and leads, unless an attack changed that.
	leading, standby *harness.Process
	changes          int // of the leader
	forging          forging
	settings         map[string]any // further settings of controllers
	byHand           types.UID      // of a pod whose record an operator deleted
	victims          *victims
	cloud            *cloud
}

// node is one machine of the cluster.
type node struct {
	*netlab.Machine
	dir            string // everything of the node, on tmpfs
	daemon, runner *harness.Process
	// account is the kubeconfig of its daemon.
	account string
}

func (n *node) stateDir() string  { return "/run/fairlead-" + n.Name } // of the /run inside
func (n *node) runnerDir() string { return filepath.Join(n.dir, "runner") }
func (n *node) netnsDir() string  { return filepath.Join(n.dir, "netns") }
func (n *node) binDir() string    { return filepath.Join(n.dir, "bin") }
func (n *node) confDir() string   { return filepath.Join(n.dir, "net.d") }

// runInside is the work inside of the namespaces.
func runInside(ctx context.Context, work harness.Work, programs *harness.Processes) error {
	var p plan
	if err := work.ReadPlan(&p); err != nil {
		return err
	}
	ctrl.SetLogger(logr.Discard())
	w := &testbed{plan: p, Reporter: harness.Reporter{Out: os.Stdout, Start: p.Start}, processes: programs}
	result, err := w.runSuite(ctx)
	if err != nil {
		return err
	}
	return work.WriteResult(result)
}

// runSuite builds the cluster, tries the attacks, and then those with an open lock.
func (w *testbed) runSuite(ctx context.Context) (result verdict, err error) {
	if err := w.build(ctx); err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, w.lab.Close()) }()
	if err := w.install(ctx); err != nil {
		return result, err
	}
	if err := w.startVictims(ctx); err != nil {
		return result, err
	}
	defer w.victims.stop()
	w.Say("the victim's pods run: %s", w.victims)
	rows, err := w.tryAll(ctx)
	if err != nil {
		return result, err
	}
	opened, err := w.openLocks(ctx)
	if err != nil {
		return result, err
	}
	w.printTable(rows)
	w.printLocks(opened)
	return judge(rows, opened)
}

// build creates the nodes, the outsider and the control plane.
func (w *testbed) build(ctx context.Context) (err error) {
	if w.lab, err = netlab.New(ctx, netlab.Config{Nodes: 3, Here: true}); err != nil {
		return err
	}
	// The last machine of the link has an address there, and no other setting.
	w.outsider = w.lab.Nodes[2].Namespace
	for _, machine := range w.lab.Nodes[:2] {
		n := &node{Machine: machine, dir: filepath.Join(w.Tmpfs(), machine.Name)}
		for _, dir := range []string{n.dir, n.stateDir(), n.binDir(), n.confDir(), n.netnsDir()} {
			if err := os.Mkdir(dir, 0o700); err != nil {
				return fmt.Errorf("directories of %s: %w", n.Name, err)
			}
		}
		w.nodes = append(w.nodes, n)
	}
	k, err := w.processes.StartKubernetes(ctx, w.lab.Switch.Do, filepath.Join(w.Bin, "kubelab"),
		"--dir", w.Kubelab(), "--nodes", fmt.Sprint(len(w.nodes)), "--bind", w.lab.Switch.V4.Addr().String())
	if err != nil {
		return err
	}
	w.admin = k.Kubeconfig
	if w.rest, w.Client, err = kubeclient.Connect(w.admin); err != nil {
		return err
	}
	w.Say("Kubernetes runs, with %d nodes", len(w.nodes))
	return nil
}

// user returns a client with only the rights of a user.
func (w *testbed) user(name string, groups ...string) (client.Client, error) {
	cfg := rest.CopyConfig(w.rest)
	cfg.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: append(groups, "system:authenticated")}
	return kubeclient.New(cfg)
}

// clientOf returns a client with the credentials of a node's daemon.
func (w *testbed) clientOf(kubeconfig string) (client.Client, error) {
	_, c, err := kubeclient.Connect(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("credentials of a node: %w", err)
	}
	return c, nil
}

const (
	// stepTimeout bounds each wait.
	stepTimeout = 90 * time.Second
	// pollInterval is the time between two checks of a state that has no events.
	pollInterval = 50 * time.Millisecond
)

// await calls look until it returns no problem. look returns the present problem, or
// empty for none.
func await(ctx context.Context, what string, look func(ctx context.Context) (string, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stepTimeout, fmt.Errorf("not within %v", stepTimeout))
	defer cancel()
	last := ""
	err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		not, err := look(ctx)
		if ctx.Err() != nil {
			return false, nil //nolint:nilerr // the context has the cause
		}
		last = not
		return not == "" && err == nil, err
	})
	if err != nil {
		return fmt.Errorf("waiting for %s (%s): %w", what, last, errors.Join(context.Cause(ctx), err))
	}
	return nil
}

// within watches for the effect of an attack for a time, and reports whether it occurred.
// The last check is when the time is up.
func within(ctx context.Context, limit time.Duration, look func(ctx context.Context) (bool, error)) (seen bool, err error) {
	deadline := time.Now().Add(limit)
	err = wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		over := time.Now().After(deadline)
		seen, err = look(ctx)
		return seen || over, err
	})
	return seen, err
}

// stopped runs fn while a program is stopped, like a program that hangs.
func stopped(p *harness.Process, fn func() error) error {
	if err := p.Cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return errors.Join(fn(), p.Cmd.Process.Signal(syscall.SIGCONT))
}

func (w *testbed) kubectl(ctx context.Context, args ...string) error {
	args = append([]string{"kubectl", "--kubeconfig", w.admin}, args...)
	_, err := w.processes.Run(ctx, w.lab.Switch.Do, filepath.Join(w.Bin, "kubelab"), args...)
	return err
}

// nft runs nft on a node and returns what it prints.
func (w *testbed) nft(ctx context.Context, n *node, args ...string) (string, error) {
	return w.processes.Run(ctx, n.Do, "/usr/sbin/nft", args...)
}

func oneLine(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > 160 {
		text = text[:157] + "..."
	}
	return text
}
