package cli

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli/kube"
	"fairlead.dev/fairlead/internal/cli/output"
	"fairlead.dev/fairlead/test/clitest"
	"fairlead.dev/fairlead/test/golden"
)

// manual is the page that shows the outputs.
const manual = "../../docs/user/cli.md"

// outputs returns the output of the commands on the fixtures' clusters, by name of the
// golden file.
func outputs(t *testing.T) map[string]string {
	t.Helper()
	render := clitest.Renderer(t)
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
	openStack := clitest.OnOpenStack()
	out["status-openstack.txt"] = render(output.TableFormat, nil, statusOf(buildStatus(openStack)))
	out["status-openstack.json"] = render(output.JSONFormat, buildStatus(openStack), nil)
	return out
}

func TestOutputs(t *testing.T) {
	for name, got := range outputs(t) {
		t.Run(name, func(t *testing.T) { golden.Equal(t, name, got) })
	}
}

// TestManualShowsRealOutput compares every example in the manual with the golden file of the
// command, which TestOutputs of the command's package compares with its output.
func TestManualShowsRealOutput(t *testing.T) {
	page, err := os.ReadFile(manual)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]string{
		"fairlead status":       {"testdata/status.txt", "testdata/status-trouble.txt"},
		"fairlead pods -n shop": {"testdata/pods.txt"},
		"fairlead pools":        {"testdata/pools.txt"},

		"fairlead pools lan --map":                                             {"testdata/map.txt"},
		"fairlead who 192.168.4.2 --domain default":                            {"addresses/testdata/who.txt"},
		"fairlead who 192.168.4.66 --domain default --at 2026-03-02T02:00:00Z": {"addresses/testdata/who-past.txt"},
		"fairlead explain pod shop/cart-0":                                     {"testdata/explain-refused.txt", "testdata/explain-releasing.txt"},
		"fairlead ipam audit":                                                  {"addresses/testdata/audit-clean.txt", "addresses/testdata/audit.txt"},
		"fairlead gc --dry-run":                                                {"addresses/testdata/gc.txt"},
	}
	examples := regexp.MustCompile("(?ms)^```console\n\\$ ([^\n]*)\n(.*?)^```$").FindAllStringSubmatch(string(page), -1)
	for _, e := range examples {
		command, shown := e[1], e[2]
		expected := files[command]
		if len(expected) == 0 {
			t.Errorf("%s shows %q once too often", manual, command)
			continue
		}
		printed, err := os.ReadFile(expected[0])
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(printed), shown); diff != "" {
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
	clitest.ManualNames(t, manual, []string{
		string(stateAttached), string(stateWaiting), string(stateReleasing), string(stateFailing), string(stateNone),
		reasonNotPlugged, reasonNotActive, v1alpha1.ReasonInterfacesMissing, v1alpha1.ReasonInterfacesGone, reasonInUse, reasonControllers, reasonNoRecord, reasonNotSeen, reasonSilent, reasonNoDaemon, reasonDaemonNotReady,
		string(markDone), string(markWaiting), string(markFailed), string(markNotNeeded),
		string(controllerLeading), string(controllerStale), string(controllerNoLeader),
	}, statusView{}, podList{}, poolList{}, mapView{}, explainView{}, versionView{})
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
