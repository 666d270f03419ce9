package plugtest_test

import (
	"net/netip"
	"testing"

	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/test/nettest"
	"fairlead.dev/fairlead/test/plugtest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

// A kind that is not part of this build, and consists of one file, passes the tests.
func TestKindInOneFile(t *testing.T) {
	i := plug.Interface{
		ContainerID: "c1", Name: "net1", MTU: 1400,
		Addresses: []netip.Prefix{nettest.Prefix("192.0.2.7/24")},
	}
	small := i
	small.MTU = 100
	plugtest.Run(t, plugtest.Case{
		New: func(*link.Sockets) plug.Kind { return plugtest.Nowhere() }, Interface: i,
		Invalid: map[string]plug.Interface{"mtu 100 of net1 must be at least 1280 bytes": small},
	})
}
