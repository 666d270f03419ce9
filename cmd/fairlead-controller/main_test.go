package main

import (
	"context"
	"os"
	"testing"

	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/test/cloud"
)

// withCloud makes the test binary run as the controller, which then has a second driver: that of the cloud at this URL.
// TestTwoDrivers in test/integration/controller builds it, since the controller itself has one driver.
const withCloud = "FAIRLEAD_TEST_CLOUD"

func TestMain(m *testing.M) {
	if url := os.Getenv(withCloud); url != "" {
		drivers[cloud.Name] = func(context.Context, *host) (driver.Parts, error) { return cloud.NewDriver(url).Parts(), nil }
		os.Exit(execute(os.Args[1:]))
	}
	os.Exit(m.Run())
}

func TestBadCommandLines(t *testing.T) {
	for _, args := range [][]string{{"--config", "/does/not/exist"}, {"--log-format", "xml"}, {"extra"}, {"--no-such-flag"}} {
		if code := execute(args); code == 0 {
			t.Errorf("%v: exit code 0", args)
		}
	}
}
