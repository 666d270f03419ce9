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
// the deadline, and the wait ends there. An error that the daemon answered is an
// *Error; ErrAway, ErrLost and ErrNoAnswer are what else can happen to be tried
// again, ErrForeign is not.
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
// this user listens: who wrote the configuration need not be root. A read or a write
// waits for at most so long, in the kernel: Go's poller would have to be set up for it.
func (c *Client) dial(wait time.Duration) (*os.File, error) {
	if info, err := os.Lstat(c.Socket); err == nil && (info.Mode().Type() != fs.ModeSocket || !isOwn(info)) {
		return nil, c.foreign("is something else")
	}
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, &Error{Code: CodeIO, Msg: "make a unix socket: " + err.Error()}
	}
	// Connecting to a unix socket never waits without blocking: it is done, or
	// refused, or the queue is full (EAGAIN), which is as good as away.
	if err := syscall.Connect(fd, &syscall.SockaddrUnix{Name: c.Socket}); err != nil {
		_ = syscall.Close(fd)
		at := "socket " + c.Socket
		if c.Socket != DefaultSocket() {
			at += " (" + DefaultSocket() + " by default)"
		}
		return nil, because{ErrAway, doing(at, err)}
	}
	own, err := connected(fd, wait)
	if err == nil && own {
		return os.NewFile(uintptr(fd), c.Socket), nil
	}
	_ = syscall.Close(fd)
	if err != nil {
		return nil, &Error{Code: CodeIO, Msg: "make a connection wait: " + err.Error()}
	}
	return nil, c.foreign("is served by somebody else")
}

// connected has a connection wait in the kernel, and tells whether the process at its
// other end is this user's.
func connected(fd int, wait time.Duration) (own bool, err error) {
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

// isOwn tells whether a file is this user's.
func isOwn(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}

// encodeMessage puts head and body into one buffer: the length of the body is filled
// in when it is known, behind the spaces that may precede it.
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

// failure tells a deadline from a connection that broke.
func failure(sent, received error) error {
	var wrong *Error
	switch {
	case errors.As(received, &wrong):
		return wrong
	case errors.Is(sent, syscall.EAGAIN), errors.Is(received, syscall.EAGAIN):
		return ErrNoAnswer
	default:
		return because{ErrLost, received}
	}
}

// answeredError is the error in the body of an answer that is no success.
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
