package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/go-logr/logr"

	"fairlead.dev/fairlead/internal/cniproto"
)

// errTooLarge is a request that is larger than cniproto.MaxRequest.
var errTooLarge = errors.New("request is too large")

// read takes a request off the wire; errors say what is wrong with it.
func (s *server) read(w http.ResponseWriter, r *http.Request) (cniproto.Request, error) {
	// The deadline is for the request alone: while it is served net/http goes on
	// reading, to notice that the plugin is gone. Where reading failed it stays,
	// for net/http then tries to read what is left.
	control := http.NewResponseController(w)
	if err := control.SetReadDeadline(time.Now().Add(s.readTimeout)); err != nil {
		return cniproto.Request{}, err
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, cniproto.MaxRequest))
	if err == nil {
		err = control.SetReadDeadline(time.Time{})
	}
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return cniproto.Request{}, fmt.Errorf("%w: %w", errTooLarge, cniproto.TooLarge("request"))
	case err != nil:
		return cniproto.Request{}, &cniproto.Error{
			Code: cniproto.CodeDecode,
			Msg:  fmt.Sprintf("request: ends after %d of %s bytes: %v", len(body), announced(r), err),
		}
	}
	return cniproto.DecodeRequest(body)
}

// announced is the size that a request said it has.
func announced(r *http.Request) string {
	if r.ContentLength < 0 {
		return "an unknown number of"
	}
	return strconv.FormatInt(r.ContentLength, 10)
}

// serve has a valid request served, within the time that is left for it.
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
	return s.guarded(ctx, r)
}

// guarded turns a handler's panic into an error of its request.
func (s *server) guarded(ctx context.Context, r cniproto.Request) (result []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%s failed inside the daemon: panic: %v", r.Verb, p)
			logr.FromContextOrDiscard(ctx).Error(err, "handler panicked", "sandbox", r.ContainerID, "stack", string(debug.Stack()))
		}
	}()
	return s.handler.Handle(ctx, r)
}

// timeLeft is what the plugin says it waits, at most the verb's own limit.
func timeLeft(r cniproto.Request) time.Duration {
	limit := cniproto.Timeout(r.Verb)
	if ms := r.DeadlineMS; ms > 0 && ms < limit.Milliseconds() {
		return time.Duration(ms) * time.Millisecond
	}
	return limit
}

// code is the CNI error code of an outcome, 0 for success.
func code(err error) int {
	if err == nil {
		return 0
	}
	return cniproto.AsError(err).Code
}

// answer writes a result or an error. The length is always told: the plugin
// expects it.
func answer(w http.ResponseWriter, result []byte, err error, version string) {
	status := http.StatusOK
	if err != nil {
		status, result = errorAnswer(err, version)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(result)))
	w.WriteHeader(status)
	_, _ = w.Write(result) // a plugin that is gone needs no answer
}

// errorAnswer encodes an error in the runtime's version of CNI.
func errorAnswer(err error, version string) (status int, body []byte) {
	e := *cniproto.AsError(err)
	if e.CNIVersion == "" {
		e.CNIVersion = version
	}
	return httpStatus(err, e.Code), e.Encode()
}

// httpStatus is the one table of statuses; they are for people with curl, the
// plugin goes by the code in the body.
func httpStatus(err error, code int) int {
	switch {
	case errors.Is(err, errPeer):
		return http.StatusForbidden
	case errors.Is(err, errTooLarge):
		return http.StatusRequestEntityTooLarge
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
