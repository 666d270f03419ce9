package cniproto

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"
)

var (
	// ErrAway means that no daemon listens on the socket, or that the daemon is
	// stopping. No part of the request has been carried out.
	ErrAway = errors.New("the daemon is away")
	// ErrLost means that the daemon went away after the connection was made and before
	// the answer was complete. It may have served the request.
	ErrLost = errors.New("the daemon went away before it answered")
	// ErrNoAnswer means that the daemon did not answer before the deadline.
	ErrNoAnswer = errors.New("the daemon did not answer in time")

	// ErrForeign means that the socket is not that of a daemon which runs as the
	// plugin's user, which is root. Nothing was sent.
	ErrForeign = errors.New("socket is not the node daemon's")
)

// Answer is the daemon's answer to a request: a result, an error, or neither if the daemon
// is stopping.
type Answer struct {
	// Error is the error of the request.
	Error *Error `json:"error,omitempty"`
	// Stopping means that the daemon has done nothing for the request, or has undone it,
	// because it is stopping. The plugin sends an ADD or DEL again, to the next daemon.
	Stopping bool `json:"stopping,omitempty"`
	// Result has the bytes that the plugin prints.
	Result []byte `json:"-"`
}

// Encode returns the frame of an answer. It has an error in place of a result that is
// larger than MaxAnswer.
func (a Answer) Encode() []byte {
	if a.Error != nil {
		a.Error = a.Error.forRuntime()
	}
	out, err := encodeFrame("answer", a, a.Result, MaxAnswer)
	if err != nil {
		return Answer{Error: &Error{Code: CodeInternal, Msg: err.Error()}}.Encode()
	}
	return out
}

// DecodeAnswer reads an answer and returns its result. Errors: *Error if the answer is one
// or is malformed; ErrAway if the daemon is stopping; ErrVersion if it speaks another
// version of the protocol; otherwise the error of reading.
func DecodeAnswer(in io.Reader) (result []byte, err error) {
	var a Answer
	result, err = decodeFrame("answer", in, &a, MaxAnswer)
	switch {
	case err != nil:
		return nil, err
	case a.Stopping:
		return nil, fmt.Errorf("%w: it is stopping, and the next daemon does not serve yet", ErrAway)
	case a.Error != nil:
		return nil, a.Error
	}
	return result, nil
}

// Client sends requests to the daemon.
type Client struct {
	// Socket is the path of the daemon's socket.
	Socket string
}

// Do sends one request and returns the result. The request carries the time that is left
// until deadline, and no single write or read waits longer than that. Errors: *Error if the
// daemon answered with an error, the request is too large or the answer is malformed;
// ErrAway, ErrLost, ErrNoAnswer and ErrVersion, after which another attempt may succeed;
// ErrForeign, after which it cannot.
func (c *Client) Do(deadline time.Time, r *Request) ([]byte, error) {
	left := time.Until(deadline)
	if left <= 0 {
		return nil, ErrNoAnswer
	}
	request := *r
	request.DeadlineMS = max(left.Milliseconds(), 1)
	message, err := request.Encode()
	if err != nil {
		return nil, err
	}
	conn, err := c.dial(left)
	if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // the answer is complete or void
	// A daemon may answer and close before it has read everything, so an answer counts
	// even if the write failed.
	_, sent := conn.Write(message)
	result, err := DecodeAnswer(conn)
	_, answered := errors.AsType[*Error](err)
	switch {
	case err == nil, answered, errors.Is(err, ErrAway), errors.Is(err, ErrVersion):
		return result, err
	case errors.Is(sent, syscall.EAGAIN), errors.Is(err, syscall.EAGAIN):
		return nil, ErrNoAnswer
	default:
		return nil, fmt.Errorf("%w: %w", ErrLost, err)
	}
}

// foreignError returns the ErrForeign for a socket that is not the daemon's; reason
// describes the socket.
func (c *Client) foreignError(reason string) error {
	return fmt.Errorf("%w: %q %s: must be a socket of root on which root serves, as %s", ErrForeign, c.Socket, reason, DefaultSocket())
}

// dial connects without package net, whose initialization and size would cost time in
// every call. It only connects to a socket that this user owns and listens on, because the
// author of the configuration need not be root. Each read and each write waits at most for
// wait. The kernel enforces this, because Go's poller would have to be set up first.
func (c *Client) dial(wait time.Duration) (*os.File, error) {
	if info, err := os.Lstat(c.Socket); err == nil && (info.Mode().Type() != fs.ModeSocket || !isOwn(info)) {
		return nil, c.foreignError("is not a socket of this user")
	}
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, &Error{Code: CodeIO, Msg: "make a unix socket: " + err.Error()}
	}
	// A non-blocking connect to a unix socket never waits: it succeeds, is refused, or
	// fails with EAGAIN because the queue is full, which is treated as away.
	if err := syscall.Connect(fd, &syscall.SockaddrUnix{Name: c.Socket}); err != nil {
		_ = syscall.Close(fd)
		at := c.Socket
		if at != DefaultSocket() {
			at += " (" + DefaultSocket() + " by default)"
		}
		return nil, fmt.Errorf("%w: socket %s: %w", ErrAway, at, err)
	}
	own, err := setUpConn(fd, wait)
	if err == nil && own {
		return os.NewFile(uintptr(fd), c.Socket), nil
	}
	_ = syscall.Close(fd)
	if err != nil {
		return nil, &Error{Code: CodeIO, Msg: "set up the connection: " + err.Error()}
	}
	return nil, c.foreignError("is served by another user")
}

// setUpConn makes reads and writes of a connection block in the kernel for at most wait.
// own reports whether the process at the other end runs as this user.
func setUpConn(fd int, wait time.Duration) (own bool, err error) {
	if err := syscall.SetNonblock(fd, false); err != nil {
		return false, err
	}
	limit := syscall.NsecToTimeval(max(wait, time.Millisecond).Nanoseconds()) // 0 would be for ever
	for _, option := range []int{syscall.SO_SNDTIMEO, syscall.SO_RCVTIMEO} {
		if err := syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, option, &limit); err != nil {
			return false, err
		}
	}
	peer, err := syscall.GetsockoptUcred(fd, syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	return err == nil && int(peer.Uid) == os.Geteuid(), err
}

// isOwn reports whether this user owns a file.
func isOwn(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}
