package routed

import (
	"testing"

	"fairlead.dev/fairlead/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }
