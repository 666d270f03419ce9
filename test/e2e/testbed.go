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
	ctrl "sigs.k8s.io/controller-runtime"

	"fairlead.dev/fairlead/test/harness"
	"fairlead.dev/fairlead/test/lab"
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
	*lab.Cluster
	nodes       []*node
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
	w := &testbed{plan: p, Cluster: &lab.Cluster{
		Reporter: harness.Reporter{Out: os.Stdout, Start: p.Start}, Dir: work, Bin: p.programs(), Programs: programs,
	}}
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
	if w.Net, err = netlab.New(ctx, netlab.Config{Nodes: nodeCount, Here: true, IPv6Only: w.Families == ipv6}); err != nil {
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
	if err := w.StartKubernetes(ctx, "--nodes", fmt.Sprint(nodeCount), "--node-lifecycle"); err != nil {
		return err
	}
	w.Say("Kubernetes runs")
	for _, machine := range w.Net.Nodes {
		n := &node{
			name: machine.Name, dir: filepath.Join(w.Tmpfs(), machine.Name), programs: w.programs(), images: archive, podRanges: w.Families.ranges(),
			dns: dns, clocked: w.Clocked,
			cgroup: w.cgroup() + "/" + machine.Name, processes: w.Programs, machine: machine,
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

// await calls look until it returns no problem, as lab.Wait.For.
func (w *testbed) await(ctx context.Context, what string, look func(ctx context.Context) (string, error)) error {
	say := func(format string, args ...any) { w.Say(format, args...) }
	return lab.Wait{Limit: stepTimeout, Tick: pollInterval, Say: say, Pause: progressInterval}.For(ctx, what, look)
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
