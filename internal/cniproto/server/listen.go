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
	// drainPause is the time without a new connection after which the queue of a listener
	// that is going away counts as empty.
	drainPause = 50 * time.Millisecond
	// drainTime is the longest time for which the queue is drained. It matters if no
	// other listener has taken over and plugins go on connecting. A plugin whose
	// connection is still in the queue then sends its ADD or DEL again.
	drainTime = 250 * time.Millisecond
)

// Listen listens on a unix socket at path, with mode 0600. If its directory does not exist,
// Listen creates it with mode 0700. The socket is created under another name and renamed,
// so that no connection is refused while one daemon takes over from another: the old
// daemon serves the connections to the old socket. Closing the listener does not remove
// the socket.
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

// errDrained is the error of a drainer's Accept if the queue is empty.
var errDrained = errors.New("no connection is waiting any more")

// drainer is a listener that can be drained: it accepts the connections in its queue, then
// no more.
type drainer struct {
	net.Listener
	// until is the time at which accepting ends, in Unix nanoseconds; 0 before drain.
	until atomic.Int64
}

// drain makes Accept end as soon as the queue is empty. It also ends an Accept that is
// already waiting.
func (d *drainer) drain() {
	until := time.Now().Add(drainTime)
	d.until.Store(until.UnixNano())
	d.limitAccept(until)
}

// limitAccept makes Accept end after drainPause without a connection, but not after until.
func (d *drainer) limitAccept(until time.Time) {
	if end := time.Now().Add(drainPause); end.Before(until) {
		until = end
	}
	if l, ok := d.Listener.(interface{ SetDeadline(t time.Time) error }); ok {
		_ = l.SetDeadline(until)
	}
}

// Accept implements net.Listener.
func (d *drainer) Accept() (net.Conn, error) {
	if until := d.until.Load(); until != 0 {
		d.limitAccept(time.Unix(0, until))
	}
	conn, err := d.Listener.Accept()
	if err != nil && d.until.Load() != 0 {
		return nil, errDrained
	}
	return conn, err
}
