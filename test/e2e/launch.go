package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
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
	err = runAll(p, stdout)
	switch {
	case err == harness.ErrInterrupted: //nolint:errorlint // joined with another error it is not clean
		_, _ = fmt.Fprintf(stderr, "e2e: %v\n", err)
		return 130
	case err != nil:
		_, _ = fmt.Fprintf(stderr, "e2e: FAILED (families %s, seed %d): %v\n", s.Families, s.Seed, err)
		return 1
	}
	_, _ = fmt.Fprintf(stdout, "e2e: OK families=%s lives=%d seed=%d, nothing is left, %.0f s\n", s.Families, s.Lives, s.Seed, time.Since(p.Start).Seconds())
	return 0
}

// runAll runs the program inside of the namespaces and cleans up after it.
func runAll(p plan, stdout io.Writer) (err error) {
	before, err := readHost()
	if err != nil {
		return err
	}
	if p.Work, err = harness.NewWork("e2e", programsDir); err != nil {
		return err
	}
	defer func() { err = p.Close(err, p.KeepLogs, stdout) }()
	err = p.Enter(p, stdout)
	if left := errors.Join(removeGroups(context.Background(), p.cgroup()), checkHost(before, p)); left != nil {
		err = errors.Join(err, left)
	}
	return err
}
