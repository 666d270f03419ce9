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

// collect removes the sandboxes that the runtime does not list and that are dead, while
// no ADD and no DEL runs. An error with one sandbox stops no other; collect returns all
// errors as one.
//
// A live sandbox stays even if it is not listed: a runtime sends a GC for every network
// configuration that it finds, with an empty list for a configuration that no pod uses,
// and that configuration may have the name of Fairlead's. collect compares container IDs
// alone, since the runtime knows of one interface and a sandbox may have more.
func (pn *podNetwork) collect(ctx context.Context, r cniproto.Request) error {
	listed, given, err := answer.ValidSandboxes(r.Config)
	if err != nil || !given {
		return err
	}
	return pn.turns.Alone(ctx, func(ctx context.Context) error {
		return aggregate(pn.sweepUnlisted(ctx, listed))
	})
}

// aggregate returns one error for the runtime that holds the errors of several sandboxes,
// nil if there is none.
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
