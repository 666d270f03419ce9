package node

import (
	"context"
	"errors"
	"path/filepath"
	"slices"

	"github.com/go-logr/logr"
)

// announce tells the runtime of the network when the first ADD can be served.
// The configuration stays when the daemon ends: without it a runtime cannot
// stop pods. The plugin that plugs nothing is no network: it would take the place
// of the one that is.
func (d *Daemon) announce(ctx context.Context) error {
	i, v := d.config.Install, d.verbs
	if i == nil || v == nil || !slices.Contains(i.Names, PluginName) {
		return nil
	}
	select {
	case <-v.registry.ready:
	case <-ctx.Done():
		return nil
	}
	_, err := v.host.await(ctx)
	if err = errors.Join(err, v.firewall.ready(ctx)); err != nil {
		return nil //nolint:nilerr // they wait until ctx ends
	}
	if err := installConflist(i.ConfDir, d.config.Socket); err != nil {
		return err
	}
	logr.FromContextOrDiscard(ctx).Info("pods can be served", "conflist", filepath.Join(i.ConfDir, ConflistName))
	return nil
}
