package background

import (
	"context"
	"fmt"
	"slices"
	"strings"

	cnitypes "github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sync/errgroup"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/node/ledger"
)

// Collect removes the sandboxes that the runtime does not list and that are dead, while
// no ADD and no DEL runs. An error with one sandbox stops no other; Collect returns all.
//
// A live sandbox stays even if it is not listed: a runtime sends a GC for every network
// configuration that it finds, with an empty list for a configuration that no pod uses,
// and that configuration may have the name of Fairlead's. Collect compares container IDs
// alone, since the runtime knows of one interface and a sandbox may have more.
//
// If execute is true, the plugins that Fairlead executes get a GC of their own afterwards,
// with the attachments in the records.
func (b *Background) Collect(ctx context.Context, listed map[string]bool, execute bool) (errs []error) {
	err := b.locks.Alone(ctx, func(ctx context.Context) error {
		if errs = b.sweepUnlisted(ctx, listed); execute {
			errs = append(errs, b.collectDelegated(ctx)...)
		}
		return nil
	})
	if err != nil {
		return []error{err}
	}
	return errs
}

// IsCollecting reports whether Collect executes plugins.
func (b *Background) IsCollecting() bool { return b.collecting.Load() }

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
func (b *Background) collectDelegated(ctx context.Context) []error {
	if b.Plugins == nil || slices.ContainsFunc(b.Ledger.All(), func(r *ledger.Record) bool { return r.Damaged }) {
		return nil // the attachments of a damaged record are not known, and may be in use
	}
	b.collecting.Store(true)
	defer b.collecting.Store(false)
	networks := delegatedNetworks(b.Ledger.All())
	errs := make([]error, len(networks))
	var todo errgroup.Group
	todo.SetLimit(4)
	for n, network := range networks {
		todo.Go(func() error {
			if err := b.Plugins.GC(ctx, network.list, network.valid); err != nil {
				errs[n] = fmt.Errorf("network %s: %w", network.list.Name, err)
			}
			return nil
		})
	}
	_ = todo.Wait() // errs has them all
	return slices.DeleteFunc(errs, func(err error) bool { return err == nil })
}
