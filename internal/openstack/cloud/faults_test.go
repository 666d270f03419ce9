package cloud_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"fairlead.dev/fairlead/internal/openstack/cloud"
	"fairlead.dev/fairlead/test/cloudtest"
)

func spec(network, name string) cloud.PortSpec {
	return cloud.PortSpec{Name: name, Network: network, DeviceID: "uid-" + name, DeviceOwner: "compute:fairlead"}
}

// once returns a fault for the first request of a method and path.
func once(method, path string, f cloudtest.Fault) func(string, string) cloudtest.Fault {
	var done atomic.Bool
	return func(m, p string) cloudtest.Fault {
		if m == method && p == path && done.CompareAndSwap(false, true) {
			return f
		}
		return cloudtest.Fault{}
	}
}

func TestOneTokenForAll(t *testing.T) {
	s := cloudtest.New(t)
	c := connect(t, s)
	n, _ := s.AddNetwork(t, "n", "10.0.0.0/24")
	s.ExpireTokens()
	s.ResetCalls()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			if _, err := c.CreatePort(t.Context(), spec(n, fmt.Sprint(i))); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := s.Calls()["POST /auth/tokens"]; got != 1 {
		t.Errorf("%d new tokens for 8 callers, want 1", got)
	}
	if got := len(s.Objects("ports")); got != 8 {
		t.Errorf("%d ports, want 8", got)
	}
}

// The file is read again when the credentials change.
func TestRenewedCredentials(t *testing.T) {
	s := cloudtest.New(t)
	c := connect(t, s)
	s.SetSecret("renewed")
	s.ExpireTokens()
	if _, err := c.Networks(t.Context()); !errors.Is(err, cloud.ErrForbidden) {
		t.Errorf("with old credentials: %v, want %v", err, cloud.ErrForbidden)
	}
	if err := s.WriteFile(s.File, s.URL); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Networks(t.Context()); err != nil {
		t.Errorf("with the new file: %v", err)
	}
}

// A login that is refused or lost does not make an object look deleted.
func TestLoginIsNoAnswer(t *testing.T) {
	for name, f := range map[string]cloudtest.Fault{
		"404":  {Status: http.StatusNotFound, Body: `{"error": {"code": 404, "message": "no"}}`},
		"lost": {LoseReply: true},
	} {
		s := cloudtest.New(t)
		c := connect(t, s)
		n, _ := s.AddNetwork(t, "n", "10.0.0.0/24")
		p, err := c.CreatePort(t.Context(), spec(n, "p"))
		if err != nil {
			t.Fatal(err)
		}
		s.ExpireTokens()
		s.Inject(once(http.MethodPost, "/auth/tokens", f))
		if err := c.DeletePort(t.Context(), p.ID); !errors.Is(err, cloud.ErrUnavailable) {
			t.Errorf("%s: %v, want %v", name, err, cloud.ErrUnavailable)
		}
		if s.Object("ports", p.ID) == nil {
			t.Errorf("%s: the port is deleted", name)
		}
	}
}

// A proxy that knows no path answers 404, which is no evidence that a port is gone.
func TestProxyIsNoAnswer(t *testing.T) {
	s := cloudtest.New(t)
	c := connect(t, s)
	n, _ := s.AddNetwork(t, "n", "10.0.0.0/24")
	p, err := c.CreatePort(t.Context(), spec(n, "p"))
	if err != nil {
		t.Fatal(err)
	}
	s.Inject(once(http.MethodDelete, "/ports/{id}", cloudtest.Fault{Status: http.StatusNotFound, Body: "<html>"}))
	if err := c.DeletePort(t.Context(), p.ID); !errors.Is(err, cloud.ErrUnavailable) {
		t.Errorf("404 of a proxy: %v, want %v", err, cloud.ErrUnavailable)
	}
}

// An answer in JSON that is not Neutron's is no evidence that there is nothing.
func TestAnswerOfAnother(t *testing.T) {
	s := cloudtest.New(t)
	c := connect(t, s)
	n, _ := s.AddNetwork(t, "n", "10.0.0.0/24")
	p, err := c.CreatePort(t.Context(), spec(n, "p"))
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{`{}`, `{"status": "ok"}`, `[]`, `"ok"`} {
		s.Inject(func(m, _ string) cloudtest.Fault {
			if m == http.MethodGet {
				return cloudtest.Fault{Status: http.StatusOK, Body: body}
			}
			return cloudtest.Fault{}
		})
		_, onePort := c.Port(t.Context(), p.ID)
		_, ports := c.Ports(t.Context(), cloud.PortQuery{Network: n})
		_, trunk := c.TrunkOf(t.Context(), p.ID)
		_, quotas := c.Quotas(t.Context(), "")
		for what, err := range map[string]error{"a port": onePort, "ports": ports, "a trunk": trunk, "quotas": quotas} {
			if !errors.Is(err, cloud.ErrUnavailable) {
				t.Errorf("%s read as %s: %v, want %v", what, body, err, cloud.ErrUnavailable)
			}
		}
	}
}

// A request that lacks what the API needs is invalid, and is not sent.
func TestIncompleteRequest(t *testing.T) {
	s := cloudtest.New(t)
	c := connect(t, s)
	if _, err := c.CreatePort(t.Context(), spec("", "p")); !errors.Is(err, cloud.ErrInvalid) {
		t.Errorf("a port without a network: %v, want %v", err, cloud.ErrInvalid)
	}
	if sent := s.Calls()["POST /ports"]; sent != 0 {
		t.Errorf("%d requests, want none", sent)
	}
}

// Neutron 2025.1 answers 500 to a binding of a port that is gone.
func TestBindingOfAPortThatIsGone(t *testing.T) {
	s := cloudtest.New(t)
	c := connect(t, s)
	n, _ := s.AddNetwork(t, "n", "10.0.0.0/24")
	p, err := c.CreatePort(t.Context(), spec(n, "p"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []error{cloud.ErrUnavailable, cloud.ErrNotFound} {
		s.Inject(once(http.MethodPost, "/ports/{id}/bindings", cloudtest.Fault{Status: http.StatusInternalServerError}))
		if err := c.Bindings.Add(t.Context(), p.ID, "host"); !errors.Is(err, want) {
			t.Errorf("error %v, want %v", err, want)
		}
		if err := c.DeletePort(t.Context(), p.ID); err != nil {
			t.Fatal(err)
		}
	}
}

// Kuryr's pools lost ports whose bulk reply did not arrive. The next call finds them.
func TestLostBulkReply(t *testing.T) {
	s := cloudtest.New(t)
	c := connect(t, s)
	n, _ := s.AddNetwork(t, "n", "10.0.0.0/24")
	specs := []cloud.PortSpec{spec(n, "a"), spec(n, "b"), spec(n, "c")}
	s.Inject(once(http.MethodPost, "/ports", cloudtest.Fault{LoseReply: true}))
	if _, err := c.CreatePorts(t.Context(), specs); !errors.Is(err, cloud.ErrUnavailable) {
		t.Fatalf("lost reply: %v, want %v", err, cloud.ErrUnavailable)
	}
	if got := s.Calls()["POST /ports"]; got != 1 {
		t.Errorf("the write was sent %d times, want 1", got)
	}
	made, err := c.CreatePorts(t.Context(), specs)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Calls()["POST /ports"]; got != 1 {
		t.Errorf("the write was sent %d times in all, want 1", got)
	}
	known := map[string]bool{}
	for i, p := range made {
		known[p.ID] = true
		if p.Name != specs[i].Name || !slices.Contains(p.Tags, c.Tag()) {
			t.Errorf("port %d is %q with tags %v", i, p.Name, p.Tags)
		}
	}
	for _, o := range s.Objects("ports") {
		if id, ok := o["id"].(string); !ok || !known[id] {
			t.Errorf("port %v is unknown", o["name"])
		}
	}
}

// A crash between the create of a port and its tag leaves a port without tags. The next
// create of the same port puts them.
func TestDroppedTagIsPut(t *testing.T) {
	s := cloudtest.New(t)
	c := connect(t, s)
	n, _ := s.AddNetwork(t, "n", "10.0.0.0/24")
	for name, resource := range map[string]string{"ports": "/ports/{id}/tags", "networks": "/networks/{id}/tags", "security-groups": "/security-groups/{id}/tags"} {
		create := map[string]func(context.Context) ([]string, error){
			"ports": func(ctx context.Context) ([]string, error) {
				p, err := c.CreatePort(ctx, spec(n, "p"))
				return p.Tags, err
			},
			"networks": func(ctx context.Context) ([]string, error) {
				o, err := c.CreateNetwork(ctx, "", "fairlead-x")
				return o.Tags, err
			},
			"security-groups": func(ctx context.Context) ([]string, error) {
				o, err := c.Groups.CreateGroup(ctx, "", "fairlead-x", "nodes")
				return o.Tags, err
			},
		}[name]
		before := len(s.Objects(name))
		s.Inject(once(http.MethodPut, resource, cloudtest.Fault{LoseRequest: true}))
		if _, err := create(t.Context()); !errors.Is(err, cloud.ErrUnavailable) {
			t.Errorf("%s: crash before the tag: %v, want %v", name, err, cloud.ErrUnavailable)
		}
		tags, err := create(t.Context())
		if err != nil || !slices.Equal(tags, []string{c.Tag()}) {
			t.Errorf("%s: tags %v, %v; want that of the cluster", name, tags, err)
		}
		if got := len(s.Objects(name)) - before; got != 1 {
			t.Errorf("%s: %d were created, want 1", name, got)
		}
	}
}

// With ML2's extension driver the tags of the POST stay, and no request puts them.
func TestKeptTags(t *testing.T) {
	s := cloudtest.New(t)
	s.KeepTags(true)
	c := connect(t, s)
	n, _ := s.AddNetwork(t, "n", "10.0.0.0/24")
	p, err := c.CreatePort(t.Context(), spec(n, "p"))
	if err != nil || !slices.Equal(p.Tags, []string{c.Tag()}) {
		t.Errorf("tags %v, %v", p.Tags, err)
	}
	if got := s.Calls()["PUT /ports/{id}/tags"]; got != 0 {
		t.Errorf("%d requests put tags, want 0", got)
	}
}

func TestWritesAreNotRepeated(t *testing.T) {
	s := cloudtest.New(t)
	c := connect(t, s)
	n, subnets := s.AddNetwork(t, "n", "10.0.0.0/24")
	router := s.Add(t, "routers", cloudtest.AdminProject, cloudtest.Object{"name": "r"})
	p, err := c.CreatePort(t.Context(), spec(n, "p"))
	if err != nil {
		t.Fatal(err)
	}
	name := "x"
	for _, test := range []struct {
		method, path string
		call         func(context.Context) error
	}{
		{http.MethodPost, "/ports", func(ctx context.Context) error { _, err := c.CreatePort(ctx, spec(n, "q")); return err }},
		{http.MethodPut, "/ports/{id}", func(ctx context.Context) error {
			_, err := c.UpdatePort(ctx, p.ID, 0, cloud.PortChange{Name: &name})
			return err
		}},
		{http.MethodDelete, "/ports/{id}", func(ctx context.Context) error { return c.DeletePort(ctx, p.ID) }},
		{http.MethodPut, "/routers/{id}/add_router_interface", func(ctx context.Context) error { return c.Routers.Connect(ctx, router, subnets[0]) }},
	} {
		for _, f := range []cloudtest.Fault{{LoseRequest: true}, {LoseReply: true}, {Status: 500}, {Status: 503, Body: `{}`}} {
			s.ResetCalls()
			s.Inject(func(m, p string) cloudtest.Fault {
				if m == test.method && p == test.path {
					return f
				}
				return cloudtest.Fault{}
			})
			err := test.call(t.Context())
			sent := s.Calls()[test.method+" "+test.path]
			if f.LoseReply && sent == 0 {
				continue // the call before was done, though its reply was lost
			}
			if !errors.Is(err, cloud.ErrUnavailable) || sent != 1 {
				t.Errorf("%s %s with %+v: %v, sent %d times; want %v, sent once", test.method, test.path, f, err, sent, cloud.ErrUnavailable)
			}
			if f.LoseReply {
				break
			}
		}
	}
}

func TestReadsAreRepeated(t *testing.T) {
	s := cloudtest.New(t)
	c := connect(t, s)
	n, _ := s.AddNetwork(t, "n", "10.0.0.0/24")
	s.Inject(once(http.MethodGet, "/networks/{id}", cloudtest.Fault{LoseReply: true}))
	if _, err := c.Network(t.Context(), n); err != nil {
		t.Errorf("read whose first reply is lost: %v", err)
	}
	s.ResetCalls()
	s.Inject(func(string, string) cloudtest.Fault { return cloudtest.Fault{LoseRequest: true} })
	// net/http itself repeats the first read once: its connection was idle before.
	if _, err := c.Network(t.Context(), n); !errors.Is(err, cloud.ErrUnavailable) || s.Calls()["GET /networks/{id}"] > 4 {
		t.Errorf("reads that are all lost: %v after %v, want %v after 4", err, s.Calls(), cloud.ErrUnavailable)
	}
}

// A lost reply may end after the next create looked: then two ports exist.
func TestDoublesAreDeleted(t *testing.T) {
	s := cloudtest.New(t)
	c := connect(t, s)
	n, _ := s.AddNetwork(t, "n", "10.0.0.0/24")
	attributes := cloudtest.Object{"network_id": n, "name": "p", "device_id": "uid-p", "device_owner": "compute:fairlead"}
	oldest := s.Add(t, "ports", cloudtest.AdminProject, attributes)
	double := s.Add(t, "ports", cloudtest.AdminProject, attributes)
	attributes["binding:host_id"] = "node1"
	bound := s.Add(t, "ports", cloudtest.AdminProject, attributes)
	p, err := c.CreatePort(t.Context(), spec(n, "p"))
	if err != nil || p.ID != oldest {
		t.Fatalf("adopted %s, %v; want the oldest %s", p.ID, err, oldest)
	}
	if s.Object("ports", double) != nil || s.Object("ports", bound) == nil {
		t.Error("want the double that no host has bound deleted, and only that")
	}
}

// The pages of a list are read with their marker alone: behind a proxy, links name another
// server, which must not get the token.
func TestPages(t *testing.T) {
	s := cloudtest.New(t)
	c := connect(t, s)
	n, _ := s.AddNetwork(t, "n", "10.0.0.0/16")
	s.SetQuota(cloudtest.AdminProject, "port", -1)
	for i := range 1001 {
		s.Add(t, "ports", cloudtest.AdminProject, cloudtest.Object{"network_id": n, "name": fmt.Sprint(i)})
	}
	s.ResetCalls()
	all, err := c.Ports(t.Context(), cloud.PortQuery{Network: n})
	if err != nil || len(all) != 1001 || s.Calls()["GET /ports"] != 2 {
		t.Errorf("%d ports, %v in %v; want 1001 in 2 pages", len(all), err, s.Calls())
	}
	var ids []string
	for _, p := range all[:250] {
		ids = append(ids, p.ID)
	}
	s.ResetCalls()
	statuses, err := c.Statuses(t.Context(), ids)
	if err != nil || len(statuses) != 250 || s.Calls()["GET /ports"] != 3 {
		t.Errorf("%d statuses, %v in %v; want 250 in 3 requests", len(statuses), err, s.Calls())
	}
}

// Only one request that creates many ports is in flight.
func TestOneBulkInFlight(t *testing.T) {
	s := cloudtest.NewServer()
	var inFlight, most atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && r.URL.Path == "/network/v2.0/ports" {
			most.Store(max(most.Load(), inFlight.Add(1)))
			defer inFlight.Add(-1)
		}
		s.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	s.File = filepath.Join(t.TempDir(), "clouds.yaml")
	if err := s.WriteFile(s.File, server.URL); err != nil {
		t.Fatal(err)
	}
	c := connect(t, s)
	n, _ := s.AddNetwork(t, "n", "10.0.0.0/24")
	s.Inject(func(m, _ string) cloudtest.Fault {
		if m == http.MethodPost {
			return cloudtest.Fault{Delay: 20 * time.Millisecond}
		}
		return cloudtest.Fault{}
	})
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			if _, err := c.CreatePorts(t.Context(), []cloud.PortSpec{spec(n, fmt.Sprint("a", i)), spec(n, fmt.Sprint("b", i))}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if most.Load() != 1 || len(s.Objects("ports")) != 8 {
		t.Errorf("%d requests at once for %d ports, want 1 for 8", most.Load(), len(s.Objects("ports")))
	}
}

func TestConfig(t *testing.T) {
	s := cloudtest.New(t)
	for name, test := range map[string]struct {
		change func(*cloud.Config)
		want   error
	}{
		"no file":     {func(c *cloud.Config) { c.File += "x" }, cloud.ErrInvalid},
		"no cloud":    {func(c *cloud.Config) { c.Cloud = "x" }, cloud.ErrInvalid},
		"no cluster":  {func(c *cloud.Config) { c.Cluster = "" }, cloud.ErrInvalid},
		"bad cluster": {func(c *cloud.Config) { c.Cluster = "a,b" }, cloud.ErrInvalid},
	} {
		cfg := cloud.Config{File: s.File, Cloud: cloudtest.Admin, Cluster: "c1"}
		test.change(&cfg)
		if _, err := cloud.New(t.Context(), cfg); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
	// Without a file it is that of other clients of OpenStack.
	t.Setenv("OS_CLIENT_CONFIG_FILE", s.File)
	if _, err := cloud.New(t.Context(), cloud.Config{Cloud: cloudtest.Member, Cluster: "c1"}); err != nil {
		t.Errorf("the usual file: %v", err)
	}
	s.Inject(func(string, string) cloudtest.Fault { return cloudtest.Fault{LoseRequest: true} })
	if _, err := cloud.New(t.Context(), cloud.Config{File: s.File, Cloud: cloudtest.Admin, Cluster: "c1"}); !errors.Is(err, cloud.ErrUnavailable) {
		t.Errorf("no Keystone: %v, want %v", err, cloud.ErrUnavailable)
	}
}

// An ID that comes from elsewhere is no path to another object.
func TestHostileIDs(t *testing.T) {
	s := cloudtest.New(t)
	c := connect(t, s)
	s.ResetCalls()
	for _, id := range []string{"", ".", "..", "../networks/x", "a/b", "a?b", "a%2fb", "a b"} {
		if err := c.DeletePort(t.Context(), id); !errors.Is(err, cloud.ErrInvalid) {
			t.Errorf("delete port %q: %v, want %v", id, err, cloud.ErrInvalid)
		}
	}
	if len(s.Calls()) != 0 {
		t.Errorf("requests %v, want none", s.Calls())
	}
}

// A pair that is no prefix is refused before a request is sent.
func TestInvalidPair(t *testing.T) {
	s := cloudtest.New(t)
	c := connect(t, s)
	n, _ := s.AddNetwork(t, "n", "10.0.0.0/24")
	p, err := c.CreatePort(t.Context(), spec(n, "p"))
	if err != nil {
		t.Fatal(err)
	}
	s.ResetCalls()
	_, err = c.UpdatePort(t.Context(), p.ID, 0, cloud.PortChange{Pairs: &[]cloud.Pair{{MAC: "fa:16:3e:00:00:01"}}})
	if !errors.Is(err, cloud.ErrInvalid) || errors.Is(err, cloud.ErrUnavailable) || len(s.Calls()) != 0 {
		t.Errorf("%v after %v, want %v without a request", err, s.Calls(), cloud.ErrInvalid)
	}
}

func TestMetrics(t *testing.T) {
	s := cloudtest.New(t)
	r := prometheus.NewRegistry()
	c, err := cloud.New(t.Context(), cloud.Config{File: s.File, Cloud: cloudtest.Admin, Cluster: "c1", Registry: r})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Port(t.Context(), "aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa"); !errors.Is(err, cloud.ErrNotFound) {
		t.Fatal(err)
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v, %v", problems, err)
	}
	var labels []string
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				labels = append(labels, f.GetName()+" "+l.GetName()+"="+l.GetValue())
			}
		}
	}
	for _, want := range []string{
		"fairlead_openstack_call_duration_seconds operation=read_port",
		"fairlead_openstack_call_duration_seconds result=not_found",
		"fairlead_openstack_requests_total status=404",
	} {
		if !slices.Contains(labels, want) {
			t.Errorf("labels %q lack %q", labels, want)
		}
	}
	if n, err := testutil.GatherAndCount(r, "fairlead_openstack_call_duration_seconds"); err != nil || n != 1 {
		t.Errorf("%d series of calls, %v; want 1", n, err)
	}
}
