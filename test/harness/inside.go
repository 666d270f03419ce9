package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// The first arguments of the two programs inside of the namespaces.
const (
	initCommand = "process-1-inside-of-the-namespaces"
	workCommand = "work-inside-of-the-namespaces"
)

// errAsked is the cause of the end of a context when the user interrupts the run.
var errAsked = errors.New("asked to end")

// Interrupted reports whether the context of the work has ended because the user interrupts
// the run.
func Interrupted(ctx context.Context) bool { return context.Cause(ctx) == errAsked } //nolint:errorlint // it is never wrapped

// Inside is called in the first line of main. In a program that Enter has executed, it
// runs do and returns true with the exit code. The context of do ends when the user
// interrupts the run, or when one of the programs ends by itself.
func Inside(do func(ctx context.Context, w Work, programs *Processes) error) (code int, inside bool) {
	if len(os.Args) != 3 {
		return 0, false
	}
	w := Work(os.Args[2])
	switch os.Args[1] {
	case initCommand:
		return w.exitCode(w.asInit()), true
	case workCommand:
		ctx, cancel := context.WithCancelCause(context.Background())
		defer cancel(nil)
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, syscall.SIGTERM)
		go func() {
			<-signals
			cancel(errAsked)
		}()
		err := do(ctx, w, &Processes{Logs: w.Logs(), Failed: cancel})
		return w.exitCode(withCause(ctx, err)), true
	}
	return 0, false
}

// withCause returns the error of the work with the reason why its context ended. If the user
// has interrupted the run, it is ErrInterrupted, unless the error wraps that beside another one.
func withCause(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	switch {
	case err == nil || cause == nil || errors.Is(err, ErrInterrupted):
		return err
	case Interrupted(ctx):
		return ErrInterrupted
	case errors.Is(err, cause):
		return err
	}
	return errors.Join(cause, err)
}

// errReported is the error of a run whose reason the outer program knows already.
var errReported = errors.New("the reason is written")

// exitCode writes the reason of a failure for the outer program, and returns the exit
// code.
func (w Work) exitCode(err error) int {
	if err == nil {
		return 0
	}
	if err != errReported { //nolint:errorlint // it is never wrapped
		if err := os.WriteFile(w.reasonFile(), []byte(err.Error()), 0o600); err != nil {
			_, _ = fmt.Fprintln(os.Stderr, err)
		}
	}
	return 1
}

// asInit is process 1 of the PID namespace. Orphaned processes become its children, and
// only it may wait for them; the worker waits for its own children. When it ends, the
// kernel kills all processes of the namespace.
func (w Work) asInit() error {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM)
	if err := w.mountAll(); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	worker, err := syscall.ForkExec(self, []string{self, workCommand, string(w)}, &syscall.ProcAttr{
		Files: []uintptr{0, 1, 2}, Env: os.Environ(),
	})
	if err != nil {
		return fmt.Errorf("start the worker: %w", err)
	}
	go func() {
		for range signals {
			_ = syscall.Kill(worker, syscall.SIGTERM)
		}
	}()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return fmt.Errorf("wait for the worker: %w", err)
		case pid != worker:
		case status.Signaled():
			return fmt.Errorf("the inner program: %v", status.Signal())
		case status.ExitStatus() == 0:
			return nil
		default:
			return errReported
		}
	}
}

// mountAll makes the mount namespace private, with the processes of our own PID namespace
// in /proc, and two tmpfs. One of them is /run, where the plugin stores DELs.
func (w Work) mountAll() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=0755"); err != nil {
		return fmt.Errorf("mount a tmpfs at /run: %w", err)
	}
	// A user who cannot enter the work directory cannot reach it either.
	if err := unix.Mount("tmpfs", w.Tmpfs(), "tmpfs", 0, "mode=0755"); err != nil {
		return fmt.Errorf("mount a tmpfs at %s: %w", w.Tmpfs(), err)
	}
	return nil
}
