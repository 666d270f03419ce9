package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// errInterrupted says that the user wants no more.
var errInterrupted = errors.New("interrupted")

// outer is the program that the user starts. It returns the exit code: 0 for
// success, 1 for a failure, 2 for a wrong command line, 3 when the machine
// lacks something, 130 after Ctrl-C.
func outer(args []string, stdout, stderr io.Writer) int {
	s, err := parseFlags(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "e2e: %v\n", err)
		return 2
	}
	if lacks := preflight(s); len(lacks) > 0 {
		_, _ = fmt.Fprintln(stderr, "e2e: this machine lacks what the test needs; nothing was done:")
		for _, lack := range lacks {
			_, _ = fmt.Fprintln(stderr, "  -", lack)
		}
		return 3
	}
	p := plan{settings: s, ID: newID(), Start: time.Now()}
	err = runAll(p, stdout)
	switch {
	case err == errInterrupted: //nolint:errorlint // joined with another error it is not clean
		_, _ = fmt.Fprintln(stderr, "e2e: interrupted; everything is removed")
		return 130
	case err != nil:
		_, _ = fmt.Fprintf(stderr, "e2e: FAILED (seed %d): %v\n", s.Seed, err)
		return 1
	}
	_, _ = fmt.Fprintf(stdout, "e2e: OK lives=%d seed=%d, nothing is left, %.0f s\n", s.Lives, s.Seed, time.Since(p.Start).Seconds())
	return 0
}

// runAll runs the inner programs and cleans up after them.
func runAll(p plan, stdout io.Writer) (err error) {
	before, err := readHost()
	if err != nil {
		return err
	}
	if p.Work, err = os.MkdirTemp("", "fairlead-e2e-"); err != nil {
		return fmt.Errorf("make a work directory: %w", err)
	}
	defer func() {
		failed := err != nil && err != errInterrupted //nolint:errorlint // joined with another error it is a failure
		if removeErr := removeWork(p, p.KeepLogs || failed); removeErr != nil {
			err, failed = errors.Join(err, removeErr), true
		}
		switch {
		case failed:
			err = fmt.Errorf("%w\nlogs: %s", err, p.logs())
		case p.KeepLogs:
			_, _ = fmt.Fprintf(stdout, "logs: %s\n", p.logs())
		}
	}()
	if err := prepareWork(p); err != nil {
		return err
	}
	err = runInner(p, stdout)
	if left := errors.Join(removeGroups(context.Background(), p.cgroup()), checkHost(before, p)); left != nil {
		err = errors.Join(err, left)
	}
	return err
}

func prepareWork(p plan) error {
	for _, dir := range []string{p.logs(), p.run(), p.programs()} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return fmt.Errorf("prepare the work directory: %w", err)
		}
	}
	raw, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("encode the plan: %w", err)
	}
	return os.WriteFile(p.planFile(), raw, 0o600)
}

// removeWork removes the work directory, all of it or all but the logs.
func removeWork(p plan, keepLogs bool) error {
	if !keepLogs {
		return os.RemoveAll(p.Work)
	}
	// Kubernetes logs into its own directory.
	err := os.Rename(filepath.Join(p.kubelab(), "kubelab.log"), filepath.Join(p.logs(), "kubernetes.log"))
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, os.RemoveAll(p.kubelab()), os.RemoveAll(p.run()), os.RemoveAll(p.programs()),
		os.RemoveAll(p.planFile()), os.RemoveAll(p.reasonFile()))
}

// runInner executes this program again in namespaces of its own and waits for
// its end. A signal asks it to end in order, a second one ends it at once;
// with it end all processes in its PID namespace.
func runInner(p plan, stdout io.Writer) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the test's own executable: %w", err)
	}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)

	// Pdeathsig follows the thread that starts the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.Command(self, initCommand, p.planFile())
	cmd.Stdout, cmd.Stderr = stdout, stdout
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET,
		Pdeathsig:  syscall.SIGKILL,
		Setsid:     true, // Ctrl-C reaches the outer program alone, which passes it on
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the inner program: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	asked := false
	for {
		select {
		case err := <-ended:
			if asked && err != nil {
				return errInterrupted
			}
			return innerError(p, err)
		case received := <-signals:
			if asked {
				_ = cmd.Process.Kill()
				continue
			}
			asked = true
			_, _ = fmt.Fprintf(stdout, "\n%v: cleaning up; once more to end at once\n", received)
			_ = cmd.Process.Signal(syscall.SIGTERM)
		}
	}
}

// innerError is the inner program's own reason, or how it ended.
func innerError(p plan, err error) error {
	if err == nil {
		return nil
	}
	reason, readErr := os.ReadFile(p.reasonFile())
	if readErr != nil {
		return fmt.Errorf("the inner program: %w", err)
	}
	return errors.New(string(reason))
}
