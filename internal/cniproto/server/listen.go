package server

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"
)

const (
	// drainPause is how long nobody must have connected for the queue of a
	// listener that is going away to be taken for empty.
	drainPause = 50 * time.Millisecond
	// drainTime bounds that where no other listener took over and plugins go on
	// connecting. Whoever is in the queue then sends its request again.
	drainTime = 250 * time.Millisecond
)

// Listen listens on a unix socket at that path, of mode 0600, in a directory
// that it makes with mode 0700 if need be. The socket is made under another name
// and renamed, so that a daemon that takes over from another leaves no moment in
// which a connection is refused: who connected to the old one is served by it.
// The socket stays where it is when the listener is closed.
func Listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	temp := path + ".new"
	if err := os.Remove(temp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: temp, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false)
	err = os.Chmod(temp, 0o600)
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen on %s: %w", path, err), l.Close(), os.Remove(temp))
	}
	return l, nil
}

// errDrained is what a drainer's Accept ends with.
var errDrained = errors.New("no connection is waiting any more")

// drainer is a listener that can be left: those who wait in its queue are
// accepted, then nobody.
type drainer struct {
	net.Listener
	// until is when accepting ends, in Unix nanoseconds; 0 before leave.
	until atomic.Int64
}

// leave makes Accept end as soon as the queue is empty, also one that is waiting
// already.
func (d *drainer) leave() {
	until := time.Now().Add(drainTime)
	d.until.Store(until.UnixNano())
	d.pause(until)
}

// pause lets an Accept end in a moment.
func (d *drainer) pause(until time.Time) {
	if end := time.Now().Add(drainPause); end.Before(until) {
		until = end
	}
	if l, ok := d.Listener.(interface{ SetDeadline(t time.Time) error }); ok {
		_ = l.SetDeadline(until)
	}
}

// Accept is part of net.Listener.
func (d *drainer) Accept() (net.Conn, error) {
	if until := d.until.Load(); until != 0 {
		d.pause(time.Unix(0, until))
	}
	conn, err := d.Listener.Accept()
	if err != nil && d.until.Load() != 0 {
		return nil, errDrained
	}
	return conn, err
}
