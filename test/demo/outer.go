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
		_, _ = fmt.Fprintf(stderr, "demo: %v\n", err)
		return 2
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ipv4Only := !hasIPv6()
	if lacks := preflight(ctx, s, ipv4Only); len(lacks) > 0 {
		_, _ = fmt.Fprintln(stderr, "demo: this machine lacks what the demo needs; nothing was done:")
		for _, lack := range lacks {
			_, _ = fmt.Fprintln(stderr, "  -", lack)
		}
		return 3
	}
	result, err := show(ctx, s, ipv4Only, stdout)
	if err == errInterrupted { //nolint:errorlint // joined with another error it is not clean
		_, _ = fmt.Fprintln(stderr, "demo: interrupted; everything is removed")
		return 130
	}
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "demo: FAILED: %v\n", err)
		return 1
	}
	_, _ = fmt.Fprintf(stdout, "demo: OK nodes=%d pods=%d pings=%d/%d leaked=0\n", s.Nodes, s.Pods, result.Pings, result.Pairs)
	return 0
}

// show runs the inner program and cleans up after it.
func show(ctx context.Context, s settings, ipv4Only bool, stdout io.Writer) (result outcome, err error) {
	before, err := readHost()
	if err != nil {
		return result, err
	}
	work, err := os.MkdirTemp("", "fairlead-demo-")
	if err != nil {
		return result, fmt.Errorf("make a work directory: %w", err)
	}
	p := plan{settings: s, ID: newID(), Start: time.Now(), Work: work, IPv4Only: ipv4Only}
	keepLogs := s.KeepLogs
	defer func() {
		failed := err != nil && err != errInterrupted //nolint:errorlint // joined with another error it is a failure
		if removeErr := removeWork(p, keepLogs || failed); removeErr != nil {
			err, failed = errors.Join(err, removeErr), true
		}
		switch {
		case failed:
			err = fmt.Errorf("%w\nlogs: %s", err, p.logs())
		case keepLogs:
			_, _ = fmt.Fprintf(stdout, "logs: %s\n", p.logs())
		}
	}()
	if err := prepareWork(p); err != nil {
		return result, err
	}
	if s.Kubeconfig != "" {
		proxy, err := serveAPI(ctx, s.Kubeconfig, p.apiSocket())
		if err != nil {
			return result, err
		}
		defer proxy.Close()
	}
	err = runInner(p, stdout)
	if leakErr := checkHost(before, p, stdout); leakErr != nil {
		err = errors.Join(err, leakErr)
	}
	if err != nil {
		return result, err
	}
	raw, err := os.ReadFile(p.doneFile())
	if err != nil {
		return result, fmt.Errorf("the inner program ended without a result: %w", err)
	}
	return result, json.Unmarshal(raw, &result)
}

func prepareWork(p plan) error {
	for _, dir := range []string{p.logs(), p.run()} {
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
	entries, err := os.ReadDir(p.Work)
	if err != nil {
		return err
	}
	var errs []error
	// Kubernetes logs into its own directory.
	if err := os.Rename(filepath.Join(p.kubelab(), "kubelab.log"), filepath.Join(p.logs(), "kubernetes.log")); err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	for _, entry := range entries {
		if path := filepath.Join(p.Work, entry.Name()); path != p.logs() {
			errs = append(errs, os.RemoveAll(path))
		}
	}
	return errors.Join(errs...)
}

// runInner executes this program again in namespaces of its own and waits for
// its end. A signal asks it to end in order, a second one ends it at once;
// with it end all processes in its PID namespace.
func runInner(p plan, stdout io.Writer) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the demo's own executable: %w", err)
	}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)

	// Pdeathsig follows the thread that starts the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.Command(self, innerCommand, p.planFile())
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
			switch {
			case asked && err != nil && interrupted(p):
				return errInterrupted
			case err != nil:
				return innerError(p, err)
			}
			return nil
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

// interrupted says whether the inner program was ended, or ended in order and
// has no other reason.
func interrupted(p plan) bool {
	reason, err := os.ReadFile(p.reasonFile())
	return errors.Is(err, os.ErrNotExist) || err == nil && string(reason) == errInterrupted.Error()
}

// innerError is the inner program's own reason, or how it ended.
func innerError(p plan, err error) error {
	reason, readErr := os.ReadFile(p.reasonFile())
	if readErr != nil {
		return fmt.Errorf("the inner program: %w", err)
	}
	return errors.New(string(reason))
}

func (p plan) reasonFile() string { return filepath.Join(p.Work, "reason") }
