package fault

import (
	"context"
	"errors"
	"fmt"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/ovsdb"
	"fairlead.dev/fairlead/internal/node/locks"
)

// The kinds of error of a request. codes has the CNI error code of each.
var (
	// ErrGone means that the pod is gone, or that the request is for an earlier pod with
	// the same name.
	ErrGone = errors.New("pod is gone")
	// ErrNotReady means that a condition is not met yet. A retry may succeed.
	ErrNotReady = errors.New("not ready")
	// ErrEnvironment means that a CNI environment variable is missing or wrong.
	ErrEnvironment = errors.New("wrong environment")
	// ErrInvalid means that a PodAttachment, or a value of the request, is invalid.
	ErrInvalid = errors.New("invalid")
	// ErrDiffers means that the kernel differs from a record (CHECK).
	ErrDiffers = errors.New("differs from its record")
	// ErrUnavailable means that no ADD can be served now (STATUS).
	ErrUnavailable = errors.New("cannot serve ADD")
	// ErrImpaired means that no ADD can be served now, and that running pods have lost
	// their network (STATUS).
	ErrImpaired = errors.New("cannot serve ADD, and pods are cut off")
	// ErrLeaving means that the daemon ended while an ADD waited. The next daemon serves
	// the ADD.
	ErrLeaving = errors.New("the daemon ends")
	// ErrPlugin means that a CNI plugin that Fairlead executes has failed.
	ErrPlugin = errors.New("a plugin failed")
	// ErrUnserved means that this build does not serve the verb.
	ErrUnserved = errors.New("verb is not served")
)

// CodeDiffers is the CNI error code of ErrDiffers. The specification leaves codes of 100
// and above to plugins.
const CodeDiffers = 110

// codes has the CNI error codes of errors. All other errors are internal errors (999).
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
	{link.ErrNoParent, cniproto.CodeTryAgainLater},
	{ovsdb.ErrUnavailable, cniproto.CodeTryAgainLater},
	{ovsdb.ErrRefused, cniproto.CodeTryAgainLater},
	{locks.ErrDeleted, cniproto.CodeUnknownContainer},
	{context.DeadlineExceeded, cniproto.CodeTryAgainLater},
	{context.Canceled, cniproto.CodeTryAgainLater},
}

// CNI returns an error as a cniproto.Error with its CNI error code. It returns an error
// that has a code unchanged.
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

// Errorf returns an error that wraps kind. Its text is the formatted message, without that
// of kind.
func Errorf(kind error, format string, args ...any) error {
	return &reason{kind: kind, error: fmt.Errorf(format, args...)}
}

type reason struct {
	kind error
	error
}

func (r *reason) Unwrap() []error { return []error{r.error, r.kind} }
