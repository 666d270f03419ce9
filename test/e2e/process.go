package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/test/netlab"
)

// stopTimeout is how long a program may take to end when it is asked to.
const stopTimeout = 30 * time.Second

// place is where processes run.
type place struct {
	net *netlab.Namespace
	mnt *os.File // mount namespace; nil: the test's own
}

// do runs fn inside, on a thread of its own.
func (p place) do(fn func() error) error {
	return p.net.Do(func() error {
		if p.mnt == nil {
			return fn()
		}
		// A thread that shares its root directory with others may not enter.
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return fmt.Errorf("leave the other threads: %w", err)
		}
		if err := unix.Setns(int(p.mnt.Fd()), unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("enter the mount namespace: %w", err)
		}
		return fn()
	})
}

// crew starts programs. One that ends without having been asked or killed fails
// the test.
type crew struct {
	logs   string
	env    []string
	failed context.CancelCauseFunc
}

// process is a program that runs.
type process struct {
	name     string
	log      string
	cmd      *exec.Cmd
	expected atomic.Bool // its end
	done     chan struct{}
	err      error // set when done is closed
}

// command prepares a program whose output goes to a log of its own.
func (c *crew) command(name, path string, args ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(c.logs, name+".log"), cmd: exec.Command(path, args...), done: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", name, err)
	}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.Env = c.env
	return p, nil
}

// start starts a program that runs until it is stopped.
func (c *crew) start(at place, p *process) error {
	err := at.do(p.cmd.Start)
	if log, ok := p.cmd.Stderr.(*os.File); ok {
		err = errors.Join(err, log.Close())
	}
	if err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
		if !p.expected.Load() {
			c.failed(p.ended())
		}
	}()
	return nil
}

// run runs a program to its end and returns what it printed.
func (c *crew) run(ctx context.Context, at place, path string, args ...string) (string, error) {
	var out bytes.Buffer
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr, cmd.Env = &out, &out, c.env
	if err := at.do(cmd.Start); err != nil {
		return "", fmt.Errorf("start %s: %w", filepath.Base(path), err)
	}
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })()
	if err := cmd.Wait(); err != nil {
		return out.String(), fmt.Errorf("%v: %w: %s", cmd.Args, errors.Join(err, context.Cause(ctx)), bytes.TrimSpace(out.Bytes()))
	}
	return out.String(), nil
}

// ended says how a program ended, with the end of its log.
func (p *process) ended() error {
	how := "exit status 0"
	if p.err != nil {
		how = p.err.Error()
	}
	return fmt.Errorf("%s ended: %s; the end of its log:\n%s", p.name, how, tail(p.log, 10))
}

// tail is the last lines of a file.
func tail(path string, lines int) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := bytes.Split(bytes.TrimSpace(raw), []byte("\n"))
	return string(bytes.Join(all[max(0, len(all)-lines):], []byte("\n")))
}

// kill ends a program with SIGKILL and waits until it is gone.
func (p *process) kill() {
	p.expected.Store(true)
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.done
}

// stop asks a program to end and waits until it has.
func (p *process) stop() error {
	p.expected.Store(true)
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", p.name, err)
	}
	select {
	case <-p.done:
		if p.err != nil {
			return fmt.Errorf("asked to stop: %w", p.ended())
		}
		return nil
	case <-time.After(stopTimeout):
		p.kill()
		return fmt.Errorf("%s did not stop within %v", p.name, stopTimeout)
	}
}
