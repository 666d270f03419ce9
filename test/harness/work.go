// Package harness runs a program that needs a machine to itself, and leaves the machine
// as it was. The demo, the bench, the end-to-end test and the attacks share it.
//
// The program that the user starts is the outer program. It makes a work directory and
// executes itself again in a PID, a mount and a network namespace of its own: as process
// 1 there, and as its child, the inner program, which does the work and starts other
// programs (Processes). When process 1 ends, in any way, the kernel ends all of them.
package harness

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Work is the directory of a run, as an absolute path. The run writes only into it. It is
// removed at the end, except for logs that are kept.
type Work string

// NewWork creates the work directory of a program, with its directories for logs and for
// the tmpfs, and with the further directories in dirs.
func NewWork(program string, dirs ...string) (Work, error) {
	dir, err := os.MkdirTemp("", "fairlead-"+program+"-")
	if err != nil {
		return "", fmt.Errorf("make a work directory: %w", err)
	}
	w := Work(dir)
	for _, dir := range append([]string{w.Logs(), w.Tmpfs()}, w.paths(dirs)...) {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return "", errors.Join(fmt.Errorf("prepare the work directory: %w", err), os.RemoveAll(string(w)))
		}
	}
	return w, nil
}

// Path returns the path of a name in the work directory.
func (w Work) Path(name string) string { return filepath.Join(string(w), name) }

func (w Work) paths(names []string) []string {
	var out []string
	for _, name := range names {
		out = append(out, w.Path(name))
	}
	return out
}

// Logs is the directory of the logs.
func (w Work) Logs() string { return w.Path("logs") }

// Tmpfs is the directory where a tmpfs is mounted inside: for files that must not outlive
// a boot.
func (w Work) Tmpfs() string { return w.Path("run") }

// Kubelab is the data directory of the control plane.
func (w Work) Kubelab() string { return w.Path("kubelab") }

func (w Work) planFile() string   { return w.Path("plan.json") }
func (w Work) resultFile() string { return w.Path("result.json") }
func (w Work) reasonFile() string { return w.Path("reason") }

// ReadPlan decodes into plan, which is a pointer, the plan that the outer program passed
// to Enter.
func (w Work) ReadPlan(plan any) error {
	if err := readJSON(w.planFile(), plan); err != nil {
		return fmt.Errorf("read the plan: %w", err)
	}
	return nil
}

// WriteResult passes the result of the work to the outer program.
func (w Work) WriteResult(result any) error { return writeJSON(w.resultFile(), result) }

// ReadResult decodes into result, which is a pointer, the value that the inner program passed to
// WriteResult.
func (w Work) ReadResult(result any) error {
	if err := readJSON(w.resultFile(), result); err != nil {
		return fmt.Errorf("the program inside of the namespaces ended without a result: %w", err)
	}
	return nil
}

func readJSON(path string, value any) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, value)
}

func writeJSON(path string, value any) error {
	raw, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	return os.WriteFile(path, raw, 0o600)
}

// Close removes the directory. After a failed run, or if keepLogs is set, the logs stay,
// and their path is in the error, or printed to out. runErr is the error of the run, and
// is part of Close's error. ErrInterrupted is returned unchanged if nothing of the run is
// left.
func (w Work) Close(runErr error, keepLogs bool, out io.Writer) error {
	failed := runErr != nil && runErr != ErrInterrupted //nolint:errorlint // joined with another error it is a failure
	if err := w.remove(keepLogs || failed); err != nil {
		runErr, failed = errors.Join(runErr, err), true
	}
	switch {
	case failed:
		return fmt.Errorf("%w\nlogs: %s", runErr, w.Logs())
	case keepLogs:
		_, _ = fmt.Fprintf(out, "logs: %s\n", w.Logs())
	}
	return runErr
}

// remove removes the directory, or all of it but the logs.
func (w Work) remove(keepLogs bool) error {
	if !keepLogs {
		return os.RemoveAll(string(w))
	}
	// Kubernetes logs into its own directory.
	err := os.Rename(filepath.Join(w.Kubelab(), "kubelab.log"), filepath.Join(w.Logs(), "kubernetes.log"))
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	entries, readErr := os.ReadDir(string(w))
	errs := []error{err, readErr}
	for _, entry := range entries {
		if path := w.Path(entry.Name()); path != w.Logs() {
			errs = append(errs, os.RemoveAll(path))
		}
	}
	return errors.Join(errs...)
}

// Left lists the remains of the run on this machine outside of its namespaces: mounts in
// the work directory, and processes whose command line names it.
func (w Work) Left() ([]string, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("look at this machine: %w", err)
	}
	var left []string
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, string(w)) {
			left = append(left, "mount "+strings.TrimSpace(line))
		}
	}
	processes, err := commandLines()
	if err != nil {
		return nil, err
	}
	for pid, words := range processes {
		if line := strings.Join(words, " "); strings.Contains(line, string(w)) {
			left = append(left, "process "+pid+" "+strings.TrimSpace(line))
		}
	}
	return left, nil
}

// Worker returns the ID of the process, as this machine knows it, that runs the work inside
// of the namespaces; "" if none does at this moment.
func (w Work) Worker() (pid string, err error) {
	processes, err := commandLines()
	for pid, words := range processes {
		if len(words) == 3 && words[1] == workCommand && words[2] == string(w) {
			return pid, nil
		}
	}
	return "", err
}

// commandLines returns the command line of each process of this machine, as words, by ID.
func commandLines() (map[string][]string, error) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	out := map[string][]string{}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			continue // the process has just ended
		}
		out[filepath.Base(filepath.Dir(file))] = strings.Split(strings.TrimRight(string(raw), "\x00"), "\x00")
	}
	return out, nil
}
