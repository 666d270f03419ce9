package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fairlead.dev/fairlead/internal/cniproto"
)

const (
	// sizeLimit is the largest size of the plugin, in bytes. costLimit is the largest
	// ratio of the duration of a call to that of a Go program that does nothing.
	sizeLimit = 9 << 18 // 2.25 MiB
	costLimit = 2.0
)

// The plugin links no package that makes its start slow, because every call would take
// longer.
func TestDependencies(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(string(out))
	if !slices.Contains(deps, "fairlead.dev/fairlead/internal/cniproto") {
		t.Fatalf("list of dependencies %q lacks the plugin's own", deps)
	}
	for _, dep := range deps {
		first, _, _ := strings.Cut(dep, "/")
		if dep == "net" || strings.HasPrefix(dep, "net/") || dep == "crypto" || strings.HasPrefix(dep, "crypto/") ||
			(strings.Contains(first, ".") && !strings.HasPrefix(dep, "fairlead.dev/fairlead/")) {
			t.Errorf("the plugin links %s", dep)
		}
	}
}

// build builds a program with the flags of a release and returns its path.
func build(t *testing.T, name string, args ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	cmd := exec.Command("go", append([]string{"build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", path}, args...)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", name, err, out)
	}
	return path
}

func TestSize(t *testing.T) {
	info, err := os.Stat(build(t, "fairlead-cni", "."))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes", info.Size())
	if info.Size() > sizeLimit {
		t.Errorf("the plugin has %d bytes, more than %d", info.Size(), sizeLimit)
	}
}

// An ADD takes at most costLimit times as long as a program that does nothing, measured
// from the start of the process to its end, with a daemon that answers at once. The two
// programs take turns, so that a busy machine slows down both.
func TestCost(t *testing.T) {
	if testing.Short() {
		t.Skip("measures processes")
	}
	source := filepath.Join(t.TempDir(), "nothing.go")
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	nothing, plugin := build(t, "nothing", source), build(t, "fairlead-cni", ".")
	dir := t.TempDir()
	answer := []byte(`{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","mac":"02:00:00:00:00:01","sandbox":"/run/netns/a"}],"ips":[{"address":"10.0.0.2/24","gateway":"10.0.0.1","interface":0}]}`)
	serve(t, dir, func(context.Context, cniproto.Request) ([]byte, error) { return answer, nil })

	var ratio float64
	for range 3 {
		floor, cost := measure(t, dir, nothing, plugin)
		ratio = float64(cost) / float64(floor)
		t.Logf("plugin %v, nothing %v: ratio %.2f", cost, floor, ratio)
		if ratio <= costLimit {
			return
		}
	}
	t.Errorf("the plugin takes %.2f times as long as a program that does nothing, more than %.1f", ratio, costLimit)
}

// measure returns the median durations of 300 runs of each program: floor of nothing, cost
// of plugin.
func measure(t *testing.T, dir, nothing, plugin string) (floor, cost time.Duration) {
	t.Helper()
	const runs, warm = 300, 10
	c := newCall("ADD", dir)
	var config map[string]any
	if err := json.Unmarshal([]byte(c.stdin), &config); err != nil {
		t.Fatal(err)
	}
	config["runtimeConfig"] = map[string]any{"io.kubernetes.cri.pod-annotations": map[string]string{"note": strings.Repeat("a", 700)}}
	stdin, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	var env []string
	for k, v := range c.env {
		env = append(env, k+"="+v)
	}
	once := func(path string) time.Duration {
		cmd := exec.Command(path)
		cmd.Env, cmd.Stdin = env, strings.NewReader(string(stdin))
		start := time.Now()
		if out, err := cmd.Output(); err != nil || (path == plugin) != (len(out) > 0) {
			t.Fatalf("%s: %v: %s", path, err, out)
		}
		return time.Since(start)
	}
	var floors, costs []time.Duration
	for i := range warm + runs {
		f, c := once(nothing), once(plugin)
		if i >= warm {
			floors, costs = append(floors, f), append(costs, c)
		}
	}
	slices.Sort(floors)
	slices.Sort(costs)
	return floors[runs/2], costs[runs/2]
}
