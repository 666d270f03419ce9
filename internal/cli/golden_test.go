package cli

import (
	"bytes"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli/clitest"
	"fairlead.dev/fairlead/internal/cli/kube"
	"fairlead.dev/fairlead/internal/cli/output"
	"fairlead.dev/fairlead/internal/ipam/audit"
	"fairlead.dev/fairlead/test/golden"
)

// manual is the page that shows the outputs.
const manual = "../../docs/user/cli.md"

// outputs returns the output of the commands on the fixtures' clusters, by name of the
// golden file.
func outputs(t *testing.T) map[string]string {
	t.Helper()
	render := func(format output.Format, view any, text func() string) string {
		var b bytes.Buffer
		if err := format.Write(&b, view, text); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	well, ill := clitest.Quiet(), clitest.Troubled()
	wellStatus, illStatus := buildStatus(well), buildStatus(ill)
	pods, pools := podList{Pods: buildPods(ill)}, poolList{Pools: buildPools(ill.Pools)}
	statusOf := func(v statusView) func() string { return func() string { return statusText(v, clitest.Now) } }
	podsIn := func(where string) func() string { return func() string { return podsText(pods, where, clitest.Now) } }
	poolsOf := func(v poolList) func() string { return func() string { return poolsText(v, clitest.Now) } }
	large := poolList{Pools: buildPools([]v1alpha1.IPPool{clitest.PoolOf("v6", clitest.Counts(1<<63-1, 9))})}
	empty := buildStatus(kube.Snapshot{Now: clitest.Now})
	out := map[string]string{
		"status.txt":          render(output.TableFormat, nil, statusOf(wellStatus)),
		"status-trouble.txt":  render(output.TableFormat, nil, statusOf(illStatus)),
		"status-other.txt":    render(output.TableFormat, nil, statusOf(buildStatus(clitest.Others()))),
		"status-empty.txt":    render(output.TableFormat, nil, statusOf(empty)),
		"status-trouble.json": render(output.JSONFormat, illStatus, nil),
		"status-empty.json":   render(output.JSONFormat, empty, nil),
		"pods.txt":            render(output.TableFormat, nil, podsIn("shop")),
		"pods-all.txt":        render(output.TableFormat, nil, podsIn("")),
		"pods.json":           render(output.JSONFormat, pods, nil),
		"pods-empty.json":     render(output.JSONFormat, podList{Pods: buildPods(kube.Snapshot{})}, nil),
		"pools.txt":           render(output.TableFormat, nil, poolsOf(pools)),
		"pools-large.txt":     render(output.TableFormat, nil, poolsOf(large)),
		"pools.json":          render(output.JSONFormat, pools, nil),
	}
	full := clitest.Addressed()
	for file, pool := range map[string]string{"map": "lan", "map-small": "small", "map-routed": "default"} {
		named, err := poolNamed(full.Pools, pool)
		if err != nil {
			t.Fatal(err)
		}
		drawn, err := buildMap(&named[0], full)
		if err != nil {
			t.Fatal(err)
		}
		out[file+".txt"] = render(output.TableFormat, nil, func() string { return mapText(drawn) })
		if file == "map" {
			out["map.json"] = render(output.JSONFormat, drawn, nil)
		}
	}
	for file, args := range map[string][]string{
		"who":       {"192.168.4.2", "default"},
		"who-past":  {"192.168.4.66", "default", "2026-03-02T02:00:00Z"},
		"who-all":   {"192.168.4.9"},
		"who-never": {"192.0.2.1"},
	} {
		args = append(args, "", "")
		q, err := parseQuestion(args[0], args[1], args[2], clitest.Now)
		if err != nil {
			t.Fatal(err)
		}
		v := buildWho(q, full)
		out[file+".txt"] = render(output.TableFormat, nil, func() string { return whoText(v, clitest.Now) })
		if file != "who-past" {
			out[file+".json"] = render(output.JSONFormat, v, nil)
		}
	}
	for name, snap := range stories() {
		v, ok := buildExplain(snap, "shop", "cart-0")
		if !ok {
			t.Fatalf("%s: no such pod", name)
		}
		out["explain-"+name+".txt"] = render(output.TableFormat, nil, func() string { return explainText(v, clitest.Now) })
		if name == "successor" {
			out["explain-"+name+".json"] = render(output.JSONFormat, v, nil)
		}
	}
	openStack, leftover := clitest.OnOpenStack(), clitest.WithLostNode(clitest.OnOpenStack(clitest.Leaving))
	out["status-openstack.txt"] = render(output.TableFormat, nil, statusOf(buildStatus(openStack)))
	out["status-openstack.json"] = render(output.JSONFormat, buildStatus(openStack), nil)
	for file, v := range map[string]gcView{
		"gc-clean": buildGC(auditOf(clitest.Sound()), openStack), "gc": buildGC(auditOf(clitest.Damaged()), leftover),
	} {
		out[file+".txt"] = render(output.TableFormat, nil, func() string { return gcText(v, clitest.Now) })
		out[file+".json"] = render(output.JSONFormat, v, nil)
	}
	found := auditView{Report: auditOf(clitest.Damaged())}
	out["audit.txt"] = render(output.TableFormat, nil, func() string { return auditText(found) })
	out["audit.json"] = render(output.JSONFormat, found, nil)
	clean := auditView{OK: true, Report: auditOf(clitest.Sound())}
	out["audit-clean.txt"] = render(output.TableFormat, nil, func() string { return auditText(clean) })
	out["audit-clean.json"] = render(output.JSONFormat, clean, nil)
	return out
}

func TestOutputs(t *testing.T) {
	for name, got := range outputs(t) {
		t.Run(name, func(t *testing.T) { golden.Equal(t, name, got) })
	}
}

// TestManualShowsRealOutput compares every example in the manual with the command's
// output.
func TestManualShowsRealOutput(t *testing.T) {
	page, err := os.ReadFile(manual)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]string{
		"fairlead status":       {"status.txt", "status-trouble.txt"},
		"fairlead pods -n shop": {"pods.txt"},
		"fairlead pools":        {"pools.txt"},

		"fairlead pools lan --map":                                             {"map.txt"},
		"fairlead who 192.168.4.2 --domain default":                            {"who.txt"},
		"fairlead who 192.168.4.66 --domain default --at 2026-03-02T02:00:00Z": {"who-past.txt"},
		"fairlead explain pod shop/cart-0":                                     {"explain-refused.txt", "explain-releasing.txt"},
		"fairlead ipam audit":                                                  {"audit-clean.txt", "audit.txt"},
		"fairlead gc --dry-run":                                                {"gc.txt"},
	}
	printed := outputs(t)
	examples := regexp.MustCompile("(?ms)^```console\n\\$ ([^\n]*)\n(.*?)^```$").FindAllStringSubmatch(string(page), -1)
	for _, e := range examples {
		command, shown := e[1], e[2]
		expected := files[command]
		if len(expected) == 0 {
			t.Errorf("%s shows %q once too often", manual, command)
			continue
		}
		if diff := cmp.Diff(printed[expected[0]], shown); diff != "" {
			t.Errorf("%s shows of %q (-printed +shown):\n%s", manual, command, diff)
		}
		files[command] = expected[1:]
	}
	for command, left := range files {
		if len(left) > 0 {
			t.Errorf("%s does not show %q with %v", manual, command, left)
		}
	}
}

// TestManualNamesEveryField checks that the manual names every JSON field, state and
// reason of this package.
func TestManualNamesEveryField(t *testing.T) {
	page, err := os.ReadFile(manual)
	if err != nil {
		t.Fatal(err)
	}
	names := []string{
		string(stateAttached), string(stateWaiting), string(stateReleasing), string(stateFailing), string(stateNone),
		reasonNotPlugged, reasonNotActive, v1alpha1.ReasonInterfacesMissing, reasonInUse, reasonControllers, reasonNoRecord, reasonNotSeen, reasonSilent, reasonNoDaemon, reasonDaemonNotReady,
		string(addressFree), string(addressAllocated), string(addressCooling), string(addressHeld), string(addressReserved),
		string(addressWithheld), string(addressDamaged), string(addressOutside), string(addressUnknown),
		string(markDone), string(markWaiting), string(markFailed), string(markNotNeeded),
		string(controllerLeading), string(controllerStale), string(controllerNoLeader),
	}
	for _, view := range []any{statusView{}, podList{}, poolList{}, mapView{}, whoView{}, explainView{}, auditView{}, gcView{}, versionView{}} {
		names = append(names, fieldNames(reflect.TypeOf(view))...)
	}
	for _, name := range names {
		if !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("%s does not name `%s`", manual, name)
		}
	}
}

// fieldNames returns the JSON names of a struct and of the structs in it.
func fieldNames(t reflect.Type) []string {
	for t.Kind() == reflect.Slice || t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	ours := []string{reflect.TypeFor[statusView]().PkgPath(), reflect.TypeFor[audit.Report]().PkgPath()}
	if t.Kind() != reflect.Struct || !slices.Contains(ours, t.PkgPath()) {
		return nil
	}
	var out []string
	for f := range t.Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			out = append(out, name)
		}
		out = append(out, fieldNames(f.Type)...)
	}
	return out
}

func TestNotesAreOneLineEach(t *testing.T) {
	snap := clitest.Quiet()
	p := clitest.PodOf("x", "node-1", func(p *corev1.Pod) { p.UID = types.UID("x") })
	snap.Attachments = append(snap.Attachments, clitest.RecordOf(p, "10.0.0.9/32", clitest.SetReady("False", "Several", "first\nsecond\r\nthird")))
	got := podsText(podList{Pods: buildPods(snap)}, "shop", clitest.Now)
	if want := "\nshop/x: Several: first; second; third\n"; !strings.HasSuffix(got, want) {
		t.Errorf("got %q, want it to end with %q", got, want)
	}
}
