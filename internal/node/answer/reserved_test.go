package answer

import (
	"errors"
	"strings"
	"testing"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/node/ledger"
)

// TestNotReservedForPlugins covers the host ports that a pod requests of plugins: by
// portMappings of its annotation, for a chain or a delegated network.
func TestNotReservedForPlugins(t *testing.T) {
	reserved := []ReservedPort{{"tcp", 10250, 10250, "hostPorts.reserved"}, {"udp", 4789, 4789, "vxlan.port"}}
	for _, c := range []struct {
		name, arguments, want string
	}{
		{"another port", `{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}`, ""},
		{"another protocol", `{"portMappings":[{"hostPort":10250,"containerPort":80,"protocol":"udp"}]}`, ""},
		{"no host port", `{"ips":["10.9.0.7/24"]}`, ""},
		{"no arguments", ``, ""},
		{"the kubelet's", `{"portMappings":[{"hostPort":8080,"containerPort":80},{"hostPort":10250,"containerPort":80,"protocol":"tcp"}]}`, "10250/tcp"},
		{"without a protocol", `{"portMappings":[{"hostPort":10250,"containerPort":80}]}`, "10250/tcp"},
		{"in capitals", `{"portMappings":[{"HostPort":4789,"ContainerPort":80,"Protocol":"UDP"}]}`, "4789/udp"},
		{"no list", `{"portMappings":{"hostPort":10250}}`, "runtimeConfig"},
	} {
		list := &v1alpha1.PluginList{Name: "n", CNIVersion: "1.0.0", Plugins: []string{`{"type":"portmap"}`}, RuntimeConfig: c.arguments}
		for kind, i := range map[string]v1alpha1.Interface{
			"chain":    {Name: "net1", Network: "web/n", Chain: list},
			"delegate": {Name: "net1", Network: "web/n", Binding: v1alpha1.Binding{Delegate: list}},
		} {
			// The default interface before it has no plugins.
			add := &ledger.Add{Interfaces: []ledger.Interface{{Interface: v1alpha1.Interface{Name: "eth0"}}, {Interface: i}}}
			err := NotReserved(add, ledger.Pod{Namespace: "web", Name: "p"}, reserved)
			switch {
			case c.want == "" && err != nil:
				t.Errorf("%s, %s: %v", kind, c.name, err)
			case c.want != "" && (!errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "web/n")):
				t.Errorf("%s, %s: %v; want fault.ErrInvalid with %q and the network", kind, c.name, err, c.want)
			}
		}
	}
}
