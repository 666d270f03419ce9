package main

import (
	"context"
	"encoding/json"
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

// world is all that exists while the attacks are tried.
type world struct {
	plan
	harness.Reporter
	crew *harness.Crew
	lab  *netlab.Lab
	// outsider is a machine on the nodes' link that is no node.
	outsider *netlab.Namespace
	nodes    []*node
	// Client is the administrator's; it reads from the API server.
	client.Client
	rest  *rest.Config
	admin string // the administrator's kubeconfig
	// leading began first and leads, unless an attack changed that.
	leading, standby *harness.Process
	changes          int // of the leader
	forging          forging
	settings         map[string]any // of controllers, beside the usual ones
	byHand           types.UID      // of a pod whose record an operator deleted
	victims          *victims
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

// inner is the work inside of the namespaces that the outer program made.
func inner(ctx context.Context, work harness.Work) error {
	var p plan
	if err := work.ReadPlan(&p); err != nil {
		return err
	}
	ctrl.SetLogger(logr.Discard())
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := &world{plan: p, Reporter: harness.Reporter{Out: os.Stdout, Start: p.Start}, crew: &harness.Crew{Logs: p.Logs(), Failed: cancel}}
	result, err := w.story(ctx)
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) {
		err = errors.Join(cause, err)
	}
	if err != nil {
		return err
	}
	raw, err := json.Marshal(result)
	if err != nil {
		return err
	}
	return os.WriteFile(p.verdictFile(), raw, 0o600)
}

// story builds the cluster, tries the attacks, and then those whose lock is open.
func (w *world) story(ctx context.Context) (result verdict, err error) {
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

// build makes the nodes, the outsider and the control plane.
func (w *world) build(ctx context.Context) (err error) {
	if w.lab, err = netlab.New(ctx, netlab.Config{Nodes: 3, Here: true}); err != nil {
		return err
	}
	// The last machine of the link has an address there and nothing else.
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
	k, err := w.crew.StartKubernetes(ctx, w.lab.Switch.Do, filepath.Join(w.Bin, "kubelab"),
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

// user is a client with the rights of a user and no others.
func (w *world) user(name string, groups ...string) (client.Client, error) {
	cfg := rest.CopyConfig(w.rest)
	cfg.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: append(groups, "system:authenticated")}
	return kubeclient.New(cfg)
}

// holding is a client with the credentials of a node's daemon.
func (w *world) holding(kubeconfig string) (client.Client, error) {
	_, c, err := kubeclient.Connect(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("credentials of a node: %w", err)
	}
	return c, nil
}

const (
	// stepTimeout bounds what has to come.
	stepTimeout = 90 * time.Second
	// lookInterval is the time between two looks at something that tells nobody
	// when it changes.
	lookInterval = 50 * time.Millisecond
)

// await looks until there is nothing that is not as it should be. look returns what
// is not.
func await(ctx context.Context, what string, look func(ctx context.Context) (string, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stepTimeout, fmt.Errorf("not within %v", stepTimeout))
	defer cancel()
	last := ""
	err := wait.PollUntilContextCancel(ctx, lookInterval, true, func(ctx context.Context) (bool, error) {
		not, err := look(ctx)
		if ctx.Err() != nil {
			return false, nil //nolint:nilerr // it says so itself
		}
		last = not
		return not == "" && err == nil, err
	})
	if err != nil {
		return fmt.Errorf("waiting for %s (%s): %w", what, last, errors.Join(context.Cause(ctx), err))
	}
	return nil
}

// within looks for the effect of an attack for a time, and says whether it came. The
// last look is when the time is up.
func within(ctx context.Context, limit time.Duration, look func(ctx context.Context) (bool, error)) (seen bool, err error) {
	deadline := time.Now().Add(limit)
	err = wait.PollUntilContextCancel(ctx, lookInterval, true, func(ctx context.Context) (bool, error) {
		late := time.Now().After(deadline)
		seen, err = look(ctx)
		return seen || late, err
	})
	return seen, err
}

// stopped runs fn while a program is stopped, as one that hangs.
func stopped(p *harness.Process, fn func() error) error {
	if err := p.Cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return errors.Join(fn(), p.Cmd.Process.Signal(syscall.SIGCONT))
}

func (w *world) kubectl(ctx context.Context, args ...string) error {
	args = append([]string{"kubectl", "--kubeconfig", w.admin}, args...)
	_, err := w.crew.Run(ctx, w.lab.Switch.Do, filepath.Join(w.Bin, "kubelab"), args...)
	return err
}

// nft runs nft on a node and returns what it prints.
func (w *world) nft(ctx context.Context, n *node, args ...string) (string, error) {
	return w.crew.Run(ctx, n.Do, "/usr/sbin/nft", args...)
}

func oneLine(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > 160 {
		text = text[:157] + "..."
	}
	return text
}
