package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"fairlead.dev/fairlead/test/harness"
	"fairlead.dev/fairlead/test/lab"
	"fairlead.dev/fairlead/test/netlab"
)

// launch is the program that the user starts. It returns the exit code: 0 for success, 1
// for a failure, 2 for a wrong command line, 3 if the machine lacks something, 130 after
// Ctrl-C.
func launch(args []string, stdout, stderr io.Writer) int {
	s, err := parseFlags(args, stderr)
	if err != nil {
		return harness.WrongFlags("demo", err, stderr)
	}
	if s.OpenStack {
		_, _ = fmt.Fprintln(stderr, "demo: --openstack: only with up or play")
		return 2
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ipv4Only := !netlab.HasIPv6()
	if lacks := preflight(ctx, s, ipv4Only); len(lacks) > 0 {
		return harness.Refuse("demo", "the demo", lacks, stderr)
	}
	if s.Check {
		return 0
	}
	result, err := show(ctx, s, ipv4Only, stdout)
	if err != nil {
		return harness.Failed("demo", err, stderr)
	}
	_, _ = fmt.Fprintf(stdout, "demo: OK nodes=%d pods=%d pings=%d/%d leaked=0\n", s.Nodes, s.Pods, result.Pings, result.Pairs)
	return 0
}

// show runs the inner program and cleans up after it.
func show(ctx context.Context, s settings, ipv4Only bool, stdout io.Writer) (result outcome, err error) {
	work, err := harness.NewWork("demo")
	if err != nil {
		return result, err
	}
	defer func() { err = work.Close(err, s.KeepLogs, stdout) }()
	p := plan{settings: s, ID: newID(), Start: time.Now(), Work: work, IPv4Only: ipv4Only}
	if s.Kubeconfig != "" {
		proxy, err := serveAPI(ctx, s.Kubeconfig, p.apiSocket())
		if err != nil {
			return result, err
		}
		defer proxy.Close()
	}
	err = lab.Enter(work, p, &result, stdout, podNamespaces)
	return result, err
}

// podNamespaces is the pattern of the network namespaces of pods.
const podNamespaces = "/run/netns/podrunner-*"
