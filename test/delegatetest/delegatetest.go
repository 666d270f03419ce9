// Package delegatetest has a CNI plugin for tests, which records its calls.
package delegatetest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"fairlead.dev/fairlead/test/integration/sources"
)

// Log is the name of the file of calls in the directory of the plugins.
const Log = "calls"

// Call is one call of a plugin.
type Call struct {
	// Plugin is the name of its program.
	Plugin string
	// PID is its process, and Child the process that a hanging plugin has started.
	PID, Child int
	Config     json.RawMessage
	Env        map[string]string
}

// Verb returns the plugin and the verb, as "first ADD".
func (c Call) Verb() string { return c.Plugin + " " + c.Env["CNI_COMMAND"] }

// Does describes what a plugin does for a verb, after it has recorded the call.
type Does struct {
	// Answer is printed; NETNS and IFNAME in it stand for the variables. If it begins
	// with a slash, it is the path of a file with the answer.
	Answer string
	Stderr string
	Exit   int
	// Address is that of a link of the interface's name, which is made for ADD and removed
	// for DEL.
	Address string
	// Started is the path of a FIFO that is opened for writing before the answer.
	Started string
	// Hang starts a child, and waits for a signal.
	Hang bool
}

// Read returns what the plugin at a path does for a verb.
func Read(path, verb string) (d Does, err error) {
	raw, err := os.ReadFile(path + "." + verb)
	if errors.Is(err, fs.ErrNotExist) {
		return d, nil
	}
	if err != nil {
		return d, err
	}
	return d, json.Unmarshal(raw, &d)
}

// Bin is a directory of plugins.
type Bin struct{ Dir string }

// New builds the plugin under names in a directory of the test.
func New(t *testing.T, names ...string) *Bin {
	t.Helper()
	b := &Bin{t.TempDir()}
	built := filepath.Join(b.Dir, ".plugin")
	const plugin = "fairlead.dev/fairlead/test/delegatetest/plugin"
	if err := sources.Look(plugin); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("go", "build", "-o", built, plugin).CombinedOutput()
	if err != nil {
		t.Fatalf("build the test plugin: %v: %s", err, out)
	}
	for _, name := range names {
		b.Install(t, name)
	}
	return b
}

// Install makes the plugin available under a name.
func (b *Bin) Install(t *testing.T, name string) {
	t.Helper()
	if err := os.Link(filepath.Join(b.Dir, ".plugin"), filepath.Join(b.Dir, name)); err != nil {
		t.Fatal(err)
	}
}

// Remove removes the program of a plugin.
func (b *Bin) Remove(t *testing.T, name string) {
	t.Helper()
	if err := os.Remove(filepath.Join(b.Dir, name)); err != nil {
		t.Fatal(err)
	}
}

// Set sets what a plugin does for a verb.
func (b *Bin) Set(t *testing.T, name, verb string, d Does) {
	t.Helper()
	raw, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(b.Dir, name+"."+verb)
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

// Calls returns the calls since the last Calls.
func (b *Bin) Calls(t *testing.T) (out []Call) {
	t.Helper()
	path := filepath.Join(b.Dir, Log)
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = os.Remove(path)
	}
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(raw) {
		var c Call
		if err := json.Unmarshal(line, &c); err != nil {
			t.Fatal(err)
		}
		out = append(out, c)
	}
	return out
}

// Verbs returns the plugins and verbs of calls.
func Verbs(calls []Call) (out []string) {
	for _, c := range calls {
		out = append(out, c.Verb())
	}
	return out
}
