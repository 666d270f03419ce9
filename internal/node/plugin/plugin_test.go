package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/node/locks"
)

// fakePlugin calls its functions. It does nothing if a function is nil.
type fakePlugin struct {
	name     string
	inits    int
	setUp    func(ctx context.Context, r cniproto.Request) ([]byte, error)
	tearDown func(ctx context.Context, r cniproto.Request) error
	status   error
}

func (p *fakePlugin) Init(context.Context, *locks.Locks) error { p.inits++; return nil }
func (p *fakePlugin) Status() error                            { return p.status }

func (p *fakePlugin) SetUpPod(ctx context.Context, r cniproto.Request) ([]byte, error) {
	if p.setUp == nil {
		return nil, nil
	}
	return p.setUp(ctx, r)
}

func (p *fakePlugin) TearDownPod(ctx context.Context, r cniproto.Request) error {
	if p.tearDown == nil {
		return nil
	}
	return p.tearDown(ctx, r)
}

func newManager(t *testing.T, p Plugin) *Manager {
	t.Helper()
	m, err := NewManager(p, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// The kubelet returned a usable plugin together with the error of another plugin, and went
// on.
func TestChoose(t *testing.T) {
	made := func(name string) Candidate {
		return Candidate{Name: name, New: func() (Plugin, error) { return &fakePlugin{name: name}, nil }}
	}
	cases := []struct {
		name       string
		candidates []Candidate
		choose     string
		want       []string // parts of the error
	}{
		{name: "the one of that name", candidates: []Candidate{made("fairlead"), made("noop")}, choose: "noop"},
		{name: "a prefix is allowed", candidates: []Candidate{made("example.com/net")}, choose: "example.com/net"},
		{name: "unknown", candidates: []Candidate{made("fairlead"), made("noop")}, choose: "kubenet", want: []string{`"kubenet"`, "fairlead, noop"}},
		{name: "no name", candidates: []Candidate{made("fairlead")}, choose: "", want: []string{`""`, "fairlead"}},
		{name: "not a qualified name", candidates: []Candidate{made("fairlead"), made("a b")}, choose: "fairlead", want: []string{`"a b"`, "qualified name"}},
		{name: "two of one name", candidates: []Candidate{made("fairlead"), made("fairlead")}, choose: "fairlead", want: []string{`"fairlead"`, "another plugin has it"}},
		{
			name: "everything at once", candidates: []Candidate{made(""), made("-x"), made("noop"), made("noop")}, choose: "y",
			want: []string{`""`, `"-x"`, "plugin 3", `"y"`, "must be one of noop"},
		},
		{
			name: "one that cannot be made", choose: "x", want: []string{"network plugin x", "no such device"},
			candidates: []Candidate{{Name: "x", New: func() (Plugin, error) { return &fakePlugin{}, errors.New("no such device") }}},
		},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			p, err := Choose(tc.candidates, tc.choose)
			if (p == nil) == (err == nil) {
				t.Fatalf("plugin %v beside error %v", p, err)
			}
			if err == nil && (tc.want != nil || p.(*fakePlugin).name != tc.choose) {
				t.Fatalf("chose %q, want an error with %q", p.(*fakePlugin).name, tc.want)
			}
			for _, word := range tc.want {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("the error lacks %q: %v", word, err)
				}
			}
		})
	}
}

func TestManagerBeginsItsPluginOnce(t *testing.T) {
	p := &fakePlugin{name: "x"}
	m := newManager(t, p)
	if err := m.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := m.Init(t.Context()); err == nil || p.inits != 1 {
		t.Errorf("begun %d times, %v", p.inits, err)
	}
}

// fakeSysctls are the settings that the kernel has.
type fakeSysctls map[string]string

func (f fakeSysctls) Read(name string) (string, error) {
	value, ok := f[name]
	if !ok {
		return "", errors.New(name + " is not there")
	}
	return value, nil
}

func (f fakeSysctls) Set(name, value string) error {
	if _, err := f.Read(name); err != nil {
		return err
	}
	if f[name] == "read-only" {
		return errors.New("read-only file system")
	}
	f[name] = value
	return nil
}

func TestNoopSetsTheBridgeSettings(t *testing.T) {
	cases := []struct {
		name         string
		before, want fakeSysctls
	}{
		{"both", fakeSysctls{callIPTables: "0", callIP6Tables: "0"}, fakeSysctls{callIPTables: "1", callIP6Tables: "1"}},
		{"IPv6 is set already", fakeSysctls{callIPTables: "1", callIP6Tables: "1"}, fakeSysctls{callIPTables: "1", callIP6Tables: "1"}},
		{"no IPv6", fakeSysctls{callIPTables: "0"}, fakeSysctls{callIPTables: "1"}},
		{"no br_netfilter", fakeSysctls{}, fakeSysctls{}},
		{"a failure is only logged", fakeSysctls{callIPTables: "read-only", callIP6Tables: "0"}, fakeSysctls{callIPTables: "read-only", callIP6Tables: "1"}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			if err := NewNoop(tc.before).Init(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, tc.before); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestNoopPassesOnWhatWasThere(t *testing.T) {
	n := NewNoop(fakeSysctls{})
	cases := []struct{ name, config, want string }{
		{"alone", `{"cniVersion":"1.0.0"}`, `{"cniVersion":"1.0.0","interfaces":[],"ips":[],"dns":{}}`},
		{"null", `{"cniVersion":"0.4.0","prevResult":null}`, `{"cniVersion":"0.4.0","interfaces":[],"ips":[],"dns":{}}`},
		{"behind another", `{"cniVersion":"1.1.0","prevResult":{"cniVersion":"1.1.0","ips":[{"address":"10.0.0.5/32"}]}}`, `{"cniVersion":"1.1.0","ips":[{"address":"10.0.0.5/32"}]}`},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			got, err := n.SetUpPod(t.Context(), cniproto.Request{Verb: cniproto.VerbAdd, Config: json.RawMessage(tc.config)})
			if err != nil || string(got) != tc.want {
				t.Errorf("got %s, %v, want %s", got, err, tc.want)
			}
		})
	}
	if _, err := n.SetUpPod(t.Context(), cniproto.Request{Config: json.RawMessage(`{`)}); err == nil {
		t.Error("a malformed configuration was accepted")
	}
	if err := errors.Join(n.Status(), n.TearDownPod(t.Context(), cniproto.Request{})); err != nil {
		t.Error(err)
	}
}

// Metrics have the former names of the kubelet only if they are enabled.
func TestKubeletMetrics(t *testing.T) {
	fails := errors.New("no")
	p := &fakePlugin{
		setUp: func(_ context.Context, r cniproto.Request) ([]byte, error) {
			if r.ContainerID == "b" {
				return nil, fails
			}
			return nil, nil
		},
	}
	for _, asked := range []bool{false, true} {
		registry := prometheus.NewPedanticRegistry()
		m, err := NewManager(p, registry, asked)
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{"a", "b"} {
			if _, err := m.SetUpPod(t.Context(), cniproto.Request{ContainerID: id}); (err != nil) != (id == "b") {
				t.Fatal(err)
			}
		}
		if err := m.TearDownPod(t.Context(), cniproto.Request{ContainerID: "a"}); err != nil {
			t.Fatal(err)
		}
		want := ""
		if asked {
			want = `# HELP kubelet_network_plugin_operations_errors_total Network plugin operations that failed. By operation_type: set_up_pod, tear_down_pod.
# TYPE kubelet_network_plugin_operations_errors_total counter
kubelet_network_plugin_operations_errors_total{operation_type="set_up_pod"} 1
# HELP kubelet_network_plugin_operations_total Network plugin operations, failed ones included. By operation_type: set_up_pod, tear_down_pod.
# TYPE kubelet_network_plugin_operations_total counter
kubelet_network_plugin_operations_total{operation_type="set_up_pod"} 2
kubelet_network_plugin_operations_total{operation_type="tear_down_pod"} 1
`
		}
		if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "kubelet_network_plugin_operations_total", "kubelet_network_plugin_operations_errors_total"); err != nil {
			t.Error(err)
		}
		n, err := testutil.GatherAndCount(registry, "kubelet_network_plugin_operations_duration_seconds")
		if err != nil || (n == 2) != asked {
			t.Errorf("%d series of the duration, %v", n, err)
		}
		if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
			t.Errorf("%v, %v", problems, err)
		}
	}
}
