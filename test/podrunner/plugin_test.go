package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// pluginPath is the fake plugin that TestMain builds, without the race detector, whose
// start takes longer than the rest of a test.
var pluginPath string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "fakeplugin")
	if err != nil {
		panic(err)
	}
	pluginPath = filepath.Join(dir, "fake")
	build := exec.Command("go", "build", "-o", pluginPath, "./fakeplugin")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		panic(string(out))
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// call is one execution of the fake plugin, as the fake plugin
// saw it.
type call struct {
	Verb, ContainerID, Netns, IfName, Args string
	Config                                 struct {
		CNIVersion    string          `json:"cniVersion"`
		Name          string          `json:"name"`
		RuntimeConfig json.RawMessage `json:"runtimeConfig"`
		PrevResult    json.RawMessage `json:"prevResult"`
	}
	// LoopbackUp is true if CNI_NETNS is a network namespace whose loopback link is up.
	LoopbackUp bool
}

// calls returns the calls that the fake plugin recorded.
func calls(t *testing.T, dir string) []call {
	t.Helper()
	file, err := os.Open(filepath.Join(dir, "calls.jsonl"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var out []call
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if !strings.HasSuffix(lines.Text(), "}") {
			break // it is being written
		}
		var one call
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			t.Fatal(err)
		}
		out = append(out, one)
	}
	return out
}
