package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// asInit is process 1 of the PID namespace. Shims of containerd and what its
// pods leave become its children, and only it may wait for them: the worker
// waits for its own. Its end is the end of all.
func asInit(planFile string, stderr io.Writer) int {
	fail := func(err error) int {
		_, _ = fmt.Fprintf(stderr, "e2e: %v\n", err)
		return 1
	}
	p, err := readPlan(planFile)
	if err != nil {
		return fail(err)
	}
	if err := settleIn(p); err != nil {
		return fail(err)
	}
	self, err := os.Executable()
	if err != nil {
		return fail(err)
	}
	worker, err := syscall.ForkExec(self, []string{self, workCommand, planFile}, &syscall.ProcAttr{
		Files: []uintptr{0, 1, 2}, Env: os.Environ(),
	})
	if err != nil {
		return fail(fmt.Errorf("start the worker: %w", err))
	}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM)
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
			return fail(fmt.Errorf("wait for the worker: %w", err))
		case pid == worker:
			if status.Exited() {
				return status.ExitStatus()
			}
			return fail(fmt.Errorf("the worker ended by %v", status.Signal()))
		}
	}
}

func readPlan(path string) (plan, error) {
	var p plan
	raw, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(raw, &p)
	}
	if err != nil {
		return p, fmt.Errorf("read the plan: %w", err)
	}
	return p, nil
}

// settleIn makes the mount namespace private, with the processes of our own
// PID namespace in /proc, and what the nodes write on tmpfs.
func settleIn(p plan) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	const quiet = unix.MS_NOSUID | unix.MS_NODEV
	if err := unix.Mount("proc", "/proc", "proc", quiet|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := unix.Mount("tmpfs", p.run(), "tmpfs", 0, "mode=0755"); err != nil {
		return fmt.Errorf("mount a tmpfs at %s: %w", p.run(), err)
	}
	if err := unix.Mount(p.Bin, p.programs(), "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s at %s: %w", p.Bin, p.programs(), err)
	}
	return nil
}
