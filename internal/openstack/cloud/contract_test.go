package cloud_test

import (
	"testing"

	"fairlead.dev/fairlead/internal/openstack/cloud"
	"fairlead.dev/fairlead/test/cloudtest"
	"fairlead.dev/fairlead/test/openstack/contract"
)

func TestContract(t *testing.T) {
	s := cloudtest.New(t)
	s.AutoActive(true)
	other, err := cloud.New(t.Context(), cloud.Config{File: s.File, Cloud: cloudtest.Admin, Cluster: "c2"})
	if err != nil {
		t.Fatal(err)
	}
	s.FailBinding(func(p cloudtest.Object) bool { return p["binding:host_id"] == "no-such-host.example" })
	contract.Run(t, contract.Lab{
		Cloud: connect(t, s), Other: other, Member: connectAs(t, s, cloudtest.Member), Host: "node1", SecondHost: "node2.example",
		Router: func(tb testing.TB, name string) string {
			tb.Helper()
			return s.Add(tb, "routers", cloudtest.AdminProject, cloudtest.Object{"name": name})
		},
		Pool: func(tb testing.TB, name, prefix string) string {
			tb.Helper()
			return s.Add(tb, "subnetpools", cloudtest.AdminProject, cloudtest.Object{
				"name": name, "prefixes": []any{prefix}, "default_prefixlen": 24, "min_prefixlen": 24,
			})
		},
		Policy: func(tb testing.TB, name string) string {
			tb.Helper()
			return s.Add(tb, "qos/policies", cloudtest.AdminProject, cloudtest.Object{"name": name})
		},
		Shared: func(tb testing.TB, resource, name string) string {
			tb.Helper()
			o := cloudtest.Object{"name": name, "shared": true}
			if resource == "subnetpools" {
				o["prefixes"], o["default_prefixlen"], o["min_prefixlen"] = []any{"10.79.0.0/23"}, 24, 24
			}
			return s.Add(tb, resource, "another-project", o)
		},
		SetQuota: func(_ testing.TB, ports int) { s.SetQuota(cloudtest.AdminProject, "port", ports) },
	})
}
