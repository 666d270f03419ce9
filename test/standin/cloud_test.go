package standin

import (
	"context"
	"net"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/test/cloudtest"
)

// The commands of a person have the effects that the tour relies on.
func TestCommands(t *testing.T) {
	c, err := NewCloud("127.0.0.1:0", func(ctx context.Context, address string) (net.Listener, error) {
		return (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	})
	if err == nil {
		err = c.Start(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Stop() })
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	commands := &http.Server{Handler: c.Commands()} //nolint:gosec // for this test alone
	go func() { _ = commands.Serve(listener) }()
	t.Cleanup(func() { _ = commands.Close() })

	call := func() bool { // one call of Keystone, without credentials
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.URL()+"/identity/", nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return false
		}
		return response.Body.Close() == nil
	}
	create := func() {
		_, err := c.Create("ports", cloudtest.AdminProject, cloudtest.Object{
			"name": "default/a/eth0", "network_id": c.Objects("networks")[0]["id"], "binding:host_id": "node-1", "mac_address": "fa:16:3e:00:00:11",
			"fixed_ips": []any{cloudtest.Object{"ip_address": "10.70.0.9"}}, "security_groups": []any{c.group()},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	steps := []struct {
		do            func()
		command, want string
	}{
		{func() {}, "ports", "no ports\n"},
		{create, "ports", "NAME            ADDRESS    MAC                HOST    STATUS  GROUPS  TAGS\ndefault/a/eth0  10.70.0.9  fa:16:3e:00:00:11  node-1  DOWN    pods    \n"},
		{func() { call() }, "calls", "GET /: 1\ncalls of Neutron: 1\n"},
		{func() {}, "calls", "calls of Neutron: 0\n"},
		{func() {}, "stop", "Neutron is away\n"},
		{func() {
			if call() {
				t.Error("it answers while it is away")
			}
		}, "stop", "Neutron is away\n"},
		{func() {}, "start", "Neutron is back\n"},
		{func() {
			if !call() {
				t.Error("it does not answer when it is back")
			}
		}, "start", "Neutron is back\n"},
	}
	for _, s := range steps {
		s.do()
		got, err := Ask(t.Context(), socket, s.command)
		if diff := cmp.Diff(s.want, got); err != nil || diff != "" {
			t.Errorf("%s: error %v (-want +got):\n%s", s.command, err, diff)
		}
	}
	if _, err := Ask(t.Context(), socket, "more"); err == nil {
		t.Error("an unknown command has no error")
	}
}

// group returns the ID of the security group of the pods.
func (c *Cloud) group() any {
	for _, g := range c.Objects("security-groups") {
		if g["name"] == SecurityGroup {
			return g["id"]
		}
	}
	return nil
}
