package node

import (
	"context"
	"errors"
	"slices"
	"strings"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/node/answer"
	"fairlead.dev/fairlead/internal/node/fault"
)

// collect lets go what the runtime does not list and what is not alive any more, while no
// ADD and no DEL runs. It goes on over errors and returns all of them as one.
//
// What lives stays, whatever the list says: a runtime sends a GC for every network
// configuration that it finds, with an empty list for one that no pod uses, and the
// name in it may be that of ours. Container IDs alone are compared: the runtime knows
// of one interface, and a sandbox may have more.
func (pn *podNetwork) collect(ctx context.Context, r cniproto.Request) error {
	listed, told, err := answer.ValidSandboxes(r.Config)
	if err != nil || !told {
		return err
	}
	return pn.turns.Alone(ctx, func(ctx context.Context) error {
		return aggregate(pn.sweepUnlisted(ctx, listed))
	})
}

// aggregate makes one error for the runtime of what went wrong with several
// sandboxes.
func aggregate(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = err.Error()
	}
	slices.Sort(texts)
	return &cniproto.Error{
		Code:    cniproto.AsError(fault.CNI(errors.Join(errs...))).Code,
		Msg:     "GC is not complete: " + plural(len(errs), "error"),
		Details: strings.Join(texts, "; "),
	}
}
