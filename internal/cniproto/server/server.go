// Package server is the node daemon's side of the CNI socket.
package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"fairlead.dev/fairlead/internal/cniproto"
)

const (
	// readTimeout bounds how long a request may take to arrive.
	readTimeout = 5 * time.Second
	// leaveAfter is how long after the stop requests are expected to be served
	// as always; those that take longer wait for others.
	leaveAfter = time.Second
	// stopTimeout bounds how long requests that are being served may take when
	// the daemon is told to stop; Kubernetes kills it after 30 seconds.
	stopTimeout = 25 * time.Second
	// levelCall is the log level of each call.
	levelCall = 2
)

// ErrResend is what a Handler returns for a request that it has not carried out, or
// has undone, and that the plugin is to send to the next daemon.
var ErrResend error = &cniproto.Error{Code: cniproto.CodeTryAgainLater, Msg: "the daemon ends: the next one is to be asked"}

// Handler serves requests.
type Handler interface {
	// Handle serves one request, which is valid as CNI demands, and
	// returns what the plugin prints, nil for nothing. ctx ends when the plugin
	// is gone or gives up. An error that is not a *cniproto.Error is answered as
	// one of CodeInternal. It is called by many goroutines at once.
	Handle(ctx context.Context, r cniproto.Request) (result []byte, err error)
}

// Config is what can be set.
type Config struct {
	// Metrics takes the server's metrics; nil keeps none.
	Metrics prometheus.Registerer
	// UID is the user whose processes are served, root if it is not set.
	UID uint32
	// Leave is called a second after the stop when requests are still being served.
	// The handler is then to end those that only wait for others, with ErrResend:
	// until they have ended there is no next daemon. nil calls nothing.
	Leave func()
}

// Serve serves the listener until ctx ends. Then those who wait in its queue are
// still accepted and nobody else, and it returns when all that are being served
// have their answers, or after 25 seconds, when they are cancelled. What is
// logged goes to ctx's logger, which handlers find in their context.
func Serve(ctx context.Context, l net.Listener, h Handler, c Config) error {
	m, err := newMetrics(c.Metrics)
	if err != nil {
		return errors.Join(fmt.Errorf("register metrics: %w", err), l.Close())
	}
	s := &server{
		handler: h, uid: c.UID, metrics: m, leave: c.Leave,
		readTimeout: readTimeout, leaveAfter: leaveAfter, stopTimeout: stopTimeout,
	}
	return s.run(ctx, l)
}

type server struct {
	handler Handler
	uid     uint32
	metrics *metrics
	leave   func() // or nil

	readTimeout, leaveAfter, stopTimeout time.Duration
}

func (s *server) run(ctx context.Context, l net.Listener) error {
	serving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	queue := &drainer{Listener: l}
	defer context.AfterFunc(ctx, queue.leave)()
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
	if s.leave != nil { // nobody comes back to this daemon: it does not listen any more
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
	// firstPause and longestPause lie between two attempts to accept when the
	// process is out of files or memory.
	firstPause   = 5 * time.Millisecond
	longestPause = time.Second
)

// idleTime is for how long a goroutine that has served waits for the next connection.
const idleTime = time.Second

// accept serves each connection until there are no more, and returns why. A
// goroutine that has served takes the next one: it has the stack already, which
// costs more to grow than a request to read.
func (s *server) accept(ctx context.Context, l net.Listener, open *sync.WaitGroup) error {
	next := make(chan net.Conn)
	defer close(next)
	pause := firstPause
	for {
		conn, err := l.Accept()
		switch {
		case err == nil:
			pause = firstPause
			select {
			case next <- conn:
			default:
				open.Go(func() { s.attend(ctx, conn, next) })
			}
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

// attend serves a connection, and the next ones until there is none for a while.
func (s *server) attend(ctx context.Context, conn net.Conn, next <-chan net.Conn) {
	in := bufio.NewReader(nil)
	idle := time.NewTimer(idleTime)
	defer idle.Stop()
	for conn != nil {
		s.converse(ctx, conn, in)
		idle.Reset(idleTime)
		select {
		case conn = <-next: // nil when there are no more
		case <-idle.C:
			conn = nil
		}
	}
}

// outOfResources is an error of accept(2) that passes.
func outOfResources(err error) bool {
	for _, passing := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED} {
		if errors.Is(err, passing) {
			return true
		}
	}
	return false
}

// errPeer says that a caller is not one that is served.
var errPeer = errors.New("caller is not served")

// checkPeer asks the kernel who connected.
func (s *server) checkPeer(conn net.Conn) error {
	uid, err := peerOf(conn)
	if err != nil {
		return fmt.Errorf("%w: who it is cannot be known: %w", errPeer, err)
	}
	if uid != s.uid {
		return fmt.Errorf("%w: it has user ID %d, must have %d", errPeer, uid, s.uid)
	}
	return nil
}

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
