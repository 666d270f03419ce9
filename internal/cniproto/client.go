package cniproto

import (
	"errors"
	"io/fs"
	"os"
	"strconv"
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

	errStopping = errors.New("it is stopping, and the next daemon does not serve yet")
)

// Client sends requests to the daemon.
type Client struct {
	// Socket is the path of the daemon's socket.
	Socket string
}

// Do sends one request and returns the body of the answer. The request carries the time
// that is left until deadline, and no single write or read waits longer than that. Errors:
// *Error if the daemon answered with an error, the request is too large or the answer
// cannot be parsed; ErrAway, ErrLost and ErrNoAnswer, after which another attempt may
// succeed; ErrForeign, after which it cannot.
func (c *Client) Do(deadline time.Time, r *Request) ([]byte, error) {
	left := time.Until(deadline)
	if left <= 0 {
		return nil, ErrNoAnswer
	}
	message, err := encodeMessage(*r, left)
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
	status, body, err := readAnswer(conn)
	if err != nil {
		return nil, failure(sent, err)
	}
	switch status {
	case 200:
		return body, nil
	case StatusAskNext:
		return nil, causedError{ErrAway, errStopping}
	default:
		return nil, answeredError(status, body)
	}
}

// foreignError returns the ErrForeign for a socket that is not the daemon's; reason
// describes the socket.
func (c *Client) foreignError(reason string) error {
	return causedError{ErrForeign, errors.New(quoted(c.Socket) + " " + reason + ": must be a socket of root on which root serves, as " + DefaultSocket())}
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
		at := "socket " + c.Socket
		if c.Socket != DefaultSocket() {
			at += " (" + DefaultSocket() + " by default)"
		}
		return nil, causedError{ErrAway, wrapError(at, err)}
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

// encodeMessage puts head and body into one buffer. It reserves spaces for the length of
// the body and replaces the last of them when the length is known; HTTP allows spaces in
// front of the value.
func encodeMessage(r Request, left time.Duration) ([]byte, error) {
	r.DeadlineMS = max(left.Milliseconds(), 1)
	const beforeLength = "\r\nContent-Type: application/octet-stream\r\nConnection: close\r\nContent-Length:"
	const roomForLength = "         " // MaxRequest has seven digits
	message := make([]byte, 0, len(r.Config)+usualRest)
	message = append(message, "POST "+Path+" HTTP/1.1\r\nHost: fairlead\r\nUser-Agent: fairlead-cni/"...)
	message = append(append(message, Version...), beforeLength+roomForLength...)
	lengthEnd := len(message)
	message = append(message, "\r\n\r\n"...)
	start := len(message)
	message = r.append(message)
	if len(message)-start > MaxRequest {
		return nil, TooLarge("request")
	}
	length := strconv.Itoa(len(message) - start)
	copy(message[lengthEnd-len(length):], length)
	return message, nil
}

// failure returns the error of a request whose write returned sent and whose answer
// failed with received: the *Error of a malformed answer, ErrNoAnswer after a timeout,
// otherwise ErrLost.
func failure(sent, received error) error {
	var malformedAnswer *Error
	switch {
	case errors.As(received, &malformedAnswer):
		return malformedAnswer
	case errors.Is(sent, syscall.EAGAIN), errors.Is(received, syscall.EAGAIN):
		return ErrNoAnswer
	default:
		return causedError{ErrLost, received}
	}
}

// answeredError returns the error in the body of an answer, or an Error with CodeInternal
// if the body has none.
func answeredError(status int, body []byte) *Error {
	e, err := decodeError(string(body))
	if err != nil || e.Code == 0 {
		return &Error{
			Code: CodeInternal,
			Msg:  "the daemon answered with status " + strconv.Itoa(status) + " and no CNI error: " + quoted(string(body)),
		}
	}
	return e
}
