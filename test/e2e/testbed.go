package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/test/harness"
	"fairlead.dev/fairlead/test/kubeclient"
	"fairlead.dev/fairlead/test/netlab"
)

const (
	nodeCount = 2
	// stepTimeout bounds every wait; idle machines need a fraction.
	stepTimeout = 10 * time.Minute
)

// testbed is the cluster of the test.
type testbed struct {
	plan
	harness.Reporter
	processes *harness.Processes
	lab       *netlab.Lab
	nodes     []*node
	// Client is the administrator's; it reads from the API server.
	client.Client
	rest        *rest.Config
	admin       string // the administrator's kubeconfig
	plane       *harness.Process
	controllers []*harness.Process
	// controllerSettings are the configuration that the controllers have in common.
	controllerSettings map[string]any
	// ranges are the ranges of the pool, IPv4 first: a pod has an address of each.
	ranges []netip.Prefix
	// objectsBefore are the names of all objects before an installation.
	objectsBefore map[string]bool
}

// runInside is the work inside of the namespaces.
func runInside(ctx context.Context, work harness.Work, programs *harness.Processes) error {
	var p plan
	if err := work.ReadPlan(&p); err != nil {
		return err
	}
	if err := unix.Mount(p.Bin, p.programs(), "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s at %s: %w", p.Bin, p.programs(), err)
	}
	ctrl.SetLogger(logr.Discard())
	w := &testbed{plan: p, Reporter: harness.Reporter{Out: os.Stdout, Start: p.Start}, processes: programs}
	path := strings.Join([]string{filepath.Join(p.programs(), "containerd"), os.Getenv("PATH"), "/usr/sbin", "/sbin"}, ":")
	programs.Env = []string{"PATH=" + path, "TMPDIR=" + p.Tmpfs(), "HOME=/"}
	for _, name := range helmVariables {
		programs.Env = append(programs.Env, name+"="+filepath.Join(p.Tmpfs(), "helm"))
	}
	err := w.build(ctx)
	if err == nil {
		err = w.runScenarios(ctx)
	}
	if err != nil {
		err = errors.Join(err, w.keepPodLogs())
	}
	return err
}

// build creates the nodes and the control plane. Nothing runs on the nodes yet.
func (w *testbed) build(ctx context.Context) error {
	var err error
	if w.lab, err = netlab.New(ctx, netlab.Config{Nodes: nodeCount, Here: true, IPv6Only: w.Families == ipv6}); err != nil {
		return err
	}
	all, err := images(w.programs())
	if err != nil {
		return err
	}
	if w.upgrades() {
		old, err := fairleadOf(filepath.Join(w.programs(), oldDir), oldImageTag)
		if err != nil {
			return err
		}
		all = append(all, old)
	}
	var dns []string
	if w.Only == onlyConformance {
		more, err := suiteImages(w.programs())
		if err != nil {
			return err
		}
		all, dns = append(all, more...), []string{dnsAddress}
	}
	archive := filepath.Join(w.Tmpfs(), "images.tar")
	if err := writeImages(archive, all); err != nil {
		return err
	}
	if err := w.startControlPlane(ctx); err != nil {
		return err
	}
	for _, machine := range w.lab.Nodes {
		n := &node{
			name: machine.Name, dir: filepath.Join(w.Tmpfs(), machine.Name), programs: w.programs(), images: archive, podRanges: w.Families.ranges(),
			dns: dns, clocked: w.Clocked,
			cgroup: w.cgroup() + "/" + machine.Name, processes: w.processes, machine: machine,
			kubeletConfig: filepath.Join(w.Kubelab(), machine.Name+".kubeconfig"),
			proxyConfig:   filepath.Join(w.Kubelab(), "kube-proxy.kubeconfig"),
		}
		if err := n.prepare(); err != nil {
			return err
		}
		w.nodes = append(w.nodes, n)
	}
	return nil
}

// startControlPlane runs Kubernetes on the switch.
func (w *testbed) startControlPlane(ctx context.Context) error {
	k, err := w.processes.StartKubernetes(ctx, w.lab.Switch.Do, filepath.Join(w.programs(), "kubelab"), "--dir", w.Kubelab(),
		"--nodes", fmt.Sprint(nodeCount), "--node-lifecycle", "--bind", w.lab.Switch.Addresses()[0].Addr().String())
	if err != nil {
		return err
	}
	w.admin, w.plane = k.Kubeconfig, k.Process
	if w.rest, w.Client, err = kubeclient.Connect(w.admin); err != nil {
		return err
	}
	w.Say("Kubernetes runs")
	return nil
}

// await calls look until it returns no problem. look returns the present problem, or
// empty for none.
func (w *testbed) await(ctx context.Context, what string, look func(ctx context.Context) (string, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stepTimeout, fmt.Errorf("not within %v", stepTimeout))
	defer cancel()
	last, said := "", time.Now()
	err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		not, err := look(ctx)
		if ctx.Err() != nil {
			return false, nil //nolint:nilerr // the context has the cause
		}
		last = not
		if not != "" && time.Since(said) > progressInterval {
			w.Say("  %s: %s", what, not)
			said = time.Now()
		}
		return not == "" && err == nil, err
	})
	if err != nil {
		return fmt.Errorf("waiting for %s (%s): %w", what, last, errors.Join(context.Cause(ctx), err))
	}
	return nil
}

const (
	// pollInterval is the time between two checks of a state that has no events.
	pollInterval     = 100 * time.Millisecond
	progressInterval = 5 * time.Second
)

// from returns an HTTP client in a network namespace.
func from(ns *netlab.Namespace) *http.Client {
	return &http.Client{
		Timeout: 2 * time.Minute, // longer than a pod's requests to others take
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
				// The target is an address and not a name, so that the dialer starts no
				// goroutine, which would be outside of the namespace.
				if _, err := netip.ParseAddrPort(addr); err != nil {
					return nil, err
				}
				err = ns.Do(func() error {
					conn, err = (&net.Dialer{}).DialContext(ctx, network, addr)
					return err
				})
				return conn, err
			},
		},
	}
}

// get sends a request from within a network namespace.
func get(ctx context.Context, ns *netlab.Namespace, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := from(ns).Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, body)
	}
	return string(body), err
}
