package cloud_test

import (
	"testing"

	"fairlead.dev/fairlead/internal/openstack/cloud"
	"fairlead.dev/fairlead/test/cloudtest"
)

// connect returns a connection to a cloud in memory, as its administrator.
func connect(t *testing.T, s *cloudtest.Server) *cloud.Cloud {
	t.Helper()
	return connectAs(t, s, cloudtest.Admin)
}

func connectAs(t *testing.T, s *cloudtest.Server, entry string) *cloud.Cloud {
	t.Helper()
	c, err := cloud.New(t.Context(), cloud.Config{File: s.File, Cloud: entry, Cluster: "c1"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}
