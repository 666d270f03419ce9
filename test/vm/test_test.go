package main

import (
	"bytes"
	"strings"
	"testing"
)

// The last line is the sum of what the tests print, however the output is divided.
func TestTally(t *testing.T) {
	const good = "=== RUN   TestA\n    a_test.go:7: --- FAIL: in a log\n--- PASS: TestA (0.00s)\n    --- PASS: TestA/b (0.01s)\nPASS\n"
	for _, c := range []struct {
		name, output string
		broken       []string
		last         string
		code         int
	}{
		{name: "passed", output: good, last: "vm: OK packages=1 passed=2 skipped=0"},
		{
			name: "failed", output: good + "--- FAIL: TestC (0.00s)\n", broken: []string{"p: exit status 1"},
			last: "vm: FAILED packages=1 passed=2 failed=1 skipped=0", code: 1,
		},
		{
			name: "ended by a panic", output: good, broken: []string{"p: exit status 2"},
			last: "vm: FAILED packages=1 passed=2 failed=1 skipped=0", code: 1,
		},
		{name: "skipped", output: good + "    --- SKIP: TestA/c (0.00s)\n", last: "vm: FAILED packages=1 passed=2 failed=0 skipped=1", code: 1},
		{name: "nothing was run", output: "testing: warning: no tests to run\nPASS\n", last: "vm: FAILED packages=1 passed=0 failed=0 skipped=0", code: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			for size := 1; size <= len(c.output); size += 7 {
				results := tally{packages: 1, broken: c.broken}
				for rest := []byte(c.output); len(rest) > 0; {
					n, _ := results.Write(rest[:min(size, len(rest))])
					rest = rest[n:]
				}
				var out bytes.Buffer
				code := results.print(&out)
				lines := strings.Split(strings.TrimSpace(out.String()), "\n")
				if last := lines[len(lines)-1]; last != c.last || code != c.code {
					t.Fatalf("in pieces of %d bytes: code %d, %q; want %d, %q", size, code, last, c.code, c.last)
				}
			}
		})
	}
}
