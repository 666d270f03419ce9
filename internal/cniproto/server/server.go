// Package server is the node daemon's side of the CNI socket.
package server

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"strings"
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
	// stopTimeout bounds how long requests that are being served may take when
	// the daemon is told to stop; Kubernetes kills it after 30 seconds.
	stopTimeout = 25 * time.Second
	// levelCall is the log level of each call.
	levelCall = 2
)

// Handler serves requests.
type Handler interface {
	// Handle serves one request, which is valid as Request.Validate says, and
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
	s := &server{handler: h, uid: c.UID, metrics: m, readTimeout: readTimeout, stopTimeout: stopTimeout}
	return s.run(ctx, l)
}

type server struct {
	handler                  Handler
	uid                      uint32
	metrics                  *metrics
	readTimeout, stopTimeout time.Duration
}

func (s *server) run(ctx context.Context, l net.Listener) error {
	serving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	var open sync.WaitGroup
	h := &http.Server{
		Handler:           s.routes(),
		ReadHeaderTimeout: s.readTimeout,
		MaxHeaderBytes:    16 << 10,
		BaseContext:       func(net.Listener) context.Context { return serving },
		ConnContext:       withPeer,
		ConnState:         counting(&open),
		ErrorLog:          log.New(logWriter{logr.FromContextOrDiscard(ctx)}, "", 0),
	}
	h.SetKeepAlivesEnabled(false)
	queue := &drainer{Listener: l}
	defer context.AfterFunc(ctx, queue.leave)()
	if err := h.Serve(queue); !errors.Is(err, errDrained) {
		return fmt.Errorf("serve CNI: %w", errors.Join(err, h.Close()))
	}
	// Not by Shutdown, which drops a connection whose request is just arriving.
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		open.Wait()
	}()
	patience, giveUp := context.WithTimeout(serving, s.stopTimeout)
	defer giveUp()
	select {
	case <-finished:
		return nil
	case <-patience.Done():
		err := errors.Join(patience.Err(), h.Close())
		return fmt.Errorf("requests not answered %v after the stop are cancelled: %w", s.stopTimeout, err)
	}
}

// counting keeps the number of open connections. They are counted before they
// are served, in the goroutine that accepts them.
func counting(open *sync.WaitGroup) func(net.Conn, http.ConnState) {
	return func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			open.Add(1)
		case http.StateClosed, http.StateHijacked:
			open.Done()
		default:
		}
	}
}

func (s *server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+cniproto.Path, s.post)
	mux.HandleFunc("GET "+cniproto.StatusPath, func(w http.ResponseWriter, r *http.Request) {
		_, err := s.serve(r.Context(), cniproto.Request{Verb: cniproto.VerbStatus})
		answer(w, []byte(`{"status":"ok"}`), err, "")
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := s.checkPeer(r.Context()); err != nil {
			answer(w, nil, err, "")
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// post reads a request, has it served and answers it.
func (s *server) post(w http.ResponseWriter, r *http.Request) {
	request, err := s.read(w, r)
	if err == nil {
		err = request.Validate()
	}
	if err != nil {
		s.metrics.count(request.Verb, err)
		answer(w, nil, err, request.CNIVersion())
		return
	}
	result, err := s.serve(r.Context(), request)
	answer(w, result, err, request.CNIVersion())
}

type peerKey struct{}

// peer is who is at the other end of a connection.
type peer struct {
	uid uint32
	err error
}

// withPeer asks the kernel who connected.
func withPeer(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, peerKey{}, peerOf(conn))
}

func peerOf(conn net.Conn) (p peer) {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return peer{err: fmt.Errorf("connection of type %T: must be one of a unix socket", conn)}
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return peer{err: err}
	}
	err = raw.Control(func(fd uintptr) {
		cred, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
		if err != nil {
			p.err = err
			return
		}
		p.uid = cred.Uid
	})
	p.err = errors.Join(p.err, err)
	return p
}

// errPeer says that a caller is not one that is served.
var errPeer = errors.New("caller is not served")

func (s *server) checkPeer(ctx context.Context) error {
	p, _ := ctx.Value(peerKey{}).(peer)
	if p.err != nil {
		return fmt.Errorf("%w: who it is cannot be known: %w", errPeer, p.err)
	}
	if p.uid != s.uid {
		return fmt.Errorf("%w: it has user ID %d, must have %d", errPeer, p.uid, s.uid)
	}
	return nil
}

// logWriter takes what net/http has to say.
type logWriter struct{ logger logr.Logger }

// Write is part of io.Writer.
func (w logWriter) Write(line []byte) (int, error) {
	w.logger.V(levelCall).Info("connection failed", "reason", strings.TrimSpace(string(line)))
	return len(line), nil
}
