package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"fairlead.dev/fairlead/test/harness"
	"fairlead.dev/fairlead/test/lab"
)

// launch is the program that the user starts. It returns the exit code: 0 for success, 1
// for a failure, 2 for a wrong command line, 3 if the machine lacks something, 130 after
// Ctrl-C.
func launch(args []string, stdout, stderr io.Writer) int {
	s, err := parseFlags(args, stderr)
	if err != nil {
		return harness.WrongFlags("e2e", err, stderr)
	}
	if lacks := preflight(s); len(lacks) > 0 {
		return harness.Refuse("e2e", "the test", lacks, stderr)
	}
	p := plan{settings: s, ID: newID(), Start: time.Now()}
	scenarios, err := runAll(p, stdout)
	if err != nil {
		if err != harness.ErrInterrupted { //nolint:errorlint // joined with another error it is not clean
			err = fmt.Errorf("families %s, seed %d: %w", s.Families, s.Seed, err)
		}
		return harness.Failed("e2e", err, stderr)
	}
	_, _ = fmt.Fprintf(stdout, "e2e: OK families=%s scenarios=%d seed=%d, nothing is left, %.0f s\n", s.Families, scenarios, s.Seed, time.Since(p.Start).Seconds())
	return 0
}

// runAll runs the program inside of the namespaces and cleans up after it. It returns the number
// of scenarios that passed.
func runAll(p plan, stdout io.Writer) (scenarios int, err error) {
	if p.Work, err = harness.NewWork("e2e", programsDir); err != nil {
		return 0, err
	}
	defer func() { err = p.Close(err, p.KeepLogs, stdout) }()
	err = lab.Enter(p.Work, p, &scenarios, stdout, remains...)
	if left := errors.Join(removeGroups(context.Background(), p.cgroup()), p.groupsLeft()); left != nil {
		err = errors.Join(err, left)
	}
	if err == nil && scenarios == 0 {
		err = errors.New("no scenario has run")
	}
	return scenarios, err
}

// remains are the files that kubelet, containerd, CNI and Fairlead make on a machine of their own.
var remains = []string{
	"/etc/cni/*", "/opt/cni/*", "/run/netns/cni-*", "/run/containerd/*", "/run/fairlead/*", "/var/lib/kubelet/*",
	"/var/lib/containerd/*", "/var/lib/cni/*", "/var/log/pods/*", "/var/log/containers/*",
}

// groupsLeft returns an error if processes of the run are left.
func (p plan) groupsLeft() error {
	left, err := groupProcesses(p.cgroup())
	if err != nil || len(left) > 0 {
		return fmt.Errorf("the test left on this machine: processes %v in the control group (%v)", left, err) //nolint:errorlint // there may be none
	}
	return nil
}
