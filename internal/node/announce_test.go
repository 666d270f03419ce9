package node

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/node/background"
	"fairlead.dev/fairlead/internal/node/hostnet"
	"fairlead.dev/fairlead/internal/node/install"
	"fairlead.dev/fairlead/internal/node/plugin"
)

// installs makes the next daemon install a plugin for a runtime.
func (w *testNode) installs() {
	w.t.Helper()
	dir := filepath.Join(w.dir, "runtime")
	w.install = &install.Options{
		PluginSource: filepath.Join(dir, "fairlead-cni"), BinDir: filepath.Join(dir, "bin"), ConfDir: filepath.Join(dir, "conf"),
		Names: []string{install.PluginName, "fairlead-ipam"},
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(w.install.PluginSource, []byte("program"), 0o700); err != nil {
		w.t.Fatal(err)
	}
}

// changes are changes of the directory of configurations, which a test reports. They
// implement install.Watcher.
type changes chan struct{}

func (c changes) Renew() error             { return nil }
func (c changes) Changes() <-chan struct{} { return c }
func (c changes) Close()                   {}

// wantAnnounced checks whether the network is announced to the runtime.
func (w *testNode) wantAnnounced(want bool) {
	w.t.Helper()
	raw, err := os.ReadFile(filepath.Join(w.install.ConfDir, install.ConflistName))
	if (err == nil) != want || want && !install.LeadsHere(raw) {
		w.t.Errorf("the network configuration: %q, %v; want one %v", raw, err, want)
	}
}

// announced returns the condition of the NodeNetwork about the runtime.
func (w *testNode) announced() (reason, message string) {
	w.t.Helper()
	w.pass(hostnet.PaceLast)
	all, err := w.api.Networks(w.t.Context())
	if err != nil || len(all) != 1 {
		w.t.Fatalf("%v, %v", all, err)
	}
	c := meta.FindStatusCondition(all[0].Status.Conditions, v1alpha1.ConditionAnnounced)
	if c == nil {
		return "", ""
	}
	if (c.Status == metav1.ConditionTrue) != (c.Reason == "Announced") {
		w.t.Errorf("%+v", c)
	}
	return c.Reason, c.Message
}

// Removed files are reinstalled, but a network that does not work is not announced
// (multus#972: another plugin renamed the configuration, and networks vanished).
func TestWhatIsInstalledStays(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		w.installs()
		w.restart()
		w.wantAnnounced(true)
		conflist := filepath.Join(w.install.ConfDir, install.ConflistName)
		if err := os.Rename(conflist, conflist+".cilium_bak"); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(w.install.BinDir, "fairlead-ipam")); err != nil {
			t.Fatal(err)
		}
		w.setLost(true)
		w.pass(background.SweepInterval)
		w.wantAnnounced(false)
		if raw, err := os.ReadFile(filepath.Join(w.install.BinDir, "fairlead-ipam")); err != nil || string(raw) != "program" {
			t.Errorf("the plugin: %q, %v", raw, err)
		}
		w.setLost(false)
		w.pass(background.SweepInterval)
		w.wantAnnounced(true)
		w.stop()
		w.wantAnnounced(true)
		w.install.Names = []string{"fairlead-ipam"}
		if reason, _ := w.announced(); reason != "Announced" {
			t.Errorf("reason %q", reason)
		}
		w.start()
		if reason, _ := w.announced(); reason != "" {
			t.Errorf("reason %q of a network that is another plugin's", reason)
		}
	})
}

// A network configuration that is removed or changed comes back at once, and another one is
// seen at once.
func TestConfigurationComesBackAtOnce(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		w.installs()
		w.restart()
		w.pass(background.SweepInterval / 6)
		conflist := filepath.Join(w.install.ConfDir, install.ConflistName)
		for _, damage := range []func() error{
			func() error { return os.Remove(conflist) },
			func() error { return os.WriteFile(conflist, []byte(`{"cniVersion": `), 0o600) },
		} {
			if err := damage(); err != nil {
				t.Fatal(err)
			}
			w.confDir <- struct{}{}
			settle()
			w.wantAnnounced(true)
			w.pass(background.SweepInterval / 6) // other programs may change it again then
		}
		if err := os.WriteFile(filepath.Join(w.install.ConfDir, "05-other.conf"), []byte(`{"type":"bridge"}`), 0o600); err != nil {
			t.Fatal(err)
		}
		w.confDir <- struct{}{}
		if reason, _ := w.announced(); reason != "Shadowed" {
			t.Errorf("reason %q", reason)
		}
	})
}

// A configuration that a runtime finds before Fairlead's takes Fairlead's pods, unless it
// leads to Fairlead too.
func TestConfigurationsBeforeOurs(t *testing.T) {
	const foreign = `{"cniVersion":"1.0.0","name":"other","plugins":[{"type":"bridge"}]}`
	cases := []struct {
		name, file, content string
		words               []string // of the message, none if no other configuration is used
	}{
		{name: "another network", file: "05-other.conflist", content: foreign, words: []string{"05-other.conflist", "uses it instead"}},
		{name: "of a single plugin", file: "05-other.conf", content: `{"type":"bridge"}`, words: []string{"05-other.conf", "uses it instead"}},
		{name: "torn", file: ".tmp.json", content: `{"type":`, words: []string{".tmp.json", "not valid"}},
		{name: "without a plugin", file: "05-other.conf", content: `{"name":"other"}`, words: []string{"05-other.conf", "not valid"}},
		{name: "large", file: "05-other.conf", content: strings.Repeat(" ", install.MaxForeign+1), words: []string{"05-other.conf", "not valid"}},
		{name: "after ours", file: "20-other.conflist", content: foreign},
		{name: "of another kind", file: "05-other.bak", content: foreign},
		{
			name: "Multus, thin", file: "00-multus.conf",
			content: `{"type":"multus","delegates":[{"name":"fairlead","plugins":[{"type":"fairlead","socket":"/run/x"}]}]}`,
		},
		{
			name: "Multus, thick", file: "00-multus.conf",
			content: `{"type":"multus-shim","clusterNetwork":"/host/etc/cni/net.d/10-fairlead.conflist"}`,
		},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			onTestNode(t, func(w *testNode) {
				w.installs()
				path := filepath.Join(w.install.ConfDir, tc.file)
				if err := os.MkdirAll(filepath.Join(w.install.ConfDir, "00-directory.conf"), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(tc.content), 0o600); err != nil {
					t.Fatal(err)
				}
				w.restart()
				reason, message := w.announced()
				want := "Announced"
				if len(tc.words) > 0 {
					want = "Shadowed"
				}
				lacks := func(word string) bool { return !strings.Contains(message, word) }
				if reason != want || slices.ContainsFunc(tc.words, lacks) {
					t.Errorf("%s: %q, want %s with %q", reason, message, want, tc.words)
				}
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
				w.pass(background.SweepInterval)
				if reason, message := w.announced(); reason != "Announced" {
					t.Errorf("it is gone: %s: %q", reason, message)
				}
			})
		})
	}
}

// The daemon goes on if it cannot write the configuration, since it has pods to serve. It
// is not ready and reports the reason.
func TestConflistThatCannotBeWritten(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		w.installs()
		if err := os.WriteFile(w.install.ConfDir, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		w.restart()
		w.daemon.serving.Store(true)
		if reason, message := w.announced(); reason != "NotInstalled" || !strings.Contains(message, "not a directory") {
			t.Errorf("%s: %q", reason, message)
		}
		if err := w.daemon.Ready(); err == nil {
			t.Error("the daemon is ready")
		}
		if err := os.Remove(w.install.ConfDir); err != nil {
			t.Fatal(err)
		}
		w.pass(background.SweepInterval)
		w.wantAnnounced(true)
		if err := w.daemon.Ready(); err != nil {
			t.Error(err)
		}
	})
}

func FuzzForeign(f *testing.F) {
	for _, seed := range []string{`{"type":"multus","delegates":[{"type":"fairlead"}]}`, `{"plugins":[]}`, `[[["x"]]]`, `"fairlead"`, `{`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if (install.Usable(raw) || install.LeadsHere(raw)) && !json.Valid(raw) {
			t.Errorf("%q is no JSON", raw)
		}
	})
}

// The no-op plugin does not become the node's network: its configuration would sort
// before that of flannel, which every sandbox needs.
func TestNoopIsNotAnnounced(t *testing.T) {
	conf, state := t.TempDir(), t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		d, err := New(Config{Socket: filepath.Join(state, "cni.sock"), Install: &install.Options{ConfDir: conf, Names: []string{install.PluginName}}}, plugin.NewNoop(noSysctls{}))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*background.SweepInterval)
		defer cancel()
		if err := d.services.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	if entries, err := os.ReadDir(conf); err != nil || len(entries) > 0 {
		t.Errorf("%v, %v", entries, err)
	}
}
