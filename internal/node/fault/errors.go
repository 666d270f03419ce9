package fault

import (
	"context"
	"errors"
	"fmt"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/node/turns"
)

// What can go wrong with a request, each with its CNI error code in codes.
var (
	// ErrGone says that the pod is gone, or that the request is of a pod that
	// had its place before.
	ErrGone = errors.New("pod is gone")
	// ErrNotReady says that something has to happen first and may yet.
	ErrNotReady = errors.New("not ready")
	// ErrEnvironment says that a CNI environment variable is missing or wrong.
	ErrEnvironment = errors.New("wrong environment")
	// ErrInvalid says that a PodAttachment cannot be plugged as it is.
	ErrInvalid = errors.New("invalid")
	// ErrDiffers says that the kernel is not as a record says (CHECK).
	ErrDiffers = errors.New("differs from its record")
	// ErrUnavailable says that no ADD can be served now (STATUS).
	ErrUnavailable = errors.New("cannot serve ADD")
	// ErrImpaired says the same, and that pods that are there have lost their
	// network (STATUS).
	ErrImpaired = errors.New("cannot serve ADD, and pods are cut off")
	// ErrLeaving says that an ADD was ended while it waited, because the daemon
	// ends. It is for the next one.
	ErrLeaving = errors.New("the daemon ends")
	// ErrUnserved says that the verb is not served by this build.
	ErrUnserved = errors.New("verb is not served")
)

// CodeDiffers is Fairlead's own: the specification leaves 100 and above to the
// plugins.
const CodeDiffers = 110

// codes is the one table of errors by CNI error code; what is not in it is an
// internal error (999).
var codes = []struct {
	err  error
	code int
}{
	{ErrGone, cniproto.CodeUnknownContainer},
	{ErrEnvironment, cniproto.CodeInvalidEnvironment},
	{link.ErrNotNamespace, cniproto.CodeInvalidEnvironment},
	{ErrInvalid, cniproto.CodeInvalidConfig},
	{link.ErrInvalid, cniproto.CodeInvalidConfig},
	{ErrDiffers, CodeDiffers},
	{ErrImpaired, cniproto.CodeLimited},
	{ErrUnavailable, cniproto.CodeUnavailable},
	{ErrNotReady, cniproto.CodeTryAgainLater},
	{link.ErrNoBridge, cniproto.CodeTryAgainLater},
	{turns.ErrDeleted, cniproto.CodeUnknownContainer},
	{context.DeadlineExceeded, cniproto.CodeTryAgainLater},
	{context.Canceled, cniproto.CodeTryAgainLater},
}

// CNI gives an error its code. An error that has one keeps it.
func CNI(err error) error {
	var done *cniproto.Error
	if err == nil || errors.As(err, &done) {
		return err
	}
	for _, c := range codes {
		if errors.Is(err, c.err) {
			return &cniproto.Error{Code: c.code, Msg: err.Error()}
		}
	}
	return &cniproto.Error{Code: cniproto.CodeInternal, Msg: err.Error()}
}

// Errorf returns an error of a kind whose text is the message alone.
func Errorf(kind error, format string, args ...any) error {
	return &reason{kind: kind, error: fmt.Errorf(format, args...)}
}

type reason struct {
	kind error
	error
}

func (r *reason) Unwrap() []error { return []error{r.error, r.kind} }
