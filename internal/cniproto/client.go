package cniproto

import (
	"errors"
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

	// ErrForeign says that the socket is not that of a daemon which runs as this user,
	// which is root: nothing was sent.
	ErrForeign = errors.New("socket is not the node daemon's")

	errEnds = errors.New("it ends, and the next one does not serve yet")
)

// Client sends requests to the daemon.
type Client struct {
	// Socket is the path of the daemon's socket.
	Socket string
}

// Do sends one request and returns the body of its answer. The daemon is told
// the deadline, a time of thin.Now, and the wait ends there. An error that the daemon
// answered is an *Error; ErrAway, ErrLost and ErrNoAnswer are what else can happen to
// be tried again, ErrForeign is not.
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

// foreign is the error for a socket that is not the daemon's.
func (c *Client) foreign(is string) error {
	return because{ErrForeign, errors.New(quoted(c.Socket) + " " + is + ": must be a socket of root on which root serves, as " + DefaultSocket())}
}

// dial connects without package net, whose initialization and size the plugin
// would pay for on every call. It connects to no socket but one of this user, at which
// this user listens: who wrote the configuration need not be root.
func (c *Client) dial(deadline int64) (thin.File, error) {
	if own, err := thin.IsOwnSocket(c.Socket); err == nil && !own {
		return thin.File{}, c.foreign("is something else")
	}
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return thin.File{}, &Error{Code: CodeIO, Msg: "make a unix socket: " + err.Error()}
	}
	// Connecting to a unix socket never waits without blocking: it is done, or
	// refused, or the queue is full (EAGAIN), which is as good as away.
	if err := syscall.Connect(fd, &syscall.SockaddrUnix{Name: c.Socket}); err != nil {
		_ = syscall.Close(fd)
		at := "socket " + c.Socket
		if c.Socket != DefaultSocket() {
			at += " (" + DefaultSocket() + " by default)"
		}
		return thin.File{}, because{ErrAway, doing(at, err)}
	}
	conn := thin.File{FD: fd, Deadline: deadline}
	own, err := conn.PeerIsOwn()
	if err == nil {
		err = syscall.SetNonblock(fd, false)
	}
	if err != nil {
		_ = conn.Close()
		return thin.File{}, &Error{Code: CodeIO, Msg: "make a connection wait: " + err.Error()}
	}
	if !own {
		_ = conn.Close()
		return thin.File{}, c.foreign("is served by somebody else")
	}
	return conn, nil
}

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
	case errors.Is(sent, thin.ErrDeadline), errors.Is(received, thin.ErrDeadline):
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
