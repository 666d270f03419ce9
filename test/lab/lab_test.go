package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fairlead.dev/fairlead/test/harness"
)

func TestIsOurs(t *testing.T) {
	tests := map[string]bool{
		"link lab0":                           true,
		"link lab-1":                          true,
		"link flabc123":                       true,
		"route 10.244.0.7/32 dev flpabc123":   true,
		"route 192.168.77.0/24 dev lab0":      true,
		"nft table inet fairlead":             true,
		"nft table ip kube-proxy":             true,
		"link docker0":                        false,
		"link veth12":                         false,
		"route 172.17.0.0/16 dev docker0":     false,
		"nft table ip nat":                    false,
		"route 192.168.77.0/24 dev wlan-home": false,
	}
	for item, want := range tests {
		if got := isOurs(item); got != want {
			t.Errorf("isOurs(%q) = %v; want %v", item, got, want)
		}
	}
}

// A process of the run, and a file that only the laboratory makes, are found after a run.
func TestCompare(t *testing.T) {
	work, pattern := harness.Work(t.TempDir()), filepath.Join(t.TempDir(), "podrunner-*")
	before, err := readHost([]string{pattern})
	if err != nil {
		t.Fatal(err)
	}
	look := func() error { return before.compare(work, &bytes.Buffer{}, []string{pattern}) }
	if err := look(); err != nil {
		t.Errorf("without a run: %v; want nil", err)
	}
	file := strings.Replace(pattern, "*", "0a1b", 1)
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := look(); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("with a namespace that is left: %v; want an error that names it", err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	left := exec.Command("tail", "-f", "/dev/null", work.Path("x"))
	if err := left.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = left.Wait() }()
	defer func() { _ = left.Process.Kill() }()
	// Between fork and exec the child has the parent's command line.
	deadline := time.Now().Add(5 * time.Second)
	for err = nil; err == nil && time.Now().Before(deadline); {
		err = look()
	}
	if err == nil || !strings.Contains(err.Error(), string(work)) {
		t.Errorf("with a process that is left: %v; want an error that names it", err)
	}
}

// A wait ends with the last problem in its error, and shows problems while it lasts.
func TestWait(t *testing.T) {
	var said []string
	w := Wait{Limit: 50 * time.Millisecond, Tick: time.Millisecond, Say: func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }}
	looks := 0
	err := w.For(t.Context(), "three looks", func(context.Context) (string, error) {
		looks++
		return []string{"", "one", "two"}[3-min(looks, 3)], nil
	})
	if err != nil || looks != 3 || strings.Join(said, "|") != "  three looks: two|  three looks: one" {
		t.Errorf("%d looks, %v, said %q", looks, err, said)
	}
	err = w.ForNil(t.Context(), "luck", func(context.Context) error { return errors.New("no luck") })
	if err == nil || !strings.Contains(err.Error(), "waiting for luck (no luck): ") || !strings.Contains(err.Error(), "not within 50ms") {
		t.Errorf("a wait without an end: %v", err)
	}
	broken := errors.New("broken")
	if err := w.For(t.Context(), "it", func(context.Context) (string, error) { return "", broken }); !errors.Is(err, broken) {
		t.Errorf("a look that fails: %v", err)
	}
}
