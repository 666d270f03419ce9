package kinds_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/kinds"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/test/nettest"
	"fairlead.dev/fairlead/test/plugtest"
)

// executor notes the calls. Each call fails with fails.
type executor struct {
	calls []string
	fails error
}

func (x *executor) note(call, name string) error {
	x.calls = append(x.calls, call+" "+name)
	return x.fails
}

func (x *executor) Validate(l v1alpha1.PluginList) error { return x.note("Validate", l.Name) }

func (x *executor) Add(_ context.Context, _ plug.Interface, m plug.Made) (json.RawMessage, error) {
	return json.RawMessage(`{}`), x.note("Add", m.Name)
}
func (x *executor) Del(_ context.Context, m plug.Made) error   { return x.note("Del", m.Name) }
func (x *executor) Check(_ context.Context, m plug.Made) error { return x.note("Check", m.Name) }

func blue() *v1alpha1.PluginList {
	return &v1alpha1.PluginList{Name: "blue", CNIVersion: "1.1.0", Plugins: []string{`{"type":"first"}`}}
}

// The plugins of an interface follow its making and go before it, whether they make the
// interface or are its chain.
func TestPlugins(t *testing.T) {
	nettest.NeedRoot(t)
	withChain := onBridge()
	withChain.Chain, withChain.Args = blue(), "IgnoreUnknown=1"
	delegated := plugtest.Default(v1alpha1.Binding{Delegate: blue()})
	delegated.MTU, delegated.Args = 0, "IgnoreUnknown=1"
	for name, i := range map[string]plug.Interface{"chain": withChain, "delegate": delegated} {
		t.Run(name, func(t *testing.T) {
			host, pod, x := nettest.NewHost(t), nettest.NewNamespace(t), &executor{}
			kinds := kinds.All(host).Executing(x)
			m, err := kinds.Plan(pod.Place(), i)
			nettest.Must(t, err)
			if diff := cmp.Diff(&plug.Plugins{List: *blue(), Args: "IgnoreUnknown=1"}, m.Plugins); diff != "" {
				t.Errorf("plugins of Made: %s", diff)
			}
			nettest.Must(t, kinds.Make(t.Context(), pod, i))
			result, err := kinds.Execute(t.Context(), i, m)
			if err != nil || string(result) != `{}` {
				t.Errorf("Execute: %s, %v", result, err)
			}
			x.fails = errors.New("out of luck")
			seen, err := plug.Namespaces{}.Inspect(t.Context(), pod)
			nettest.Must(t, err)
			if diffs, err := kinds.Differences(t.Context(), m, seen["eth0"]); err != nil || !slices.Equal(diffs, []string{"interface eth0: out of luck"}) {
				t.Errorf("Differences: %q, %v", diffs, err)
			}
			if err := kinds.Remove(t.Context(), m); !errors.Is(err, x.fails) {
				t.Errorf("Remove: %v", err)
			}
			if links := nettest.LinkNames(t, pod); !slices.Equal(links, []string{"lo"}) {
				t.Errorf("after a DEL that failed the pod has %v", links)
			}
			x.fails = nil
			nettest.Must(t, kinds.Remove(t.Context(), m))
			if diff := cmp.Diff([]string{"Validate blue", "Add eth0", "Check eth0", "Del eth0", "Del eth0"}, x.calls); diff != "" {
				t.Error(diff)
			}
			if gone, err := kinds.Gone(t.Context(), m); err != nil || gone != (name == "chain") {
				t.Errorf("gone is %t, %v", gone, err)
			}
			nettest.Must(t, kinds.RemoveUnknown(t.Context(), pod.Place(), "c1", "eth0"))
		})
	}
}

// Nothing is made if plugins cannot be executed, or if the name of their interface is
// taken: their DEL would remove the interface of others.
func TestPluginsAreRefused(t *testing.T) {
	nettest.NeedRoot(t)
	host, pod, x := nettest.NewHost(t), nettest.NewNamespace(t), &executor{}
	delegated := plugtest.Default(v1alpha1.Binding{Delegate: blue()})
	both, foreign := delegated, plugtest.Default(v1alpha1.Binding{AddressOnly: &v1alpha1.AddressOnlyBinding{}})
	both.Chain, foreign.Chain = blue(), blue()
	limited := delegated
	limited.Bandwidth = &plug.Bandwidth{}
	withChain := onBridge()
	withChain.Chain = blue()
	executing := kinds.All(host).Executing(x)
	for _, tt := range []struct {
		kinds *kinds.Table
		i     plug.Interface
		says  string
	}{
		{kinds.All(host), withChain, "no plugins are executed here"},
		{kinds.All(host), delegated, "must be one of addressOnly"},
		{executing, both, "binding.delegate has the whole list"},
		{executing, foreign, "another plugin makes the interface"},
		{executing, limited, "bandwidth must not be set"},
	} {
		if _, err := tt.kinds.Plan(pod.Place(), tt.i); !errors.Is(err, link.ErrInvalid) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%v, want ErrInvalid with %q", err, tt.says)
		}
	}
	x.fails = errors.New(`type: "../sh"`)
	if _, err := executing.Plan(pod.Place(), delegated); !errors.Is(err, link.ErrInvalid) || !errors.Is(err, x.fails) {
		t.Errorf("a list that is not valid: %v", err)
	}
	m := plug.Made{Kind: plug.KindBridge, ContainerID: "c1", Name: "eth0", HostLink: plug.HostName("c1", "eth0"), Plugins: &plug.Plugins{List: *blue()}}
	if err := kinds.All(host).Remove(t.Context(), m); err == nil {
		t.Error("a build without plugins removes an interface that has some")
	}
	nettest.AddBridge(t, pod, "eth0", 1500)
	if err := executing.Make(t.Context(), pod, delegated); !errors.Is(err, link.ErrExists) {
		t.Errorf("Make of a name that is taken: %v", err)
	}
}
