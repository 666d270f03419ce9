package cniproto

import (
	"errors"
	"io"
	"strconv"
	"syscall"

	"fairlead.dev/fairlead/internal/cniproto/thin"
)

var (
	// ErrAway says that no daemon listens on the socket, or that it ends: it has
	// done nothing of the request.
	ErrAway = errors.New("the daemon is away")
	// ErrLost says that the daemon went away after the connection was made and
	// before the answer was complete: it may have served the request.
	ErrLost = errors.New("the daemon went away before it answered")
	// ErrNoAnswer says that the daemon did not answer before the deadline.
	ErrNoAnswer = errors.New("the daemon did not answer in time")

	errEnds     = errors.New("it ends, and the next one does not serve yet")
	errDeadline = errors.New("the deadline is over")
)

// Client sends requests to the daemon.
type Client struct {
	// Socket is the path of the daemon's socket.
	Socket string
}

// Do sends one request and returns the body of its answer. The daemon is told
// the deadline, a time of thin.Now, and the wait ends there. An error that the daemon
// answered is an *Error; ErrAway, ErrLost and ErrNoAnswer are what else can happen to
// be tried again.
func (c *Client) Do(deadline int64, r *Request) ([]byte, error) {
	left := deadline - thin.Now()
	if left <= 0 {
		return nil, ErrNoAnswer
	}
	message, err := encodeMessage(*r, left)
	if err != nil {
		return nil, err
	}
	conn, err := c.dial(deadline)
	if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // the answer is complete or void
	// A daemon may answer and close before it has read everything, so the
	// answer matters more than what became of the request.
	_, sent := conn.Write(message)
	status, body, err := readAnswer(conn)
	if err != nil {
		return nil, failure(sent, err)
	}
	switch status {
	case 200:
		return body, nil
	case StatusAskNext:
		return nil, because{ErrAway, errEnds}
	default:
		return nil, answeredError(status, body)
	}
}

// dial connects without package net, whose initialization and size the plugin
// would pay for on every call.
func (c *Client) dial(deadline int64) (*conn, error) {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, &Error{Code: CodeIO, Msg: "make a unix socket: " + err.Error()}
	}
	// Connecting to a unix socket never waits without blocking: it is done, or
	// refused, or the queue is full (EAGAIN), which is as good as away.
	if err := syscall.Connect(fd, &syscall.SockaddrUnix{Name: c.Socket}); err != nil {
		_ = syscall.Close(fd)
		return nil, because{ErrAway, doing("socket "+c.Socket, err)}
	}
	if err := syscall.SetNonblock(fd, false); err != nil {
		_ = syscall.Close(fd)
		return nil, &Error{Code: CodeIO, Msg: "make a connection wait: " + err.Error()}
	}
	return &conn{fd: fd, deadline: deadline}, nil
}

// conn is a connection that waits in the kernel and not in Go's poller, which
// would have to be set up for this one wait. Waits end at the deadline with
// errDeadline.
type conn struct {
	fd       int
	deadline int64 // of thin.Now
}

// Read is part of io.Reader.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.wait(syscall.SO_RCVTIMEO, syscall.Read, p)
	if n == 0 && err == nil && len(p) > 0 {
		return 0, io.EOF
	}
	return n, err
}

// Write is part of io.Writer.
func (c *conn) Write(p []byte) (written int, err error) {
	for written < len(p) {
		n, err := c.wait(syscall.SO_SNDTIMEO, syscall.Write, p[written:])
		written += n
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

// wait makes a system call that waits until the deadline at most.
func (c *conn) wait(timeout int, call func(int, []byte) (int, error), p []byte) (int, error) {
	for {
		left := c.deadline - thin.Now()
		if left <= 0 { // 0 would be for ever
			return 0, errDeadline
		}
		tv := syscall.NsecToTimeval(left * 1e6)
		if err := syscall.SetsockoptTimeval(c.fd, syscall.SOL_SOCKET, timeout, &tv); err != nil {
			return 0, err
		}
		n, err := call(c.fd, p)
		switch {
		case err == nil:
			return n, nil
		case errors.Is(err, syscall.EINTR), errors.Is(err, syscall.EAGAIN): // or the deadline is over
		default:
			return 0, err
		}
	}
}

// Close is part of io.Closer.
func (c *conn) Close() error { return syscall.Close(c.fd) }

// encodeMessage puts head and body into one buffer: the length of the body is filled
// in when it is known, behind the spaces that may precede it.
func encodeMessage(r Request, deadlineMS int64) ([]byte, error) {
	r.DeadlineMS = deadlineMS
	const beforeLength = "\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length:"
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

// failure tells a deadline from a connection that broke.
func failure(sent, received error) error {
	var wrong *Error
	switch {
	case errors.As(received, &wrong):
		return wrong
	case errors.Is(sent, errDeadline), errors.Is(received, errDeadline):
		return ErrNoAnswer
	default:
		return because{ErrLost, received}
	}
}

// answeredError is the error in the body of an answer that is no success.
func answeredError(status int, body []byte) *Error {
	e, err := decodeError(body)
	if err != nil || e.Code == 0 {
		return &Error{
			Code: CodeInternal,
			Msg:  "the daemon answered with status " + strconv.Itoa(status) + " and no CNI error: " + quoted(string(body)),
		}
	}
	return e
}
