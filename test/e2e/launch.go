package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"fairlead.dev/fairlead/test/harness"
)

// launch is the program that the user starts. It returns the exit code: 0 for success, 1
// for a failure, 2 for a wrong command line, 3 if the machine lacks something, 130 after
// Ctrl-C.
func launch(args []string, stdout, stderr io.Writer) int {
	s, err := parseFlags(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "e2e: %v\n", err)
		return 2
	}
	if lacks := preflight(s); len(lacks) > 0 {
		return harness.Refuse("e2e", "the test", lacks, stderr)
	}
	p := plan{settings: s, ID: newID(), Start: time.Now()}
	scenarios, err := runAll(p, stdout)
	switch {
	case err == harness.ErrInterrupted: //nolint:errorlint // joined with another error it is not clean
		_, _ = fmt.Fprintf(stderr, "e2e: %v\n", err)
		return 130
	case err != nil:
		_, _ = fmt.Fprintf(stderr, "e2e: FAILED (families %s, seed %d): %v\n", s.Families, s.Seed, err)
		return 1
	}
	_, _ = fmt.Fprintf(stdout, "e2e: OK families=%s scenarios=%d seed=%d, nothing is left, %.0f s\n", s.Families, scenarios, s.Seed, time.Since(p.Start).Seconds())
	return 0
}

// runAll runs the program inside of the namespaces and cleans up after it. It returns the number
// of scenarios that passed.
func runAll(p plan, stdout io.Writer) (scenarios int, err error) {
	before, err := readHost()
	if err != nil {
		return 0, err
	}
	if p.Work, err = harness.NewWork("e2e", programsDir); err != nil {
		return 0, err
	}
	defer func() { err = p.Close(err, p.KeepLogs, stdout) }()
	err = p.Enter(p, stdout)
	if left := errors.Join(removeGroups(context.Background(), p.cgroup()), checkHost(before, p)); left != nil {
		err = errors.Join(err, left)
	}
	if err != nil {
		return 0, err
	}
	return p.passed()
}

// passed returns the number of scenarios that the program inside of the namespaces has written.
// Errors: none was written, or it is 0.
func (p plan) passed() (int, error) {
	raw, err := os.ReadFile(p.passedFile())
	if err != nil {
		return 0, fmt.Errorf("the program inside of the namespaces ended without a result: %w", err)
	}
	n, err := strconv.Atoi(string(raw))
	if err == nil && n == 0 {
		err = errors.New("no scenario has run")
	}
	return n, err
}

func (p plan) passedFile() string { return p.Path("passed") }
