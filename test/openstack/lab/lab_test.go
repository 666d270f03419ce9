package lab

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fairlead.dev/fairlead/test/harness"
	"fairlead.dev/fairlead/test/netlab"
)

func TestOptions(t *testing.T) {
	for _, test := range []struct {
		name    string
		options Options
		want    string // in the error
	}{
		{"defaults", Options{}, ""},
		{"another release", Options{Release: "trixie", Cache: "relative"}, ""},
		{"unknown release", Options{Release: "sid"}, `release "sid" of the OpenStack laboratory; must be one of bookworm, trixie`},
		{"negative pairs", Options{Pairs: -1}, "-1 allowed address pairs; must be 0 or more"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, err := test.options.settings()
			if test.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				if !filepath.IsAbs(s.cache) {
					t.Errorf("cache %s; want an absolute path", s.cache)
				}
				return
			}
			if err == nil || err.Error() != test.want {
				t.Errorf("error %v; want %s", err, test.want)
			}
		})
	}
}

// The scripts read the settings as a part of a shell script.
func TestSettingsAreQuoted(t *testing.T) {
	file := filepath.Join(t.TempDir(), "settings")
	hostile := `/a b/$(touch x)/'"\`
	if err := os.WriteFile(file, []byte(settings{cache: hostile}.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("bash", "-euc", `. "$1"; printf '%s %s' "$cache" "$light"`, "bash", file).CombinedOutput()
	if want := hostile + " no"; err != nil || string(out) != want {
		t.Errorf("read %q, %v; want %q", out, err, want)
	}
}

func TestStateOfAnotherIsLeftAlone(t *testing.T) {
	t.Setenv("TMPDIR", shortDir(t))
	dir, owner, err := own("")
	if err != nil {
		t.Fatal(err)
	}
	if err := sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("a sweep removed the state of a laboratory that has an owner: %v", err)
	}
	if err := owner.Close(); err != nil {
		t.Fatal(err)
	}
	if err := sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a sweep left the state of a laboratory without an owner: %v", err)
	}
}

func TestStateTooLongForSockets(t *testing.T) {
	dir := filepath.Join(shortDir(t), strings.Repeat("x", maxState))
	_, _, err := own(dir)
	if err == nil || !strings.Contains(err.Error(), "must have 56 at most") {
		t.Errorf("error %v; want the greatest length", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory is left: %v", err)
	}
}

// shortDir is a temporary directory whose path leaves room for the names of sockets.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "lab-") //nolint:usetesting // the path of t.TempDir is too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// Another laboratory beside the one of `make openstack`: it loses its owner, the next one
// ends it, and that one comes back after its services crashed.
func TestLaboratories(t *testing.T) {
	running := Use(t)
	before := machine(t)
	t.Setenv("TMPDIR", shortDir(t))
	ctx := t.Context()
	options := Options{Release: running.Release, Light: true, Out: t.Output()}

	lost, err := Up(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lost.Down(context.WithoutCancel(ctx)); err != nil {
			t.Error(err)
		}
	})
	if _, err := lost.Chassis(ctx, "lost", 11); err != nil {
		t.Fatal(err)
	}
	pod, err := netlab.NewNamespace()
	if err == nil {
		err = errors.Join(pod.Pin(filepath.Join(lost.State, "pod")), pod.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := lost.owner.Close(); err != nil { // as when its process is killed
		t.Fatal(err)
	}
	lost.owner = nil

	l, err := Up(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Down(context.WithoutCancel(ctx)); err != nil {
			t.Error(err)
		}
		if left := machine(t).Since(before).All(); len(left) > 0 {
			t.Errorf("left on this machine: %q", left)
		}
		if left := namespaces(t, lost.Namespace, l.Namespace); len(left) > 0 {
			t.Errorf("network namespaces are left: %q", left)
		}
	})
	left, err := harness.Work(lost.State).Left()
	if err != nil {
		t.Fatal(err)
	}
	if left = append(left, namespaces(t, lost.Namespace)...); len(left) > 0 {
		t.Errorf("left of the laboratory without an owner: %q", left)
	}

	a, err := l.Chassis(ctx, "a", 11)
	if err != nil {
		t.Fatal(err)
	}
	for _, service := range []string{Neutron, Database} {
		if err := l.Kill(service); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	if err := a.Down(ctx); err != nil {
		t.Fatal(err)
	}
	if out, err := l.Run(ctx, "ovn-sbctl", "--bare", "--columns=name", "list", "Chassis"); err != nil || out != "" {
		t.Errorf("OVN has chassis %q, %v; want none", out, err)
	}
	if again, err := Open(l.State); err != nil || again.NeutronURL != l.NeutronURL {
		t.Errorf("opened again: %+v, %v; want %+v", again, err, l)
	}
}

// A script runs on when the process that started it is killed. The next laboratory ends it
// before the services, or it would start some afterwards.
func TestKilledWhileStarting(t *testing.T) {
	const child = "FAIRLEAD_OPENSTACK_TEST_CHILD"
	if release := os.Getenv(child); release != "" {
		l, err := Up(t.Context(), Options{Release: release, Light: true})
		t.Fatalf("the laboratory %+v started, %v, before the test killed this process", l, err)
	}
	running := Use(t)
	tmp := shortDir(t)
	t.Setenv("TMPDIR", tmp)
	t.Setenv(child, running.Release)
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilledWhileStarting$") //nolint:noctx // the test kills it
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// The file is that of the first service.
	started := await(t, filepath.Join(tmp, prefix+"*", "run", "nb.id"))
	if err := errors.Join(cmd.Process.Kill(), ignoreExit(cmd.Wait())); err != nil {
		t.Fatal(err)
	}
	state := filepath.Dir(filepath.Dir(started))
	settings, err := os.ReadFile(filepath.Join(state, "settings"))
	if err != nil {
		t.Fatal(err)
	}
	if err := sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	left, err := harness.Work(state).Left()
	if err != nil {
		t.Fatal(err)
	}
	_, name, _ := strings.Cut(string(settings), "netns='")
	name, _, _ = strings.Cut(name, "'")
	if left = append(left, namespaces(t, name)...); len(left) > 0 {
		t.Errorf("left of a laboratory that was killed while it started: %q", left)
	}
	if _, err := os.Stat(state); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its directory is left: %v", err)
	}
}

// await returns the first file that matches a pattern.
func await(t *testing.T, pattern string) string {
	t.Helper()
	deadline := time.After(time.Minute)
	next := time.NewTicker(5 * time.Millisecond)
	defer next.Stop()
	for {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		if len(found) > 0 {
			return found[0]
		}
		select {
		case <-deadline:
			t.Fatalf("no file %s", pattern)
		case <-next.C:
		}
	}
}

// ignoreExit returns nil for the exit status of a process.
func ignoreExit(err error) error {
	if _, exited := errors.AsType[*exec.ExitError](err); exited {
		return nil
	}
	return err
}

// machine is the state of this network namespace.
func machine(t *testing.T) netlab.State {
	t.Helper()
	here, err := netlab.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	state, err := here.State()
	if err != nil {
		t.Fatal(err)
	}
	return state
}

// namespaces returns the network namespaces whose names begin with one of these.
func namespaces(t *testing.T, prefixes ...string) (out []string) {
	t.Helper()
	for _, prefix := range prefixes {
		found, err := filepath.Glob("/run/netns/" + prefix + "*")
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, found...)
	}
	return out
}
