package answer

import (
	"context"
	"errors"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/ovsdb"
	"fairlead.dev/fairlead/internal/node/locks"
)

// CodeDiffers is the CNI error code of fault.ErrDiffers. The specification leaves codes of 100
// and above to plugins.
const CodeDiffers = 110

// codes has the CNI error codes of errors. All other errors are internal errors (999).
var codes = []struct {
	err  error
	code int
}{
	{fault.ErrGone, cniproto.CodeUnknownContainer},
	{fault.ErrEnvironment, cniproto.CodeInvalidEnvironment},
	{link.ErrNotNamespace, cniproto.CodeInvalidEnvironment},
	{fault.ErrInvalid, cniproto.CodeInvalidConfig},
	{link.ErrInvalid, cniproto.CodeInvalidConfig},
	{fault.ErrDiffers, CodeDiffers},
	{fault.ErrImpaired, cniproto.CodeLimited},
	{fault.ErrNotServing, cniproto.CodeUnavailable},
	{fault.ErrNotReady, cniproto.CodeTryAgainLater},
	{fault.ErrUnavailable, cniproto.CodeTryAgainLater},
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
