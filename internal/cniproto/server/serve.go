package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/go-logr/logr"

	"fairlead.dev/fairlead/internal/cniproto"
)

var (
	// errTooLarge is a request that is larger than cniproto.MaxRequest.
	errTooLarge = errors.New("request is too large")
	// errNoRoute is a request with an unknown method or path.
	errNoRoute = errors.New("not here")
)

// serveConn serves and answers the one request of a connection. It reads through the buffer
// in.
func (s *server) serveConn(ctx context.Context, conn net.Conn, in *bufio.Reader) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer conn.Close() //nolint:errcheck // the answer has been written
	// The deadline only limits the arrival of the request.
	err := conn.SetReadDeadline(time.Now().Add(s.readTimeout))
	if err == nil {
		err = s.checkPeer(conn)
	}
	in.Reset(io.LimitReader(conn, maxHead+cniproto.MaxRequest+1))
	h, headErr := http.ReadRequest(in)
	switch {
	case headErr != nil && incomplete(headErr):
		logr.FromContextOrDiscard(ctx).V(levelCall).Info("connection failed", "reason", headErr.Error())
	case err != nil:
		answer(conn, nil, err, "")
	case headErr != nil:
		answer(conn, nil, &cniproto.Error{Code: cniproto.CodeDecode, Msg: fmt.Sprintf("request: %v", headErr)}, "")
	case h.Method == http.MethodGet && h.RequestURI == cniproto.StatusPath:
		_, err := s.serve(ctx, cniproto.Request{Verb: cniproto.VerbStatus})
		answer(conn, []byte(`{"status":"ok"}`), err, "")
	case h.Method == http.MethodPost && h.RequestURI == cniproto.Path:
		s.post(ctx, cancel, conn, h)
	default:
		answer(conn, nil, fmt.Errorf("%s %q is %w: POST %s and GET %s are", h.Method, h.RequestURI, errNoRoute, cniproto.Path, cniproto.StatusPath), "")
	}
}

// maxHead is the limit for the head of a request, in bytes.
const maxHead = 64 << 10

// incomplete reports whether a head did not arrive completely, as opposed to a malformed
// head.
func incomplete(err error) bool {
	_, failed := errors.AsType[net.Error](err)
	return failed || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// post reads, serves and answers a posted request.
func (s *server) post(ctx context.Context, cancel context.CancelFunc, conn net.Conn, h *http.Request) {
	request, err := read(h.Body, h.ContentLength)
	if err == nil {
		err = validate(&request)
	}
	if err == nil {
		err = conn.SetReadDeadline(time.Time{})
	}
	if err != nil {
		s.metrics.count(request.Verb, err)
		answer(conn, nil, err, request.CNIVersion())
		return
	}
	// The plugin sends no more data: this read ends when either side closes the
	// connection.
	go func() {
		_, _ = conn.Read(make([]byte, 1))
		cancel()
	}()
	result, err := s.serve(ctx, request)
	answer(conn, result, err, request.CNIVersion())
}

// read reads and decodes the body of a request; length is its Content-Length. It does not
// validate the request. Errors name the defect.
func read(in io.Reader, length int64) (cniproto.Request, error) {
	if length < 0 {
		return cniproto.Request{}, &cniproto.Error{Code: cniproto.CodeDecode, Msg: "request: Content-Length is missing"}
	}
	body := make([]byte, min(length, cniproto.MaxRequest+1))
	n, err := io.ReadFull(in, body)
	switch {
	case err != nil:
		return cniproto.Request{}, &cniproto.Error{
			Code: cniproto.CodeDecode,
			Msg:  fmt.Sprintf("request: ends after %d of %d bytes: %v", n, length, err),
		}
	case n > cniproto.MaxRequest:
		return cniproto.Request{}, fmt.Errorf("%w: %w", errTooLarge, cniproto.TooLarge("request"))
	}
	return decode(body)
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
		logr.FromContextOrDiscard(ctx).V(levelCall).Info("request served", "requestID", r.RequestID,
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

// answer writes a result, or an error in the CNI version of the request. It always writes a
// Content-Length, because the plugin needs it.
func answer(conn net.Conn, result []byte, err error, version string) {
	status := http.StatusOK
	if err != nil {
		status, result = errorAnswer(err, version)
	}
	out := make([]byte, 0, len(result)+128)
	out = fmt.Appendf(out, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n",
		status, http.StatusText(status), len(result))
	_, _ = conn.Write(append(out, result...)) // if this fails, the plugin is gone
}

// errorAnswer encodes an error in the CNI version of the request.
func errorAnswer(err error, version string) (status int, body []byte) {
	e := *cniproto.AsError(err)
	if e.CNIVersion == "" {
		e.CNIVersion = version
	}
	return httpStatus(err, e.Code), e.Encode()
}

// httpStatus returns the HTTP status of an error with a CNI code. Only StatusAskNext matters
// to the plugin, which otherwise reads the code in the body. The other statuses are for
// people who use curl.
func httpStatus(err error, code int) int {
	switch {
	case errors.Is(err, errPeer):
		return http.StatusForbidden
	case errors.Is(err, errTooLarge):
		return http.StatusRequestEntityTooLarge
	case errors.Is(err, errNoRoute):
		return http.StatusNotFound
	case errors.Is(err, ErrResend):
		return cniproto.StatusAskNext
	}
	switch code {
	case cniproto.CodeTryAgainLater, cniproto.CodeUnavailable, cniproto.CodeLimited:
		return http.StatusServiceUnavailable
	case cniproto.CodeIncompatibleVersion, cniproto.CodeUnsupportedField, cniproto.CodeUnknownContainer,
		cniproto.CodeInvalidEnvironment, cniproto.CodeDecode, cniproto.CodeInvalidConfig, cniproto.CodeInvalidNetns:
		return http.StatusBadRequest
	default:
		return http.StatusInternalServerError
	}
}
