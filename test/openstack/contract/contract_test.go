package contract

import (
	"context"
	"net/http"
	"os"
	"testing"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/gophercloud/gophercloud/v2/openstack/config"
	"github.com/gophercloud/gophercloud/v2/openstack/config/clouds"

	"fairlead.dev/fairlead/internal/openstack/cloud"
)

// The variables of TestReal beside OS_CLIENT_CONFIG_FILE and OS_CLOUD, which is an entry
// with the role admin.
const (
	hostVariable   = "FAIRLEAD_OPENSTACK_HOST"        // a host to which ports can be bound
	secondVariable = "FAIRLEAD_OPENSTACK_SECOND_HOST" // another one
	memberVariable = "FAIRLEAD_OPENSTACK_MEMBER"      // the entry of a plain member of another project
)

// TestReal runs the contract against the Neutron that the environment names.
func TestReal(t *testing.T) {
	file, entry := os.Getenv("OS_CLIENT_CONFIG_FILE"), os.Getenv("OS_CLOUD")
	if file == "" || entry == "" {
		t.Skip("needs a real Neutron: OS_CLIENT_CONFIG_FILE and OS_CLOUD name its clouds.yaml and an entry, " +
			hostVariable + " and " + secondVariable + " hosts for ports, and " + memberVariable + " an entry of another project")
	}
	dial := func(entry, cluster string) *cloud.Cloud {
		c, err := cloud.New(t.Context(), cloud.Config{File: file, Cloud: entry, Cluster: cluster})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	l := Lab{Cloud: dial(entry, "contract"), Other: dial(entry, "contract-other"), Host: os.Getenv(hostVariable), SecondHost: os.Getenv(secondVariable)}
	if m := os.Getenv(memberVariable); m != "" {
		l.Member = dial(m, "contract")
	}
	raw := &admin{client: neutron(t, file, entry)}
	l.Router = func(tb testing.TB, name string) string {
		tb.Helper()
		return raw.create(tb, "routers", "router", map[string]any{"name": name})
	}
	l.Pool = func(tb testing.TB, name, prefix string) string {
		tb.Helper()
		return raw.create(tb, "subnetpools", "subnetpool", map[string]any{
			"name": name, "prefixes": []string{prefix}, "default_prefixlen": 24, "min_prefixlen": 24,
		})
	}
	l.Policy = func(tb testing.TB, name string) string {
		tb.Helper()
		return raw.create(tb, "qos/policies", "policy", map[string]any{"name": name})
	}
	l.Shared = func(tb testing.TB, resource, name string) string {
		tb.Helper()
		body := map[string]any{"name": name, "shared": true, "project_id": anotherProject}
		if resource == "subnetpools" {
			body["prefixes"], body["default_prefixlen"], body["min_prefixlen"] = []string{"10.79.0.0/23"}, 24, 24
		}
		one := map[string]string{"networks": "network", "subnetpools": "subnetpool", "qos/policies": "policy"}[resource]
		return raw.create(tb, resource, one, body)
	}
	l.SetQuota = func(tb testing.TB, ports int) {
		tb.Helper()
		body := map[string]any{"quota": map[string]any{"port": ports}}
		raw.do(tb, http.MethodPut, []string{"quotas", l.Cloud.Project()}, body, nil)
	}
	Run(t, l)
}

// anotherProject is the ID of a project that no test has credentials of. Neutron checks no such ID.
const anotherProject = "5f2c1e0b9d7a4c36a8e1b0d94f6372c8"

// neutron returns a client for the objects that the product never makes.
func neutron(t *testing.T, file, entry string) *gophercloud.ServiceClient {
	t.Helper()
	auth, endpoint, tls, err := clouds.Parse(clouds.WithCloudName(entry), clouds.WithLocations(file))
	if err != nil {
		t.Fatal(err)
	}
	provider, err := config.NewProviderClient(t.Context(), auth, config.WithTLSConfig(tls))
	if err != nil {
		t.Fatal(err)
	}
	client, err := openstack.NewNetworkV2(provider, endpoint)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

type admin struct{ client *gophercloud.ServiceClient }

// create creates an object that ends with the test.
func (a *admin) create(tb testing.TB, resource, one string, body map[string]any) string {
	tb.Helper()
	var answer map[string]struct{ ID string }
	a.do(tb, http.MethodPost, []string{resource}, map[string]any{one: body}, &answer)
	id := answer[one].ID
	tb.Cleanup(func() { a.do(tb, http.MethodDelete, []string{resource, id}, nil, nil) })
	return id
}

func (a *admin) do(tb testing.TB, method string, path []string, body, into any) {
	tb.Helper()
	opts := &gophercloud.RequestOpts{JSONBody: body, JSONResponse: into, OkCodes: []int{200, 201, 204}}
	if _, err := a.client.Request(context.Background(), method, a.client.ServiceURL(path...), opts); err != nil { //nolint:bodyclose // gophercloud closes it
		tb.Errorf("%s %v: %v", method, path, err)
	}
}
