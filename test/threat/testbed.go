package main

import (
	"context"
	"errors"
	"fmt"
	"os"
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
	"fairlead.dev/fairlead/test/lab"
	"fairlead.dev/fairlead/test/netlab"
)

// testbed is the cluster in which the attacks are tried.
type testbed struct {
	plan
	*lab.Cluster
	// outsider is a machine on the nodes' link that is not a node.
	outsider *netlab.Namespace
	nodes    []*node
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
	*lab.Node
	// account is the kubeconfig of its daemon.
	account string
}

// runInside is the work inside of the namespaces.
func runInside(ctx context.Context, work harness.Work, programs *harness.Processes) error {
	var p plan
	if err := work.ReadPlan(&p); err != nil {
		return err
	}
	ctrl.SetLogger(logr.Discard())
	w := &testbed{plan: p, Cluster: &lab.Cluster{
		Reporter: harness.Reporter{Out: os.Stdout, Start: p.Start}, Dir: work, Bin: p.Bin, Programs: programs,
	}}
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
	defer func() { err = errors.Join(err, w.Net.Close()) }()
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
	return verdictOf(rows, opened)
}

// build creates the nodes, the outsider and the control plane.
func (w *testbed) build(ctx context.Context) (err error) {
	if w.Net, err = netlab.New(ctx, netlab.Config{Nodes: 3, Here: true}); err != nil {
		return err
	}
	// The last machine of the link has an address there, and no other setting.
	w.outsider = w.Net.Nodes[2].Namespace
	for _, machine := range w.Net.Nodes[:2] {
		n := &node{}
		if n.Node, err = w.NewNode(machine, machine.Name); err != nil {
			return err
		}
		w.nodes = append(w.nodes, n)
	}
	if err := w.StartKubernetes(ctx, "--nodes", fmt.Sprint(len(w.nodes))); err != nil {
		return err
	}
	w.Say("Kubernetes runs, with %d nodes", len(w.nodes))
	return nil
}

// user returns a client with only the rights of a user.
func (w *testbed) user(name string, groups ...string) (client.Client, error) {
	cfg := rest.CopyConfig(w.REST)
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

// await calls look until it returns no problem, as lab.Wait.For.
func await(ctx context.Context, what string, look func(ctx context.Context) (string, error)) error {
	return lab.Wait{Limit: stepTimeout, Tick: pollInterval}.For(ctx, what, look)
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

// nft runs nft on a node and returns what it prints.
func (w *testbed) nft(ctx context.Context, n *node, args ...string) (string, error) {
	return w.Programs.Run(ctx, n.Do, "/usr/sbin/nft", args...)
}

func oneLine(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > 160 {
		text = text[:157] + "..."
	}
	return text
}
