package main

import (
	"strings"
	"testing"

	"fairlead.dev/fairlead/internal/config"
)

// If the configured network plugin does not exist, the program ends and serves nothing.
func TestUnknownNetworkPlugin(t *testing.T) {
	cfg := config.DefaultNode()
	cfg.NodeName, cfg.StateDir, cfg.Plugin = "n1", t.TempDir(), "kubenet"
	if err := cfg.Complete(); err != nil {
		t.Fatal(err)
	}
	err := serve(t.Context(), cfg)
	if err == nil || !strings.Contains(err.Error(), `"kubenet"`) || !strings.Contains(err.Error(), "fairlead, noop") {
		t.Errorf("got %v", err)
	}
}
