package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// test compiles the tests of packages and runs them in one boot, without the tests whose
// name skip matches. It returns 0 if all of them pass and none skips itself.
func (m machine) test(ctx context.Context, packages []string, skip string, stdout io.Writer) (int, error) {
	work, err := os.MkdirTemp("", "fairlead-vm-tests-")
	if err != nil {
		return 0, fmt.Errorf("make a directory for the tests: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }()
	list, err := output(ctx, "", "go", append([]string{"list", "-f", "{{.ImportPath}} {{.Dir}}", "--"}, packages...)...)
	if err != nil {
		return 0, err
	}
	var commands []command
	for line := range strings.Lines(list) {
		name, dir, _ := strings.Cut(strings.TrimSpace(line), " ")
		m.report.Say("compiling the tests of %s", name)
		binary := filepath.Join(work, fmt.Sprintf("%d.test", len(commands)))
		said, err := output(ctx, "", "go", "test", "-c", "-o", binary, name)
		if err != nil {
			return 0, err
		}
		if _, err := os.Stat(binary); err != nil {
			return 0, fmt.Errorf("%s has no tests: %s", name, strings.TrimSpace(said))
		}
		commands = append(commands, command{Title: name, Dir: dir, Args: []string{
			binary, "-test.v", "-test.paniconexit0", "-test.skip=" + skip,
			// Before the VM ends, for the stacks of the goroutines.
			fmt.Sprintf("-test.timeout=%v", m.timeout*9/10),
		}})
	}
	var results tally
	statuses, err := m.run(ctx, commands, io.MultiWriter(stdout, &results))
	if err != nil {
		return 0, err
	}
	results.packages = len(statuses)
	for i, status := range statuses {
		if status != 0 {
			results.broken = append(results.broken, fmt.Sprintf("%s: exit status %d", commands[i].Title, status))
		}
	}
	return results.print(stdout), nil
}

// tally counts the tests in the output of go test -v, which is written to it.
type tally struct {
	packages        int
	passed          int
	failed, skipped []string
	broken          []string // packages whose program failed

	line []byte
}

var verdict = regexp.MustCompile(`^ *--- (PASS|FAIL|SKIP): (\S+)`)

func (t *tally) Write(p []byte) (int, error) {
	t.line = append(t.line, p...)
	for {
		line, rest, complete := bytes.Cut(t.line, []byte("\n"))
		if !complete {
			return len(p), nil
		}
		t.line = rest
		found := verdict.FindSubmatch(line)
		if found == nil {
			continue
		}
		switch name := string(found[2]); string(found[1]) {
		case "PASS":
			t.passed++
		case "FAIL":
			t.failed = append(t.failed, name)
		case "SKIP":
			t.skipped = append(t.skipped, name)
		}
	}
}

// print writes the result, whose last line is a sum, and returns the exit code. A skipped
// test fails the run: the VM has what its packages need. So does a run without a test.
func (t *tally) print(out io.Writer) int {
	_, _ = fmt.Fprintln(out)
	for _, list := range []struct {
		verdict string
		names   []string
	}{{"failed", t.failed}, {"skipped, though the VM has what tests need", t.skipped}, {"failed", t.broken}} {
		for _, name := range list.names {
			_, _ = fmt.Fprintf(out, "%s: %s\n", list.verdict, name)
		}
	}
	counts := fmt.Sprintf("packages=%d passed=%d", t.packages, t.passed)
	if len(t.failed)+len(t.broken)+len(t.skipped) > 0 || t.passed == 0 {
		_, _ = fmt.Fprintf(out, "vm: FAILED %s failed=%d skipped=%d\n", counts, max(len(t.failed), len(t.broken)), len(t.skipped))
		return exitFailed
	}
	_, _ = fmt.Fprintf(out, "vm: OK %s skipped=0\n", counts)
	return 0
}
