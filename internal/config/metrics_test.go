package config

import (
	"net/netip"
	"testing"
)

// Metrics need no authentication, so by default only the node itself reaches them.
func TestMetricsAreForTheNodeAlone(t *testing.T) {
	for _, address := range []string{DefaultController().MetricsAddress, DefaultNode().MetricsAddress} {
		a, err := netip.ParseAddrPort(address)
		if err != nil || !a.Addr().IsLoopback() {
			t.Errorf("metrics are served on %s, %v", address, err)
		}
	}
}
