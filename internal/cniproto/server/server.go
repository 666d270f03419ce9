// Package server is the node daemon's side of the CNI socket.
package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"fairlead.dev/fairlead/internal/cniproto"
)

const (
	// ioTimeout is the limit for the arrival of a request, and for that of an answer.
	ioTimeout = 5 * time.Second
	// leaveAfter is the time after the stop in which ordinary requests are expected to
	// end. Requests that take longer are assumed to wait for others.
	leaveAfter = time.Second
	// stopTimeout is the limit for requests that are being served when the daemon stops.
	// Kubernetes kills the daemon after 30 seconds.
	stopTimeout = 25 * time.Second
	// levelCall is the log level of each call.
	levelCall = 2
)

// ErrResend is the error of a request that a Handler has not carried out, or has undone,
// because the daemon is stopping. The plugin sends an ADD or DEL again, to the next daemon.
var ErrResend error = &cniproto.Error{Code: cniproto.CodeTryAgainLater, Msg: "the daemon is stopping: send the request to the next daemon"}

// Handler serves requests.
type Handler interface {
	// Handle serves one request and returns the output of the plugin, nil for none. The
	// request is valid by the rules of CNI. ctx ends when the plugin is gone or gives
	// up. An error that is not a *cniproto.Error is answered with CodeInternal. Many
	// goroutines call Handle concurrently.
	Handle(ctx context.Context, r cniproto.Request) (result []byte, err error)
}

// Config has the options of Serve.
type Config struct {
	// Metrics registers the server's metrics; if nil, they are not registered.
	Metrics prometheus.Registerer
	// UID is the user whose processes are served. The zero value is root.
	UID uint32
	// Leave, if not nil, is called one second after the server has stopped accepting, if
	// requests are still being served. The handler then ends the requests that only wait
	// for others, with ErrResend: the next daemon starts only after they have ended.
	Leave func()
}

// Serve serves the listener until ctx ends. Then it accepts only the connections that are
// already in the queue, and returns when all requests are answered. After 25 seconds it
// cancels the remaining requests and returns an error. It logs to ctx's logger, which
// handlers find in their context.
func Serve(ctx context.Context, l net.Listener, h Handler, c Config) error {
	m, err := newMetrics(c.Metrics)
	if err != nil {
		return errors.Join(fmt.Errorf("register metrics: %w", err), l.Close())
	}
	s := &server{
		handler: h, uid: c.UID, metrics: m, leave: c.Leave,
		ioTimeout: ioTimeout, leaveAfter: leaveAfter, stopTimeout: stopTimeout,
	}
	return s.run(ctx, l)
}

type server struct {
	handler Handler
	uid     uint32
	metrics *metrics
	leave   func() // or nil

	ioTimeout, leaveAfter, stopTimeout time.Duration
}

func (s *server) run(ctx context.Context, l net.Listener) error {
	serving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	queue := &drainer{Listener: l}
	defer context.AfterFunc(ctx, queue.drain)()
	var open sync.WaitGroup
	if err := s.accept(serving, queue, &open); !errors.Is(err, errDrained) {
		return fmt.Errorf("serve CNI: %w", errors.Join(err, l.Close()))
	}
	if err := l.Close(); err != nil {
		return fmt.Errorf("serve CNI: %w", err)
	}
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		open.Wait()
	}()
	patience, giveUp := context.WithTimeout(serving, s.stopTimeout)
	defer giveUp()
	if s.leave != nil { // no request comes back to this daemon: it no longer listens
		defer time.AfterFunc(s.leaveAfter, s.leave).Stop()
	}
	select {
	case <-finished:
		return nil
	case <-patience.Done():
		return fmt.Errorf("requests not answered %v after the stop are cancelled: %w", s.stopTimeout, patience.Err())
	}
}

const (
	// firstPause and longestPause are the shortest and the longest pause between two
	// attempts to accept while the process is out of files or memory.
	firstPause   = 5 * time.Millisecond
	longestPause = time.Second
)

// accept serves each connection until Accept fails, and returns its error.
func (s *server) accept(ctx context.Context, l net.Listener, open *sync.WaitGroup) error {
	pause := firstPause
	for {
		conn, err := l.Accept()
		switch {
		case err == nil:
			pause = firstPause
			open.Go(func() { s.serveConn(ctx, conn) })
		case outOfResources(err):
			logr.FromContextOrDiscard(ctx).Error(err, "connection not accepted, trying again", "after", pause)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			pause = min(2*pause, longestPause)
		default:
			return err
		}
	}
}

// outOfResources reports whether an error of accept(2) is temporary.
func outOfResources(err error) bool {
	for _, temporary := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED} {
		if errors.Is(err, temporary) {
			return true
		}
	}
	return false
}

// serveConn reads, serves and answers the one request of a connection.
func (s *server) serveConn(ctx context.Context, conn net.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer conn.Close() //nolint:errcheck // the answer has been written
	var result []byte
	r, err := s.read(conn)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, os.ErrDeadlineExceeded):
		return // no request came, or not all of it in time: the plugin tries again
	case err != nil:
		s.metrics.count(r.Verb, err)
	default:
		// The plugin sends no more data: this read ends when either side closes the
		// connection.
		go func() {
			_, _ = conn.Read(make([]byte, 1))
			cancel()
		}()
		result, err = s.serve(ctx, r)
	}
	_ = conn.SetWriteDeadline(time.Now().Add(s.ioTimeout))
	_, _ = conn.Write(answer(result, err, r.CNIVersion()).Encode()) // if this fails, the plugin is gone
}

// read reads a request and validates it. It reads nothing from a user that is not served.
// It returns io.EOF if the connection ends before the first byte. With any other error, the
// request has the parts that were read.
func (s *server) read(conn net.Conn) (r cniproto.Request, err error) {
	if err := s.checkPeer(conn); err != nil {
		return r, err
	}
	// The deadline only limits the arrival of the request.
	if err := conn.SetReadDeadline(time.Now().Add(s.ioTimeout)); err != nil {
		return r, err
	}
	r, err = cniproto.DecodeRequest(conn)
	if err == nil {
		err = r.Validate()
	}
	if err == nil {
		err = conn.SetReadDeadline(time.Time{})
	}
	return r, err
}

// serve passes a valid request to the handler, within the time that is left for it. It logs
// and counts the outcome.
func (s *server) serve(ctx context.Context, r cniproto.Request) (result []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeLeft(r))
	defer cancel()
	start := time.Now()
	finish := s.metrics.start(r.Verb)
	defer func() {
		finish(err)
		logr.FromContextOrDiscard(ctx).V(levelCall).Info("request served", "requestID", r.RequestID, "plugin", r.Release,
			"verb", r.Verb, "sandbox", r.ContainerID, "code", code(err), "duration", time.Since(start))
	}()
	return s.handle(ctx, r)
}

// handle calls the handler and returns a panic of the handler as an error.
func (s *server) handle(ctx context.Context, r cniproto.Request) (result []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%s failed inside the daemon: panic: %v", r.Verb, p)
			logr.FromContextOrDiscard(ctx).Error(err, "handler panicked", "sandbox", r.ContainerID, "stack", string(debug.Stack()))
		}
	}()
	return s.handler.Handle(ctx, r)
}

// timeLeft returns the time that the plugin still waits, at most the verb's Timeout.
func timeLeft(r cniproto.Request) time.Duration {
	left := cniproto.Timeout(r.Verb)
	if r.DeadlineMS > 0 && r.DeadlineMS < left.Milliseconds() {
		left = time.Duration(r.DeadlineMS) * time.Millisecond
	}
	return left
}

// code returns the CNI error code of an outcome, 0 for success.
func code(err error) int {
	if err == nil {
		return 0
	}
	return cniproto.AsError(err).Code
}

// answer returns the answer with an outcome. An error has the CNI version of the request.
func answer(result []byte, err error, version string) cniproto.Answer {
	switch {
	case err == nil:
		return cniproto.Answer{Result: result}
	case errors.Is(err, ErrResend):
		return cniproto.Answer{Stopping: true}
	}
	e := *cniproto.AsError(err)
	e.CNIVersion = cmp.Or(e.CNIVersion, version)
	return cniproto.Answer{Error: &e}
}

// errPeer means that the caller runs as a user that is not served.
var errPeer = errors.New("caller is not served")

// checkPeer returns an error unless the process at the other end of conn runs as the served
// user. The user ID comes from the kernel.
func (s *server) checkPeer(conn net.Conn) error {
	uid, err := peerOf(conn)
	if err != nil {
		return fmt.Errorf("%w: its user ID cannot be read: %w", errPeer, err)
	}
	if uid != s.uid {
		return fmt.Errorf("%w: it has user ID %d, must have %d", errPeer, uid, s.uid)
	}
	return nil
}

// peerOf returns the user ID of the process at the other end of conn.
func peerOf(conn net.Conn) (uid uint32, err error) {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return 0, fmt.Errorf("connection of type %T: must be one of a unix socket", conn)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var credErr error
	err = raw.Control(func(fd uintptr) {
		var cred *syscall.Ucred
		if cred, credErr = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); credErr == nil {
			uid = cred.Uid
		}
	})
	return uid, errors.Join(err, credErr)
}
