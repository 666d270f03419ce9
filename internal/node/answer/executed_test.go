package answer

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/test/nodetest"
)

func TestHandOver(t *testing.T) {
	list := v1alpha1.PluginList{Name: "blue", Plugins: []string{
		`{"type":"a","capabilities":{"portMappings":true,"ips":false}}`, `{"type":"b","capabilities":{"mac":true,"bandwidth":true}}`,
	}}
	const asked = `{"portMappings":[{"HostPort":80}],"ips":["10.0.0.1"],"mac":"02:00:00:00:00:01","io.kubernetes.cri.pod-annotations":{"a":"b"}}`
	for _, tt := range []struct {
		name, own, config, want string
		except                  []string
	}{
		{name: "declared", config: asked, want: `{"mac":"02:00:00:00:00:01","portMappings":[{"HostPort":80}]}`},
		{name: "the list's own stay", own: `{"mac":"02:00:00:00:00:02"}`, config: asked, want: `{"mac":"02:00:00:00:00:02","portMappings":[{"HostPort":80}]}`},
		{name: "a chain", config: asked, except: served, want: `{"mac":"02:00:00:00:00:01"}`},
		{name: "none", config: `{}`, own: `{"mac":"02:00:00:00:00:02"}`, want: `{"mac":"02:00:00:00:00:02"}`},
		{name: "null", config: `null`},
	} {
		l := list
		l.RuntimeConfig = tt.own
		got, err := handOver(&l, nodetest.Asking(tt.config), tt.except...)
		if err != nil || got.RuntimeConfig != tt.want || l.RuntimeConfig != tt.own {
			t.Errorf("%s: %v, %v; want %s", tt.name, got, err, tt.want)
		}
	}
	for _, l := range []v1alpha1.PluginList{{RuntimeConfig: "[]"}, {Plugins: []string{"x"}}} {
		if _, err := handOver(&l, nodetest.Asking(asked)); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%v: %v, want ErrInvalid", l, err)
		}
	}
}

// The recorded interface has what plugins have made. Values that no API server would
// accept are left out.
func TestExecuted(t *testing.T) {
	planned := ledger.Interface{Interface: v1alpha1.Interface{
		Name: "net1", Addresses: []string{"10.9.0.5/24"}, Gateways: []string{"10.9.0.1"}, MAC: "02:00:00:00:00:01",
		Binding: v1alpha1.Binding{Delegate: &v1alpha1.PluginList{Name: "blue"}},
	}, Made: plug.Made{Kind: plug.KindDelegate, Plugins: &plug.Plugins{}}}
	for _, tt := range []struct {
		name, result string
		want         v1alpha1.Interface
		fails        bool
	}{
		{
			name:   "all",
			result: `{"cniVersion":"1.1.0","interfaces":[{"name":"v1"},{"name":"net1","mac":"02:00:00:00:00:07","mtu":1400,"sandbox":"/n"}],"ips":[{"address":"10.9.0.7/24","interface":1},{"address":"10.9.0.1/24","interface":0},{"address":"fd09::7/64","interface":1}]}`,
			want:   v1alpha1.Interface{Name: "net1", MAC: "02:00:00:00:00:07", MTU: 1400, Addresses: []string{"10.9.0.7/24", "fd09::7/64"}},
		},
		{
			name:   "wrong values",
			result: `{"cniVersion":"1.1.0","interfaces":[{"name":"net1","mac":"hello","mtu":99999999999,"sandbox":"/n"}]}`,
			want:   v1alpha1.Interface{Name: "net1"},
		},
		{name: "no JSON", result: `{`, fails: true},
	} {
		got, err := Executed(planned, json.RawMessage(tt.result))
		if (err != nil) != tt.fails {
			t.Errorf("%s: %v", tt.name, err)
		}
		if tt.fails {
			continue
		}
		tt.want.Binding = planned.Binding
		if diff := cmp.Diff(tt.want, got.Interface); diff != "" || string(got.Made.Plugins.Result) != tt.result {
			t.Errorf("%s: %s", tt.name, diff)
		}
		if planned.Made.Plugins.Result != nil {
			t.Errorf("%s: the plan has changed", tt.name)
		}
	}
	chained := planned
	chained.Binding = v1alpha1.Binding{Bridge: &v1alpha1.BridgeBinding{Name: "b"}}
	got, err := Executed(chained, json.RawMessage(`{"cniVersion":"1.1.0","interfaces":[{"name":"net1","mac":"02:00:00:00:00:07","sandbox":"/n"}]}`))
	if diff := cmp.Diff(chained.Interface, got.Interface); err != nil || diff != "" {
		t.Errorf("a chain changes the interface: %v %s", err, diff)
	}
}
