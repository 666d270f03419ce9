// Package fault has the errors that the stages share. The kind of a failure decides the repetition
// of a call, the reason of a condition, and the CNI error code that a runtime gets. Each edge has
// one table: driver.Result has the reasons of conditions and metrics, answer.CNI the codes.
package fault

import (
	"errors"
	"fmt"
)

// The kinds of failure of a driver and of its parts. They are wrapped with %w. A foreign error that
// fits none of them is ErrUnavailable.
var (
	// ErrInvalid means that the request cannot succeed until a person changes the pod, the
	// network or the configuration. The text names the field.
	ErrInvalid = errors.New("invalid request")
	// ErrExhausted means that no interface or address is left now. The text has the
	// counts.
	ErrExhausted = errors.New("exhausted")
	// ErrUnavailable means that the backend did not answer, or that the outcome is unknown.
	// The caller repeats the call later: the repetition finds the effect of the first call.
	ErrUnavailable = errors.New("unavailable")
	// ErrNotFound means that an object that the request names does not exist.
	ErrNotFound = errors.New("not found")
	// ErrConflict means that another owner has the requested address. A text for the owner of
	// a pod names the holder only if it is in the same namespace.
	ErrConflict = errors.New("conflict")
)

// The kinds of failure of a request of the runtime, beside ErrInvalid.
var (
	// ErrGone means that the pod is gone, or that the request is for an earlier pod with
	// the same name.
	ErrGone = errors.New("pod is gone")
	// ErrNotReady means that a condition is not met yet. A retry may succeed.
	ErrNotReady = errors.New("not ready")
	// ErrEnvironment means that a CNI environment variable is missing or wrong.
	ErrEnvironment = errors.New("wrong environment")
	// ErrDiffers means that the kernel differs from a record (CHECK).
	ErrDiffers = errors.New("differs from its record")
	// ErrNotServing means that no ADD can be served now (STATUS).
	ErrNotServing = errors.New("cannot serve ADD")
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
