package child_test

import (
	"testing"

	"fairlead.dev/fairlead/internal/netdev/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }
