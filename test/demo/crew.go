package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"fairlead.dev/fairlead/test/netlab"
)

// stopTimeout is how long a program may take to end when it is asked to.
const stopTimeout = 10 * time.Second

// crew is the programs that run. One that ends unasked fails the demo.
type crew struct {
	logs   string
	failed context.CancelCauseFunc
}

// program is one that was started.
type program struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{}
	err  error // set when done is closed

	lock  sync.Mutex
	asked bool
}

// command prepares a program whose output goes to a log of its own.
func (c *crew) command(name, path string, args ...string) (*program, error) {
	p := &program{name: name, log: filepath.Join(c.logs, name+".log"), cmd: exec.Command(path, args...), done: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", name, err)
	}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	return p, nil
}

// start starts a program in a network namespace.
func (c *crew) start(ns *netlab.Namespace, p *program) error {
	if err := ns.Start(p.cmd); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
		p.lock.Lock()
		defer p.lock.Unlock()
		if !p.asked {
			c.failed(p.ended())
		}
	}()
	return nil
}

// ended says how a program ended, with the end of its log.
func (p *program) ended() error {
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

// stop asks a program to end and waits until it has. Of one that ended by
// itself its end has been reported.
func (p *program) stop() error {
	select {
	case <-p.done:
		return nil
	default:
	}
	p.lock.Lock()
	p.asked = true
	p.lock.Unlock()
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
		_ = p.cmd.Process.Kill()
		return fmt.Errorf("%s did not stop within %v", p.name, stopTimeout)
	}
}

// stopAll stops programs side by side.
func stopAll(programs ...*program) error {
	results := make(chan error, len(programs))
	for _, p := range programs {
		go func() { results <- p.stop() }()
	}
	var errs []error
	for range programs {
		errs = append(errs, <-results)
	}
	return errors.Join(errs...)
}
