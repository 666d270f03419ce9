package node

import (
	"context"
	"os"
	"testing"
	"testing/synctest"

	"fairlead.dev/fairlead/internal/network"
)

// The plugin that plugs nothing does not become the node's network: its
// configuration would sort before that of flannel, which every sandbox needs.
func TestNoopIsNotAnnounced(t *testing.T) {
	conf := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		d, err := New(Config{Install: &Install{ConfDir: conf, Names: []string{PluginName}}}, network.NewNoop(noSysctls{}))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*sweepInterval)
		defer cancel()
		if err := d.announce(ctx); err != nil {
			t.Error(err)
		}
	})
	if entries, err := os.ReadDir(conf); err != nil || len(entries) > 0 {
		t.Errorf("%v, %v", entries, err)
	}
}
