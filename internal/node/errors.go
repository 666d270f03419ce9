package node

import (
	"context"
	"errors"
	"fmt"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/netdev"
	"fairlead.dev/fairlead/internal/network"
)

// What can go wrong with a request, each with its CNI error code in codes.
var (
	// errGone says that the pod is gone, or that the request is of a pod that
	// had its place before.
	errGone = errors.New("pod is gone")
	// errNotReady says that something has to happen first and may yet.
	errNotReady = errors.New("not ready")
	// errEnvironment says that a CNI environment variable is missing or wrong.
	errEnvironment = errors.New("wrong environment")
	// errInvalid says that a PodAttachment cannot be plugged as it is.
	errInvalid = errors.New("invalid")
	// errDiffers says that the kernel is not as a record says (CHECK).
	errDiffers = errors.New("differs from its record")
	// errUnavailable says that no ADD can be served now (STATUS).
	errUnavailable = errors.New("cannot serve ADD")
	// errImpaired says the same, and that pods that are there have lost their
	// network (STATUS).
	errImpaired = errors.New("cannot serve ADD, and pods are cut off")
	// errLeaving says that an ADD was ended while it waited, because the daemon
	// ends. It is for the next one.
	errLeaving = errors.New("the daemon ends")
	// errUnserved says that the verb is not served by this build.
	errUnserved = errors.New("verb is not served")
)

// codeDiffers is Fairlead's own: the specification leaves 100 and above to the
// plugins.
const codeDiffers = 110

// codes is the one table of errors by CNI error code; what is not in it is an
// internal error (999).
var codes = []struct {
	err  error
	code int
}{
	{errGone, cniproto.CodeUnknownContainer},
	{errEnvironment, cniproto.CodeInvalidEnvironment},
	{netdev.ErrNotNamespace, cniproto.CodeInvalidEnvironment},
	{errInvalid, cniproto.CodeInvalidConfig},
	{netdev.ErrInvalid, cniproto.CodeInvalidConfig},
	{errDiffers, codeDiffers},
	{errImpaired, cniproto.CodeLimited},
	{errUnavailable, cniproto.CodeUnavailable},
	{errNotReady, cniproto.CodeTryAgainLater},
	{netdev.ErrNoBridge, cniproto.CodeTryAgainLater},
	{network.ErrDeleted, cniproto.CodeUnknownContainer},
	{context.DeadlineExceeded, cniproto.CodeTryAgainLater},
	{context.Canceled, cniproto.CodeTryAgainLater},
}

// cniError gives an error its code. An error that has one keeps it.
func cniError(err error) error {
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

// because returns an error of a kind whose text is the message alone.
func because(kind error, format string, args ...any) error {
	return &reason{kind: kind, error: fmt.Errorf(format, args...)}
}

type reason struct {
	kind error
	error
}

func (r *reason) Unwrap() []error { return []error{r.error, r.kind} }
