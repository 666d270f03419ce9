package main

import "testing"

func TestBadCommandLines(t *testing.T) {
	for _, args := range [][]string{{"--config", "/does/not/exist"}, {"--log-format", "xml"}, {"extra"}, {"--no-such-flag"}} {
		if code := execute(args); code == 0 {
			t.Errorf("%v: exit code 0", args)
		}
	}
}
