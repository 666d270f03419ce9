package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	cnitypes "github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sync/errgroup"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/node/answer"
	"fairlead.dev/fairlead/internal/node/ledger"
)

// collect removes the sandboxes that the runtime does not list and that are dead, while
// no ADD and no DEL runs. An error with one sandbox stops no other; collect returns all
// errors as one.
//
// A live sandbox stays even if it is not listed: a runtime sends a GC for every network
// configuration that it finds, with an empty list for a configuration that no pod uses,
// and that configuration may have the name of Fairlead's. collect compares container IDs
// alone, since the runtime knows of one interface and a sandbox may have more.
//
// The plugins that Fairlead executes get a GC of their own afterwards, with the
// attachments in the records.
func (b *background) collect(ctx context.Context, r cniproto.Request) error {
	return b.collectWith(ctx, r, b.collectDelegated)
}

// collectSandboxes is a GC that executes no plugins.
func (b *background) collectSandboxes(ctx context.Context, r cniproto.Request) error {
	return b.collectWith(ctx, r, func(context.Context) []error { return nil })
}

func (b *background) collectWith(ctx context.Context, r cniproto.Request, then func(context.Context) []error) error {
	listed, given, err := answer.ValidSandboxes(r.Config)
	if err != nil || !given {
		return err
	}
	return b.locks.Alone(ctx, func(ctx context.Context) error {
		return aggregate(append(b.sweepUnlisted(ctx, listed), then(ctx)...))
	})
}

// delegatedNetwork is a network whose interfaces executed plugins make.
type delegatedNetwork struct {
	list  v1alpha1.PluginList
	valid []cnitypes.GCAttachment
}

// delegatedNetworks returns the networks in the records, each configuration once. An
// attachment is in use as long as it has a record. Configurations of one name have the same
// attachments: a plugin keeps its state by the name of the network.
func delegatedNetworks(records []*ledger.Record) []*delegatedNetwork {
	byKey, byName := map[string]*delegatedNetwork{}, map[string][]cnitypes.GCAttachment{}
	var out []*delegatedNetwork
	for _, rec := range records {
		for _, i := range rec.Interfaces() {
			if i.Made.Plugins == nil {
				continue
			}
			list := i.Made.Plugins.List
			byName[list.Name] = append(byName[list.Name], cnitypes.GCAttachment{ContainerID: rec.ContainerID, IfName: i.Made.Name})
			key := strings.Join(append([]string{list.Name, list.CNIVersion, list.Args}, list.Plugins...), "\x00")
			if byKey[key] == nil {
				byKey[key] = &delegatedNetwork{list: list}
				out = append(out, byKey[key])
			}
		}
	}
	for _, n := range out {
		n.valid = byName[n.list.Name]
	}
	return out
}

// collectDelegated executes GC for the networks of executed plugins, at most four at once.
func (b *background) collectDelegated(ctx context.Context) []error {
	if b.plugins == nil || slices.ContainsFunc(b.ledger.All(), func(r *ledger.Record) bool { return r.Damaged }) {
		return nil // the attachments of a damaged record are not known, and may be in use
	}
	b.collecting.Store(true)
	defer b.collecting.Store(false)
	networks := delegatedNetworks(b.ledger.All())
	errs := make([]error, len(networks))
	var todo errgroup.Group
	todo.SetLimit(4)
	for n, network := range networks {
		todo.Go(func() error {
			if err := b.plugins.GC(ctx, network.list, network.valid); err != nil {
				errs[n] = fmt.Errorf("network %s: %w", network.list.Name, err)
			}
			return nil
		})
	}
	_ = todo.Wait() // errs has them all
	return slices.DeleteFunc(errs, func(err error) bool { return err == nil })
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
		Code:    cniproto.AsError(answer.CNI(errors.Join(errs...))).Code,
		Msg:     "GC is not complete: " + plural(len(errs), "error"),
		Details: strings.Join(texts, "; "),
	}
}
