package delegate

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	cnitypes "github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/node/answer"
	"fairlead.dev/fairlead/test/delegatetest"
)

// lab is a Delegate with the plugins first and second.
type lab struct {
	*Delegate
	*delegatetest.Bin
}

func newLab(t *testing.T) *lab {
	t.Helper()
	bin := delegatetest.New(t, "first", "second")
	d, err := New(Config{BinDir: bin.Dir, Socket: "/run/test/cni.sock", Metrics: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	return &lab{d, bin}
}

// shorten sets the deadline of a verb.
func (l *lab) shorten(verb string, to time.Duration) {
	l.timeouts = maps.Clone(l.timeouts)
	l.timeouts[verb] = to
}

// netns is a path that no namespace is at. Its directory exists.
const netns = "/tmp/netns-of-c1"

// answer1 is a result of the first plugin.
const answer1 = `{"cniVersion":"1.0.0","interfaces":[{"name":"veth7"},{"name":"IFNAME","mac":"02:00:00:00:00:07","sandbox":"NETNS"}],` +
	`"ips":[{"address":"10.9.0.7/24","gateway":"10.9.0.1","interface":1}],"routes":[{"dst":"0.0.0.0/0"}]}`

// list returns a list of the plugins first and second.
func list(version string) v1alpha1.PluginList {
	return v1alpha1.PluginList{Name: "blue", CNIVersion: version, Plugins: []string{`{"type":"first"}`, `{"type":"second"}`}}
}

// made returns an interface of the list that plugins make.
func made(l v1alpha1.PluginList) plug.Made {
	return plug.Made{
		Kind: plug.KindDelegate, ContainerID: "c1", Name: "net1", Namespace: link.Place{Path: netns},
		Plugins: &plug.Plugins{List: l, Args: "IgnoreUnknown=1;K8S_POD_NAME=p"},
	}
}

// fields returns fields of a configuration as JSON.
func fields(t *testing.T, config json.RawMessage, names ...string) map[string]string {
	t.Helper()
	var all map[string]json.RawMessage
	if err := json.Unmarshal(config, &all); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, n := range names {
		if v, ok := all[n]; ok {
			out[n] = string(v)
		}
	}
	return out
}

// A plugin gets exactly the variables of CNI, and its configuration with name, version,
// the result of the plugin before it, the capabilities that it declares, and args.
func TestInput(t *testing.T) {
	l := newLab(t)
	l.Set(t, "first", "ADD", delegatetest.Does{Answer: answer1})
	l.Set(t, "second", "ADD", delegatetest.Does{Answer: `{"cniVersion":"0.4.0"}`})
	pl := list("0.4.0")
	pl.Plugins = []string{
		`{"type":"first","name":"other","cniVersion":"0.3.1","capabilities":{"ips":true,"mac":false},"ipam":{"type":"fairlead-ipam"}}`,
		`{"type":"second","capabilities":{"mac":true},"args":{"labels":["x"]}}`,
	}
	pl.RuntimeConfig, pl.Args = `{"ips":["10.9.0.7/24"],"mac":"02:00:00:00:00:07","portMappings":[]}`, `{"color":"blue"}`
	if _, err := l.Add(t.Context(), plug.Interface{}, made(pl)); err != nil {
		t.Fatal(err)
	}
	calls := l.Calls(t)
	if diff := cmp.Diff([]string{"first ADD", "second ADD"}, delegatetest.Verbs(calls)); diff != "" {
		t.Fatal(diff)
	}
	want := map[string]string{
		"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c1", "CNI_NETNS": netns, "CNI_IFNAME": "net1", "CNI_PATH": l.Dir,
		"CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAME=p", "PATH": searchPath,
	}
	if diff := cmp.Diff(want, calls[0].Env); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	got := fields(t, calls[0].Config, "name", "cniVersion", "runtimeConfig", "args", "prevResult", "ipam")
	want = map[string]string{
		"name": `"blue"`, "cniVersion": `"0.4.0"`, "runtimeConfig": `{"ips":["10.9.0.7/24"]}`, "args": `{"cni":{"color":"blue"}}`,
		"ipam": `{"socket":"/run/test/cni.sock","type":"fairlead-ipam"}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the first plugin (-want +got):\n%s", diff)
	}
	got = fields(t, calls[1].Config, "name", "runtimeConfig", "args", "prevResult", "ipam")
	want = map[string]string{
		"name": `"blue"`, "runtimeConfig": `{"mac":"02:00:00:00:00:07"}`, "args": `{"cni":{"color":"blue"},"labels":["x"]}`,
		"prevResult": `{"cniVersion":"0.4.0","interfaces":[{"name":"veth7"},{"name":"net1","mac":"02:00:00:00:00:07","sandbox":"` + netns + `"}],` +
			`"ips":[{"version":"4","interface":1,"address":"10.9.0.7/24","gateway":"10.9.0.1"}],"routes":[{"dst":"0.0.0.0/0"}],"dns":{}}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the second plugin (-want +got):\n%s", diff)
	}
}

// Every version of a result becomes 1.1.0, and the interface is named also if the plugin
// has not named it.
func TestResults(t *testing.T) {
	type result struct {
		Interfaces []string
		IPs        []string
	}
	l := newLab(t)
	for _, tt := range []struct {
		name, answer string
		want         result
		fails        string
	}{
		{"1.0.0", answer1, result{[]string{"veth7@", "net1@" + netns}, []string{"10.9.0.7/24 on 1"}}, ""},
		{"1.1.0 with an MTU", strings.Replace(answer1, `1.0.0`, `1.1.0`, 1), result{[]string{"veth7@", "net1@" + netns}, []string{"10.9.0.7/24 on 1"}}, ""},
		{
			"0.3.1 without an index", `{"cniVersion":"0.3.1","interfaces":[{"name":"net1","sandbox":"x"},{"name":"net1","sandbox":"NETNS"},{"name":"veth7"}],"ips":[{"version":"4","address":"10.9.0.7/24"}]}`,
			result{[]string{"net1@x", "net1@" + netns, "veth7@"}, []string{"10.9.0.7/24 on 1"}},
			"",
		},
		{
			"0.4.0 without interfaces", `{"cniVersion":"0.4.0","ips":[{"version":"6","address":"fd09::7/64"}]}`,
			result{[]string{"net1@" + netns}, []string{"fd09::7/64 on 0"}},
			"",
		},
		{"0.2.0", `{"cniVersion":"0.2.0","ip4":{"ip":"10.9.0.7/24"},"ip6":{"ip":"fd09::7/64"}}`, result{[]string{"net1@" + netns}, []string{"10.9.0.7/24 on 0", "fd09::7/64 on 0"}}, ""},
		{"no version", `{"ips":[{"address":"10.9.0.7/24","interface":9}]}`, result{[]string{"net1@" + netns}, []string{"10.9.0.7/24 on 0"}}, ""},
		{"nothing is in it", `{}`, result{[]string{"net1@" + netns}, nil}, ""},
		{"null", `{"interfaces":[null],"ips":[null]}`, result{}, "must have no null"},
		{"no JSON", `hello`, result{}, "invalid character"},
		{"an unknown version", `{"cniVersion":"9.9.9"}`, result{}, "9.9.9"},
		{"too large", strings.Repeat(" ", maxOutput) + `{}`, result{}, "more than 1048576 bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l.Set(t, "first", "ADD", delegatetest.Does{Answer: tt.answer})
			pl := list("1.0.0")
			pl.Plugins = pl.Plugins[:1]
			raw, err := l.Add(t.Context(), plug.Interface{}, made(pl))
			if tt.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tt.fails) || !strings.Contains(err.Error(), "ADD of plugin first") || !errors.Is(err, fault.ErrPlugin) {
					t.Fatalf("%v, want ErrPlugin with %q", err, tt.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			res, err := types100.NewResult(raw)
			if err != nil {
				t.Fatal(err)
			}
			var got result
			for _, i := range res.(*types100.Result).Interfaces {
				got.Interfaces = append(got.Interfaces, i.Name+"@"+i.Sandbox)
			}
			for _, ip := range res.(*types100.Result).IPs {
				got.IPs = append(got.IPs, ip.Address.String()+" on "+string(rune('0'+*ip.Interface)))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" || res.Version() != "1.1.0" {
				t.Errorf("version %s (-want +got):\n%s", res.Version(), diff)
			}
		})
	}
}

// A chain gets the interface that Fairlead has made as its prevResult.
func TestChainBeginsWithTheInterface(t *testing.T) {
	l := newLab(t)
	l.Set(t, "first", "ADD", delegatetest.Does{Answer: `{}`})
	pl := list("1.1.0")
	pl.Plugins = pl.Plugins[:1]
	m := made(pl)
	m.Kind, m.HostLink = plug.KindBridge, "fl0"
	i := plug.Interface{
		Name: "net1", MTU: 1400, MAC: []byte{2, 0, 0, 0, 0, 7}, Addresses: []netip.Prefix{netip.MustParsePrefix("10.9.0.7/24")},
		Gateways: []netip.Addr{netip.MustParseAddr("10.9.0.1")},
	}
	if _, err := l.Add(t.Context(), i, m); err != nil {
		t.Fatal(err)
	}
	got := fields(t, l.Calls(t)[0].Config, "prevResult")["prevResult"]
	want := `{"cniVersion":"1.1.0","interfaces":[{"name":"fl0"},{"mac":"02:00:00:00:00:07","mtu":1400,"name":"net1","sandbox":"` + netns + `"}],` +
		`"ips":[{"address":"10.9.0.7/24","gateway":"10.9.0.1","interface":1}],"routes":[{"dst":"0.0.0.0/0","gw":"10.9.0.1"}]}`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// DEL goes backward, with the recorded result, and on after an error. A namespace that has
// ended is not passed.
func TestDel(t *testing.T) {
	l := newLab(t)
	m := made(list("1.1.0"))
	m.Plugins.Result = json.RawMessage(`{"cniVersion":"1.1.0","interfaces":[{"name":"net1","mtu":1400,"sandbox":"` + netns + `"}]}`)
	l.Set(t, "second", "DEL", delegatetest.Does{Exit: 1, Stderr: "panic: out of luck"})
	err := l.Del(t.Context(), m)
	if err == nil || !strings.Contains(err.Error(), "DEL of plugin second: exit status 1: panic: out of luck") || !errors.Is(err, fault.ErrPlugin) {
		t.Error(err)
	}
	calls := l.Calls(t)
	if diff := cmp.Diff([]string{"second DEL", "first DEL"}, delegatetest.Verbs(calls)); diff != "" {
		t.Fatal(diff)
	}
	for _, c := range calls {
		if got := fields(t, c.Config, "prevResult")["prevResult"]; !strings.Contains(got, `"mtu":1400`) {
			t.Errorf("%s: prevResult %s", c.Verb(), got)
		}
		if c.Env["CNI_NETNS"] != "" {
			t.Errorf("%s: namespace %q", c.Verb(), c.Env["CNI_NETNS"])
		}
	}
	m.Plugins.Result = nil // the daemon was killed during the ADD
	l.Set(t, "second", "DEL", delegatetest.Does{})
	if err := l.Del(t.Context(), m); err != nil {
		t.Error(err)
	}
	if got := fields(t, l.Calls(t)[0].Config, "prevResult"); len(got) > 0 {
		t.Errorf("DEL of an ADD without a result: %v", got)
	}
}

// A plugin that is not installed is an error of every verb, with the missing file, in
// words that no runtime takes for success.
func TestMissing(t *testing.T) {
	l := newLab(t)
	l.Remove(t, "first")
	m := made(list("1.1.0"))
	m.Plugins.Result = json.RawMessage(`{"cniVersion":"1.1.0"}`)
	for verb, do := range map[string]func() error{
		"ADD":    func() error { _, err := l.Add(t.Context(), plug.Interface{}, m); return err },
		"DEL":    func() error { return l.Del(t.Context(), m) },
		"CHECK":  func() error { return l.Check(t.Context(), m) },
		"GC":     func() error { return l.GC(t.Context(), m.Plugins.List, nil) },
		"STATUS": func() error { return l.Status(t.Context(), m.Plugins.List) },
	} {
		err := do()
		if err == nil || !strings.Contains(err.Error(), filepath.Join(l.Dir, "first")) || !errors.Is(err, fault.ErrPlugin) {
			t.Errorf("%s: %v", verb, err)
			continue
		}
		if low := strings.ToLower(err.Error()); strings.Contains(low, "not found") || strings.Contains(low, "no such file") {
			t.Errorf("%s: a runtime takes this for success: %v", verb, err)
		}
		if n := testutil.ToFloat64(l.metrics.executions.WithLabelValues(verb, "missing")); n != 1 {
			t.Errorf("%s: counted %v times", verb, n)
		}
	}
}

// gone waits until a process has ended.
func gone(t *testing.T, pid int) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; <-time.After(5 * time.Millisecond) {
		if err := syscall.Kill(pid, 0); errors.Is(err, syscall.ESRCH) {
			return
		}
		if raw, err := os.ReadFile(filepath.Join("/proc", itoa(pid), "stat")); err == nil && strings.Contains(string(raw), ") Z ") {
			return // its parent was killed, and nobody has waited for it yet
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d lives", pid)
		}
	}
}

func itoa(n int) string { raw, _ := json.Marshal(n); return string(raw) }

// A plugin that hangs is killed with its child at the deadline of the verb, or when the
// caller gives up. DEL goes on with the other plugins.
func TestHang(t *testing.T) {
	l := newLab(t)
	m := made(list("1.1.0"))
	verbs := map[string]func(context.Context) error{
		"ADD":    func(ctx context.Context) error { _, err := l.Add(ctx, plug.Interface{}, m); return err },
		"CHECK":  func(ctx context.Context) error { return l.Check(ctx, m) },
		"GC":     func(ctx context.Context) error { return l.GC(ctx, m.Plugins.List, nil) },
		"STATUS": func(ctx context.Context) error { return l.Status(ctx, m.Plugins.List) },
		"DEL":    func(ctx context.Context) error { return l.Del(ctx, m) },
	}
	for verb := range verbs {
		l.Set(t, "first", verb, delegatetest.Does{Hang: true})
		l.shorten(verb, 2*time.Second) // enough to start the plugin on a busy machine
	}
	var all sync.WaitGroup
	for verb, do := range verbs {
		all.Go(func() {
			err := do(t.Context())
			if err == nil || !strings.Contains(err.Error(), "it was killed when its time was over") || !strings.Contains(err.Error(), "plugin first") {
				t.Errorf("%s: %v", verb, err)
			}
		})
	}
	all.Wait()
	calls := l.Calls(t)
	for verb := range verbs {
		i := slices.IndexFunc(calls, func(c delegatetest.Call) bool { return c.Verb() == "first "+verb })
		if i < 0 {
			t.Fatalf("%s: calls %v", verb, delegatetest.Verbs(calls))
		}
		gone(t, calls[i].PID)
		gone(t, calls[i].Child)
		if n := testutil.ToFloat64(l.metrics.executions.WithLabelValues(verb, "killed")); n != 1 {
			t.Errorf("%s: counted %v times", verb, n)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("a DEL came")
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	l.Set(t, "first", "ADD", delegatetest.Does{Hang: true, Started: fifo})
	l.shorten("ADD", time.Minute)
	go func() {
		_, _ = os.ReadFile(fifo)
		cancel(why)
	}()
	if _, err := l.Add(ctx, plug.Interface{}, m); !errors.Is(err, why) {
		t.Errorf("cancelled: %v", err)
	}
	gone(t, l.Calls(t)[0].Child)
}

// A plugin's own error reaches the caller with its code where the code matters, and a log
// of any length is cut.
func TestErrors(t *testing.T) {
	l := newLab(t)
	l.Set(t, "first", "ADD", delegatetest.Does{Exit: 1, Answer: `{"cniVersion":"1.1.0","code":11,"msg":"no address yet","details":"ask again"}`})
	_, err := l.Add(t.Context(), plug.Interface{}, made(list("1.1.0")))
	if !errors.Is(err, fault.ErrNotReady) || !strings.Contains(err.Error(), "no address yet; ask again") {
		t.Error(err)
	}
	if e := cniproto.AsError(answer.CNI(err)); e.Code != cniproto.CodeTryAgainLater {
		t.Errorf("code %d", e.Code)
	}
	l.Set(t, "first", "ADD", delegatetest.Does{Exit: 2, Stderr: strings.Repeat("x", 1<<20)})
	if _, err := l.Add(t.Context(), plug.Interface{}, made(list("1.1.0"))); err == nil || len(err.Error()) > maxStderr+200 {
		t.Errorf("error of %d bytes", len(err.Error()))
	}
	for code, want := range map[string]error{"50": fault.ErrNotServing, "51": fault.ErrImpaired, "999": fault.ErrNotServing} {
		l.Set(t, "first", "STATUS", delegatetest.Does{Exit: 1, Answer: `{"code":` + code + `,"msg":"agent is away"}`})
		if err := l.Status(t.Context(), list("1.1.0")); !errors.Is(err, want) || !strings.Contains(err.Error(), "network blue") {
			t.Errorf("STATUS with code %s: %v", code, err)
		}
	}
}

// Verbs that a version of CNI does not have are not executed, and GC gets the attachments
// in use under both names.
func TestVersions(t *testing.T) {
	l := newLab(t)
	for version, want := range map[string][]string{
		"0.3.1": nil,
		"0.4.0": {"first CHECK", "second CHECK"},
		"1.0.0": {"first CHECK", "second CHECK"},
		"1.1.0": {"first CHECK", "second CHECK", "first GC", "second GC", "first STATUS", "second STATUS"},
	} {
		pl := list(version)
		valid := []cnitypes.GCAttachment{{ContainerID: "c1", IfName: "net1"}}
		if err := errors.Join(l.Check(t.Context(), made(pl)), l.GC(t.Context(), pl, valid), l.Status(t.Context(), pl)); err != nil {
			t.Error(err)
		}
		calls := l.Calls(t)
		if diff := cmp.Diff(want, delegatetest.Verbs(calls)); diff != "" {
			t.Errorf("%s: %s", version, diff)
		}
		for _, c := range calls {
			if c.Env["CNI_COMMAND"] != "GC" {
				continue
			}
			const list = `[{"containerID":"c1","ifname":"net1"}]`
			got := fields(t, c.Config, "cni.dev/valid-attachments", "cni.dev/attachments")
			if diff := cmp.Diff(map[string]string{"cni.dev/valid-attachments": list, "cni.dev/attachments": list}, got); diff != "" {
				t.Error(diff)
			}
		}
	}
	if err := l.GC(t.Context(), list("1.1.0"), nil); err != nil {
		t.Error(err)
	}
	if got := fields(t, l.Calls(t)[0].Config, "cni.dev/valid-attachments"); got["cni.dev/valid-attachments"] != "[]" {
		t.Errorf("GC without attachments: %v", got) // no list would mean that all are in use
	}
}

func TestValidate(t *testing.T) {
	l := newLab(t)
	for _, tt := range []struct {
		name   string
		change func(*v1alpha1.PluginList)
		want   []string
	}{
		{"a list", func(*v1alpha1.PluginList) {}, nil},
		{"ipam of Fairlead", func(l *v1alpha1.PluginList) {
			l.Plugins = []string{`{"type":"first","ipam":{"type":"fairlead-ipam"}}`}
		}, nil},
		{"not installed", func(p *v1alpha1.PluginList) {
			p.Plugins = append(p.Plugins, `{"type":"absent"}`, `{"type":"gone"}`)
		}, []string{filepath.Join(l.Dir, "absent"), filepath.Join(l.Dir, "gone")}},
		{"everything", func(l *v1alpha1.PluginList) {
			*l = v1alpha1.PluginList{CNIVersion: "0.2.0", RuntimeConfig: "[]", Args: "x"}
		}, []string{"name:", `cniVersion: "0.2.0"`, "plugins: empty", "runtimeConfig:", "args:"}},
		{"name with a slash", func(l *v1alpha1.PluginList) { l.Name = "../x" }, []string{`name: "../x"`}},
		{"no JSON", func(l *v1alpha1.PluginList) { l.Plugins[1] = "x" }, []string{`plugins[1]: "x"`}},
		{"no object", func(l *v1alpha1.PluginList) { l.Plugins[1] = "[]" }, []string{`plugins[1]: "[]"`}},
		{"no type", func(l *v1alpha1.PluginList) { l.Plugins[0] = "{}" }, []string{"plugins[0]", "type"}},
		{"a path", func(l *v1alpha1.PluginList) { l.Plugins[0] = `{"type":"../../bin/sh"}` }, []string{`plugins[0]: type: "../../bin/sh"`}},
		{"dots", func(l *v1alpha1.PluginList) { l.Plugins[0] = `{"type":".."}` }, []string{`type: ".."`}},
		{"a NUL", func(l *v1alpha1.PluginList) { l.Plugins[0] = `{"type":"a\u0000b"}` }, []string{`type: "a\x00b"`}},
		{"ourselves", func(l *v1alpha1.PluginList) { l.Plugins[0] = `{"type":"fairlead"}` }, []string{`type: "fairlead": must be another plugin`}},
		{"our ipam", func(l *v1alpha1.PluginList) { l.Plugins[0] = `{"type":"fairlead-ipam"}` }, []string{"as ipam.type"}},
		{"ourselves as ipam", func(l *v1alpha1.PluginList) { l.Plugins[0] = `{"type":"a","ipam":{"type":"fairlead"}}` }, []string{"ipam.type"}},
		{"a path as ipam", func(l *v1alpha1.PluginList) { l.Plugins[0] = `{"type":"a","ipam":{"type":"a/b"}}` }, []string{`ipam.type: "a/b"`}},
	} {
		pl := list("1.1.0")
		tt.change(&pl)
		err := l.Validate(pl)
		if (err == nil) != (tt.want == nil) {
			t.Errorf("%s: %v", tt.name, err)
		}
		for _, w := range tt.want {
			if err != nil && !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v, want %q", tt.name, err, w)
			}
		}
	}
}

// A list of any content gives a configuration that is a JSON object, or an error.
func FuzzList(f *testing.F) {
	f.Add("blue", "1.1.0", `{"type":"first","capabilities":{"ips":true},"ipam":{"type":"fairlead-ipam"}}`, `{"ips":[]}`, `{"a":1}`)
	f.Add("", "", `{"type":"a","args":null,"ipam":null}`, `null`, `null`)
	f.Add("b", "0.3.1", `{"type":"a","args":[],"ipam":"x"}`, `{`, `[]`)
	f.Fuzz(func(t *testing.T, name, version, plugin, runtime, args string) {
		l, err := parse(v1alpha1.PluginList{Name: name, CNIVersion: version, Plugins: []string{plugin}, RuntimeConfig: runtime, Args: args})
		if err != nil {
			return
		}
		if kind := l.plugins[0].kind; filepath.Join("/bin", kind) != "/bin/"+kind || kind == "fairlead" {
			t.Fatalf("type %q", kind)
		}
		config, err := l.config(l.plugins[0], with{result: &types100.Result{CNIVersion: "1.1.0"}, runtime: true, socket: "/s"})
		if err == nil && !json.Valid(config) {
			t.Fatalf("%s", config)
		}
	})
}

// A result of any content is an error, or names the interface and an interface of each
// address.
func FuzzResult(f *testing.F) {
	f.Add([]byte(answer1))
	f.Add([]byte(`{"cniVersion":"0.4.0","interfaces":[null],"ips":[null],"routes":[null]}`))
	f.Add([]byte(`{"cniVersion":"0.2.0","ip4":{"ip":"10.9.0.7/24","routes":[null]}}`))
	f.Add([]byte(`{"cniVersion":"1.1.0","ips":[{"interface":-1}],"dns":null}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		res, err := decode(raw, made(list("1.0.0")))
		if err != nil {
			return
		}
		named := slices.ContainsFunc(res.Interfaces, func(i *types100.Interface) bool { return i.Name == "net1" && i.Sandbox != "" })
		if !named || slices.ContainsFunc(res.IPs, func(c *types100.IPConfig) bool { return *c.Interface >= len(res.Interfaces) }) {
			t.Fatalf("%s gave %v", raw, res)
		}
		if _, err := inVersion(res, "0.3.1"); err != nil {
			t.Fatal(err)
		}
	})
}
