package harness

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
)

// stopTimeout is how long a program may take to end when it is asked to.
const stopTimeout = 30 * time.Second

// Place runs a function on a thread in the namespaces of the place, like
// netlab.Namespace.Do.
type Place = func(fn func() error) error

// Processes starts programs, each with a log of its own.
type Processes struct {
	// Logs is the directory of the logs.
	Logs string
	// Env is the programs' environment; nil means that of this process.
	Env []string
	// Failed is called at once when a program ends that was neither stopped nor killed.
	// It is called from many goroutines.
	Failed func(error)
}

// Process is one program of Processes.
type Process struct {
	// Cmd may be changed before the program is started.
	Cmd *exec.Cmd
	// Log is the file of its output.
	Log string

	name     string
	expected atomic.Bool // its end is expected
	done     chan struct{}
	err      error // set when done is closed
}

// Command prepares a program. Its output is appended to the log of this name.
func (c *Processes) Command(name, path string, args ...string) (*Process, error) {
	p := &Process{name: name, Log: filepath.Join(c.Logs, name+".log"), Cmd: exec.Command(path, args...), done: make(chan struct{})}
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", name, err)
	}
	p.Cmd.Stdout, p.Cmd.Stderr, p.Cmd.Env = log, log, c.Env
	return p, nil
}

// Start starts a program that runs until it is stopped.
func (c *Processes) Start(in Place, p *Process) error {
	if err := p.start(in); err != nil {
		return err
	}
	go func() {
		p.err = p.Cmd.Wait()
		close(p.done)
		if !p.expected.Load() {
			c.Failed(p.ended())
		}
	}()
	return nil
}

// start starts the program. Only the program has its log open then.
func (p *Process) start(in Place) error {
	err := in(p.Cmd.Start)
	if log, ok := p.Cmd.Stderr.(*os.File); ok {
		err = errors.Join(err, log.Close())
	}
	if err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	return nil
}

// Run runs a program to its end and returns its output, also in the error if it fails.
// When the context ends the program is killed.
func (c *Processes) Run(ctx context.Context, in Place, path string, args ...string) (string, error) {
	var out bytes.Buffer
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr, cmd.Env = &out, &out, c.Env
	if err := in(cmd.Start); err != nil {
		return "", fmt.Errorf("start %s: %w", filepath.Base(path), err)
	}
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })()
	if err := cmd.Wait(); err != nil {
		return out.String(), fmt.Errorf("%v: %w: %s", cmd.Args, errors.Join(err, context.Cause(ctx)), bytes.TrimSpace(out.Bytes()))
	}
	return out.String(), nil
}

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Expect marks the end of the program as expected: Failed is not called for it.
func (p *Process) Expect() { p.expected.Store(true) }

// Kill ends a program with SIGKILL and waits until it is gone.
func (p *Process) Kill() {
	p.Expect()
	_ = p.Cmd.Process.Kill() // it may have ended
	<-p.done
}

// Signal sends a signal to a program that runs, as SIGSTOP and SIGCONT.
func (p *Process) Signal(s syscall.Signal) error {
	if err := p.Cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("signal %v to %s: %w", s, p.name, err)
	}
	return nil
}

// Stop sends SIGTERM to a program and waits until it has ended. It kills a program that
// does not end in time. It returns nil for a program that ended by itself, because Failed
// was called for that.
func (p *Process) Stop() error { return p.stop(stopTimeout) }

func (p *Process) stop(timeout time.Duration) error {
	select {
	case <-p.done:
		return nil
	default:
	}
	p.Expect()
	if err := p.Cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", p.name, err)
	}
	select {
	case <-p.done:
		if p.err != nil {
			return fmt.Errorf("asked to stop: %w", p.ended())
		}
		return nil
	case <-time.After(timeout):
		p.Kill()
		return fmt.Errorf("%s did not stop within %v", p.name, timeout)
	}
}

// StopAll stops programs in parallel.
func StopAll(processes ...*Process) error {
	results := make(chan error, len(processes))
	for _, p := range processes {
		go func() { results <- p.Stop() }()
	}
	var errs []error
	for range processes {
		errs = append(errs, <-results)
	}
	return errors.Join(errs...)
}

// ended returns an error with the way in which a program ended and the end of its log.
func (p *Process) ended() error {
	how := "exit status 0"
	if p.err != nil {
		how = p.err.Error()
	}
	return fmt.Errorf("%s ended: %s; the end of its log:\n%s", p.name, how, tail(p.Log, 10))
}

// tail returns the last lines of a file.
func tail(path string, lines int) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := bytes.Split(bytes.TrimSpace(raw), []byte("\n"))
	return string(bytes.Join(all[max(0, len(all)-lines):], []byte("\n")))
}
