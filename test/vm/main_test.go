package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	const self = "/checkout/bin/vm"
	for _, c := range []struct {
		name string
		args []string
		want settings
		err  string
	}{
		{name: "a command", args: []string{"run", "--", "./plug.test", "-test.v"}, want: settings{
			verb: "run", timeout: 5 * time.Minute, kernel: "/checkout/bin/kernel", args: []string{"./plug.test", "-test.v"},
		}},
		{name: "all flags", args: []string{"test", "--timeout", "90s", "--kernel", "/k", "--skip", "Parallel$", "./a", "./b"}, want: settings{
			verb: "test", timeout: 90 * time.Second, kernel: "/k", skip: "Parallel$", args: []string{"./a", "./b"},
		}},
		{name: "nothing", err: "the first argument must be run or test; " + usage},
		{name: "another verb", args: []string{"boot"}, err: `the first argument must be run or test, not "boot"; ` + usage},
		{name: "no command", args: []string{"run", "--timeout", "1s"}, err: "nothing to run; " + usage},
		{name: "no time", args: []string{"run", "--timeout", "0s", "true"}, err: "--timeout is 0s; must be more than 0"},
		{name: "a flag of test", args: []string{"run", "--skip", "x", "true"}, err: "flag provided but not defined: -skip"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := parse(c.args, self, &bytes.Buffer{})
			if c.err != "" {
				if err == nil || err.Error() != c.err {
					t.Errorf("error %v, want %s", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(settings{})); diff != "" {
				t.Errorf("settings (-want +got):\n%s", diff)
			}
		})
	}
}
