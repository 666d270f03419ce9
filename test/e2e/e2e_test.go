package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"fairlead.dev/fairlead/test/harness"
	"fairlead.dev/fairlead/test/lab"
	"fairlead.dev/fairlead/test/netlab"
)

func TestParseFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--seed -1": "seed",
		"more":      `"more"`,
		// Other values would run for minutes and test something different.
		"--families ipv4": `--families is "ipv4"; must be dual or ipv6`,
		"--families=":     `--families is ""; must be dual or ipv6`,
		// Nothing would be tested.
		"--only networks --families ipv6":    "--only networks with --families ipv6",
		"--only conformance --families ipv6": "--only conformance with --families ipv6",
		"--only services":                    `--only is "services"; must be upgrade, networks, check, soak or conformance`,
		"--deploy30 -1":                      "--deploy30 is -1; must be 1 to 100",
		"--deploy30 101":                     "--deploy30 is 101",
		"--deploy30 2 --only check":          "each runs alone",
		"--soak -1s":                         "--soak is -1s; must be up to 20h0m0s",
		"--soak 21h":                         "--soak is 21h0m0s",
		"--only soak":                        "--soak is missing",
		"--report file":                      "--soak is missing",
		"--clocked":                          "--soak is missing",
		"--soak 1m --families ipv6":          "--soak with --families ipv6",
	} {
		if _, err := parseFlags(strings.Fields(args), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("parseFlags(%s): %v; want an error with %q", args, err, want)
		}
	}
	if s, err := parseFlags(nil, io.Discard); err != nil || s.Seed == 0 {
		t.Errorf("parseFlags without a seed: seed %d, %v; want one that was chosen", s.Seed, err)
	}
}

func TestFamilies(t *testing.T) {
	got := map[string]string{}
	for _, args := range []string{"", "--families dual", "--families ipv6"} {
		s, err := parseFlags(strings.Fields(args), io.Discard)
		if err != nil {
			t.Fatalf("parseFlags(%s): %v", args, err)
		}
		got[args] = join(s.Families.ranges())
	}
	want := map[string]string{
		"":                "10.244.0.0/16,fd00:244::/112",
		"--families dual": "10.244.0.0/16,fd00:244::/112",
		"--families ipv6": "fd00:244::/112",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ranges of the pool (-want +got):\n%s", diff)
	}
}

// TestScenarios checks the scenarios that run: by default all of the families, with
// --only networks those that the scenario of several networks needs.
func TestScenarios(t *testing.T) {
	got := map[string]int{}
	for _, args := range []string{"", "--families ipv6", "--only networks", "--only check", "--only upgrade", "--deploy30 2", "--only conformance", "--soak 1m", "--soak 1m --only soak"} {
		s, err := parseFlags(strings.Fields(args), io.Discard)
		if err != nil {
			t.Fatalf("parseFlags(%s): %v", args, err)
		}
		w := &testbed{plan: plan{settings: s}, Cluster: &lab.Cluster{}}
		for _, scenario := range w.scenarios() {
			if strings.Contains(scenario.name, "several networks") {
				got["networks of "+args]++
			}
			if strings.Contains(scenario.name, "faults of every kind") {
				got["soaks of "+args]++
			}
			got["all of "+args]++
		}
	}
	want := map[string]int{
		"all of ": 24, "networks of ": 1, "all of --families ipv6": 13, "all of --only networks": 4, "networks of --only networks": 1, "all of --only check": 4, "all of --only upgrade": 6,
		"all of --deploy30 2": 4, "all of --only conformance": 6,
		"all of --soak 1m": 25, "networks of --soak 1m": 1, "soaks of --soak 1m": 1, "all of --soak 1m --only soak": 4, "soaks of --soak 1m --only soak": 1,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("scenarios (-want +got):\n%s", diff)
	}
}

// TestAttachedPods checks the selections of the pods with several networks: the number of
// interfaces is as asked, and no two standing pods choose the same address or device.
func TestAttachedPods(t *testing.T) {
	w := &testbed{Cluster: &lab.Cluster{}, nodes: []*node{{name: "node-1"}, {name: "node-2"}}}
	chosen := map[string]string{}
	counts := map[int]int{}
	for _, p := range w.standingPods() {
		counts[1+len(p.on)]++
		for _, s := range p.on {
			what := s.own
			if s.config["type"] == "host-device" {
				what = p.Spec.NodeSelector["kubernetes.io/hostname"] + " " + s.name
			}
			if other := chosen[s.wire()+what]; what != "" && other != "" {
				t.Errorf("pods %s and %s both have %s", other, p.Name, what)
			}
			chosen[s.wire()+what] = p.Name
		}
	}
	if diff := cmp.Diff(map[int]int{1: 4, 3: 4, 8: 4}, counts); diff != "" {
		t.Errorf("pods by number of interfaces (-want +got):\n%s", diff)
	}
	p := w.attached(w.nodes[0], "one", 5, 11, "")
	want := `[{"name":"apps","namespace":"fairlead-system"},{"name":"storage","namespace":"default"},` +
		`{"name":"logs","namespace":"default"},{"ips":["10.64.0.11/24"],"name":"fixed","namespace":"default"}]`
	if got := p.Annotations[annotationNetworks]; got != want {
		t.Errorf("selection with an address: %s\nwant %s", got, want)
	}
	p = w.attached(w.nodes[1], "delegated", 3, 13, "")
	if got, want := p.Annotations[annotationNetworks], "default/logs,fairlead-system/foreign-node-2"; got != want {
		t.Errorf("selection of a delegated network: %s; want %s", got, want)
	}
	p = w.attached(w.nodes[0], "two", 3, 12, "")
	if got, want := p.Annotations[annotationNetworks], "fairlead-system/apps,default/storage"; got != want {
		t.Errorf("selection: %s; want %s", got, want)
	}
}

func TestMedian(t *testing.T) {
	for _, tt := range []struct {
		all  []time.Duration
		want time.Duration
	}{
		{[]time.Duration{7}, 7},
		{[]time.Duration{9, 1, 4}, 4},
		{[]time.Duration{8, 1, 4, 2}, 3},
	} {
		if got := median(tt.all); got != tt.want {
			t.Errorf("median of %d: %d; want %d", tt.all, got, tt.want)
		}
	}
}

// TestAllReady counts each pod once, only if it is Ready, and through several watches.
func TestAllReady(t *testing.T) {
	pod := func(uid types.UID, ready corev1.ConditionStatus) watch.Event {
		o := &corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}}}
		o.UID = uid
		return watch.Event{Type: watch.Modified, Object: o}
	}
	for _, tt := range []struct {
		name    string
		watches [][]watch.Event
		want    string // of the error
	}{
		{"all", [][]watch.Event{{pod("a", "False"), pod("a", "True"), pod("b", "True")}}, ""},
		{"one twice", [][]watch.Event{{pod("a", "True"), pod("a", "True")}}, "1 are Ready: no more"},
		{"one is not", [][]watch.Event{{pod("a", "True"), pod("b", "False")}}, "1 are Ready: no more"},
		{"a watch ends", [][]watch.Event{{}, {pod("a", "True")}, {pod("a", "True"), pod("b", "True")}}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			begin := func() (watch.Interface, error) {
				if len(tt.watches) == 0 {
					return nil, errors.New("no more")
				}
				w := watch.NewFakeWithChanSize(len(tt.watches[0]), false)
				for _, e := range tt.watches[0] {
					w.Action(e.Type, e.Object)
				}
				w.Stop()
				tt.watches = tt.watches[1:]
				return w, nil
			}
			first, err := begin()
			if err == nil {
				err = allReady(t.Context(), first, begin, 2)
			}
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("allReady() = %v; want %q", err, tt.want)
			}
		})
	}
}

func TestImages(t *testing.T) {
	path := filepath.Join(t.TempDir(), "images.tar")
	shared := []member{{name: "server", mode: 0o755, content: []byte("content")}}
	err := writeImages(path, []image{
		{name: pauseImage, entrypoint: []string{"/server", "pause"}, files: shared},
		{name: serverImage, entrypoint: []string{"/server"}, files: shared},
	})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	files := untar(t, raw)
	var manifests []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal(files["manifest.json"], &manifests); err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{}
	for _, m := range manifests {
		var config struct {
			Config struct{ Entrypoint []string } `json:"config"`
		}
		if err := json.Unmarshal(files[m.Config], &config); err != nil {
			t.Fatalf("%s: %v", m.Config, err)
		}
		got[m.RepoTags[0]] = config.Config.Entrypoint
		if diff := cmp.Diff(map[string][]byte{"server": []byte("content")}, untar(t, files[m.Layers[0]])); diff != "" {
			t.Errorf("the layer of %v (-want +got):\n%s", m.RepoTags, diff)
		}
	}
	want := map[string][]string{pauseImage: {"/server", "pause"}, serverImage: {"/server"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("images and what they run (-want +got):\n%s", diff)
	}
}

func TestSharedObjects(t *testing.T) {
	got := sharedObjects(`	linux-vdso.so.1 (0x00007fb4b2b3a000)
	libnftables.so.1 => /lib/x86_64-linux-gnu/libnftables.so.1 (0x00007fb4b2a47000)
	/lib64/ld-linux-x86-64.so.2 (0x00007fb4b2b3c000)
`)
	want := []string{"/lib/x86_64-linux-gnu/libnftables.so.1", "/lib64/ld-linux-x86-64.so.2"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("sharedObjects (-want +got):\n%s", diff)
	}
}

func TestPodElements(t *testing.T) {
	// The output of nft 1.0.6.
	for printed, want := range map[string][]string{
		`{"nftables": [{"metainfo": {"version": "1.0.6", "json_schema_version": 1}},
			{"set": {"family": "inet", "name": "self4", "table": "fairlead", "type": ["ipv4_addr", "ipv4_addr"], "handle": 1, "elem": [{"concat": ["10.0.0.1", "10.0.0.1"]}]}},
			{"set": {"family": "inet", "name": "self6", "table": "fairlead", "type": ["ipv6_addr", "ipv6_addr"], "handle": 2}},
			{"set": {"family": "inet", "name": "local4", "table": "fairlead", "type": "ipv4_addr", "handle": 3, "flags": ["interval"], "elem": [{"prefix": {"addr": "10.0.0.0", "len": 24}}]}},
			{"set": {"family": "ip", "name": "service-ips", "table": "kube-proxy", "type": "ipv4_addr", "handle": 4, "elem": ["10.96.0.1"]}},
			{"set": {"family": "bridge", "name": "unchecked", "table": "fairlead", "type": "ifname", "handle": 5, "elem": ["fl1"]}}]}`: {
			`nft element {"concat": ["10.0.0.1", "10.0.0.1"]} of inet self4`,
			`nft element "fl1" of bridge unchecked`,
		},
		`{"nftables": [{"map": {"family": "inet", "name": "ports4", "table": "fairlead", "type": ["inet_proto", "inet_service"], "handle": 2, "map": "ipv4_addr . inet_service",
			"elem": [[{"concat": ["tcp", 80]}, {"concat": ["10.0.0.1", 8080]}]]}}]}`: {
			`nft element [{"concat": ["tcp", 80]}, {"concat": ["10.0.0.1", 8080]}] of inet ports4`,
		},
		`{"nftables": []}`: nil,
	} {
		got, err := podElements([]byte(printed))
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("elements (error %v, -want +got):\n%s", err, diff)
		}
	}
	if _, err := podElements([]byte("Error: Could not process rule")); err == nil {
		t.Error("invalid JSON gives no error")
	}
}

func TestWithoutBlocks(t *testing.T) {
	blocks := map[string]bool{"10.244.1.0/26": true, "10.244.2.0/26": true}
	got := withoutBlocks([]string{
		"10.244.1.0/26", "10.244.1.7/32 dev fl12", "10.244.2.0/26 via 192.168.77.12 dev eth0", "10.244.3.0/26 via 192.168.77.12 dev eth0",
	}, blocks)
	want := []string{"10.244.1.7/32 dev fl12", "10.244.3.0/26 via 192.168.77.12 dev eth0"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("routes (-want +got):\n%s", diff)
	}
}

func untar(t *testing.T, raw []byte) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	r := tar.NewReader(bytes.NewReader(raw))
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if out[header.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPreflightNamesWhatIsMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	lacks := strings.Join(preflight(settings{Flags: harness.Flags{Bin: t.TempDir()}}), "\n")
	for _, want := range []string{"runc", "nftables", "kubelab", "containerd-shim-runc-v2", "e2e-server"} {
		if !strings.Contains(lacks, want) {
			t.Errorf("the missing things do not include %s:\n%s", want, lacks)
		}
	}
}

func TestProcessInAPlace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("making namespaces needs root")
	}
	ns, err := netlab.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	at := place{net: ns, host: "fairlead-place"}
	// A mount that only the place has.
	dir := t.TempDir()
	err = ns.Do(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return err
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
			return err
		}
		if at.mnt, err = os.Open("/proc/thread-self/ns/mnt"); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, "file"), nil, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
	defer at.mnt.Close()
	c := &harness.Processes{Logs: t.TempDir(), Env: []string{"PATH=/usr/bin:/bin"}, Failed: func(err error) { t.Error(err) }}
	ls, err := exec.LookPath("ls")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := c.Run(t.Context(), at.do, ls, dir); err != nil || strings.TrimSpace(out) != "file" {
		t.Errorf("in the place %s holds %q, %v; want the file", dir, out, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("outside %s holds %v, %v; want nothing", dir, entries, err)
	}
	name, err := exec.LookPath("uname")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := c.Run(t.Context(), at.do, name, "-n"); err != nil || strings.TrimSpace(out) != at.host {
		t.Errorf("the host in the place is %q, %v; want %s", out, err, at.host)
	}
	if out, err := os.Hostname(); err != nil || out == at.host {
		t.Errorf("outside the host is %q, %v", out, err)
	}
	if _, err := c.Run(t.Context(), at.do, ls, dir+"/absent"); err == nil || !strings.Contains(err.Error(), "absent") {
		t.Errorf("a program that fails: %v; want an error with its output", err)
	}
}

func TestProcessThatEndsUnaskedFailsTheTest(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("entering namespaces needs root")
	}
	ns, err := netlab.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	c := &harness.Processes{Logs: t.TempDir(), Failed: cancel}
	tail, err := exec.LookPath("tail")
	if err != nil {
		t.Fatal(err)
	}
	start := func(name string, args ...string) *harness.Process {
		p, err := c.Command(name, tail, args...)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(place{net: ns}.do, p); err != nil {
			t.Fatal(err)
		}
		return p
	}
	start("killed", "-f", "/dev/null").Kill()
	if err := context.Cause(ctx); err != nil {
		t.Errorf("after a kill: %v; want nothing", err)
	}
	<-start("failing", "/absent").Done()
	<-ctx.Done()
	if err := context.Cause(ctx); !strings.Contains(err.Error(), "failing ended: exit status 1") || !strings.Contains(err.Error(), "/absent") {
		t.Errorf("the reason is %v; want the name, the status and the log", err)
	}
}

func TestGroups(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("making control groups needs root")
	}
	if _, err := hierarchies(); err != nil {
		t.Skip(err)
	}
	group := "fairlead-e2e-test-" + newID()
	defer func() {
		if err := removeGroups(context.Background(), group); err != nil {
			t.Error(err)
		}
	}()
	if err := makeGroups(group + "/node-1"); err != nil {
		t.Fatal(err)
	}
	var names []string
	err := walkGroups(group, func(dir string) error {
		names = append(names, filepath.Base(dir))
		return nil
	})
	slices.Sort(names)
	if diff := cmp.Diff([]string{group, "node-1"}, slices.Compact(names)); err != nil || diff != "" {
		t.Errorf("groups (error %v, -want +got):\n%s", err, diff)
	}
	if pids, err := groupProcesses(group); err != nil || len(pids) > 0 {
		t.Errorf("processes %v, %v; want none", pids, err)
	}
}

func TestCauses(t *testing.T) {
	got := causes([]string{
		`web-1: Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox "0f8fad5bd9cb": plugin type="fairlead" failed (add): pod default/web-1: no PodAttachment for UID 0f8fad5b-d9cb-469f-a165-70867728950e within 10s`,
		`web-2: Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox "1f8fad5bd9cb": plugin type="fairlead" failed (add): pod default/web-2: no PodAttachment for UID 1f8fad5b-d9cb-469f-a165-70867728950e within 10s`,
		`web-2: Failed to create pod sandbox: context deadline exceeded`,
	})
	want := map[string]int{
		"pod * no PodAttachment for UID * within *": 2,
		"context deadline exceeded":                 1,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("causes (-want +got):\n%s", diff)
	}
}

// TestAhead starts a process in a place whose monotonic clock is a day ahead: it sees the
// machine as started a day earlier.
func TestAhead(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("making namespaces needs root")
	}
	if _, err := os.Stat("/proc/self/ns/time"); err != nil {
		t.Skip("this kernel has no time namespaces")
	}
	ns, err := netlab.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	cat, err := exec.LookPath("cat")
	if err != nil {
		t.Fatal(err)
	}
	c := &harness.Processes{Logs: t.TempDir(), Failed: func(err error) { t.Error(err) }}
	uptime := func(in harness.Place) float64 {
		out, err := c.Run(t.Context(), in, cat, "/proc/uptime")
		if err != nil {
			t.Fatal(err)
		}
		first, _, _ := strings.Cut(out, " ")
		seconds, err := strconv.ParseFloat(first, 64)
		if err != nil {
			t.Fatal(err)
		}
		return seconds
	}
	at := place{net: ns}
	const day = 24 * time.Hour
	if ahead := uptime(at.ahead(day)) - uptime(at.do); ahead < day.Seconds()-60 || ahead > day.Seconds()+60 {
		t.Errorf("the clock is ahead by %.0f s; want a day", ahead)
	}
}
