package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/test/harness"
	"fairlead.dev/fairlead/test/lab"
)

const (
	// stepTimeout bounds each wait.
	stepTimeout = time.Minute
	// tick is the time between two checks of a state that has no events.
	tick = time.Millisecond
)

// processes are the running programs; if one ends unexpectedly, the bench ends. It
// numbers their logs, because many programs of one name run one after the other.
type processes struct {
	*harness.Processes
	count int
}

func (c *processes) command(name, path string, args ...string) (*harness.Process, error) {
	c.count++
	return c.Command(fmt.Sprintf("%02d-%s", c.count, name), path, args...)
}

// daemonHTTP talks to the metrics and health server of a daemon.
type daemonHTTP struct{ *http.Client }

func newDaemonHTTP(socket string) *daemonHTTP { return &daemonHTTP{harness.AtSocket(socket)} }

// get returns the body of a path, or an error if the status is not 200.
func (d *daemonHTTP) get(ctx context.Context, path string) (string, error) {
	return harness.Get(ctx, d.Client, "http://daemon"+path)
}

// await calls look until it returns nil. The error of look names the missing thing.
func await(ctx context.Context, what string, look func(ctx context.Context) error) error {
	return lab.Wait{Limit: stepTimeout, Tick: tick}.ForNil(ctx, what, look)
}

// post sends a request to fairlead-node as the plugin does. The plugin's own client keeps
// a thread for each waiting call; 16 of them at once would cost this process a fifth of
// an ADD, on the measured processors.
func (w *testbed) post(ctx context.Context, r cniproto.Request) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", w.cniSocket())
	if err != nil {
		return err
	}
	defer conn.Close()
	message, err := r.Encode()
	if err != nil {
		return err
	}
	if err := conn.SetDeadline(time.Now().Add(stepTimeout)); err != nil {
		return err
	}
	if _, err := conn.Write(message); err != nil {
		return err
	}
	if _, err = cniproto.DecodeAnswer(conn); err != nil {
		err = fmt.Errorf("%s: %w", r.Verb, err)
	}
	return err
}
