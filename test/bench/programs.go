package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"fairlead.dev/fairlead/test/netlab"
)

const (
	// stopTimeout is how long a program may take to end when it is asked to.
	stopTimeout = 10 * time.Second
	// stepTimeout bounds each thing that is waited for.
	stepTimeout = time.Minute
	// tick is the time between two looks at what tells nobody of its changes.
	tick = time.Millisecond
)

// crew is the programs that run. One that ends unasked ends the bench.
type crew struct {
	logs   string
	failed context.CancelCauseFunc
	count  int
}

// process is a program that was started.
type process struct {
	name, log string
	cmd       *exec.Cmd
	asked     chan struct{} // closed when it was asked to end
	done      chan struct{}
	err       error // set when done is closed
}

// command prepares a program whose output goes to a log of its own.
func (c *crew) command(name, path string, args ...string) (*process, error) {
	c.count++
	p := &process{
		name: name, log: filepath.Join(c.logs, fmt.Sprintf("%02d-%s.log", c.count, name)),
		cmd: exec.Command(path, args...), asked: make(chan struct{}), done: make(chan struct{}),
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", name, err)
	}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	return p, nil
}

// start starts a program in a network namespace.
func (c *crew) start(ns *netlab.Namespace, p *process) error {
	if err := ns.Start(p.cmd); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
		select {
		case <-p.asked:
		default:
			c.failed(p.ended())
		}
	}()
	return nil
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

// end asks a program to end and waits until it has. nil has ended.
func (p *process) end() error {
	if p == nil {
		return nil
	}
	close(p.asked)
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", p.name, err)
	}
	select {
	case <-p.done:
	case <-time.After(stopTimeout):
		_ = p.cmd.Process.Kill()
		return fmt.Errorf("%s did not stop within %v", p.name, stopTimeout)
	}
	return nil
}

// daemonHTTP talks to the metrics and health server of a daemon.
type daemonHTTP struct{ http.Client }

func newDaemonHTTP(socket string) *daemonHTTP {
	return &daemonHTTP{http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}}
}

// get returns the body of a path, or an error when the status is not 200.
func (d *daemonHTTP) get(ctx context.Context, path string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://daemon"+path, nil)
	if err != nil {
		return "", err
	}
	reply, err := d.Do(r)
	if err != nil {
		return "", err
	}
	defer reply.Body.Close()
	var body bytes.Buffer
	if _, err := body.ReadFrom(reply.Body); err != nil {
		return "", err
	}
	if reply.StatusCode != http.StatusOK {
		return "", fmt.Errorf("GET %s: %s: %s", path, reply.Status, bytes.TrimSpace(body.Bytes()))
	}
	return body.String(), nil
}

// await looks until look is content: it returns nil, or says what is missing.
func await(ctx context.Context, what string, look func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stepTimeout, fmt.Errorf("not within %v", stepTimeout))
	defer cancel()
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		last := look(ctx)
		if last == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s (%w): %w", what, last, context.Cause(ctx))
		case <-ticker.C:
		}
	}
}
