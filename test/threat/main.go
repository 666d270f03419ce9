// Command threat attacks Fairlead: a tenant, the author of a network, a compromised node,
// a faulty runtime and an operator by mistake each try to take, free, exhaust or learn
// things beyond their rights. The controllers, the API server, the nodes' daemons, the
// plugin and the kernel are real, and the victim's pods send traffic all the while. `make
// threat` builds and runs it.
//
// An attack is judged by its effect: an address that was obtained, a packet that arrived,
// a file that was written, traffic that was lost. At the end, each lock that can be
// opened by configuration or by leaving out a manifest is opened, and its attack has to
// succeed: this proves that the suite would detect a missing lock.
//
// The program that the user starts executes itself again in namespaces of its own, where
// everything runs (test/harness).
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"fairlead.dev/fairlead/test/harness"
)

func main() {
	if code, inside := harness.Inside(runInside); inside {
		os.Exit(code)
	}
	os.Exit(launch(os.Args[1:], os.Stdout, os.Stderr))
}

// settings are the user's flags.
type settings struct {
	Only     string // a regular expression of the attacks to try; empty: all
	Bin      string // directory of the programs
	Source   string // directory of the checkout, for deploy/
	KeepLogs bool
}

func parseFlags(args []string, stderr io.Writer) (settings, error) {
	var s settings
	self, err := os.Executable()
	if err != nil {
		return s, fmt.Errorf("find the test's own executable: %w", err)
	}
	flags := flag.NewFlagSet("threat", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&s.Only, "only", "", "try only the attacks and locks whose ID matches this regular `expression`, for working on them")
	flags.StringVar(&s.Bin, "bin", filepath.Dir(self), "`directory` of the programs")
	flags.StringVar(&s.Source, "source", filepath.Dir(filepath.Dir(self)), "`directory` of the checkout, whose deploy/ is installed")
	flags.BoolVar(&s.KeepLogs, "keep-logs", false, "keep the logs after a success too")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	var runtimeCall []error
	if _, err := regexp.Compile(s.Only); err != nil {
		runtimeCall = append(runtimeCall, fmt.Errorf("--only: %w", err))
	}
	if flags.NArg() > 0 {
		runtimeCall = append(runtimeCall, fmt.Errorf("unexpected argument %q", flags.Arg(0)))
	}
	if s.Bin, err = filepath.Abs(s.Bin); err != nil {
		runtimeCall = append(runtimeCall, fmt.Errorf("--bin: %w", err))
	}
	if s.Source, err = filepath.Abs(s.Source); err != nil {
		runtimeCall = append(runtimeCall, fmt.Errorf("--source: %w", err))
	}
	return s, errors.Join(runtimeCall...)
}

// plan is the input of the program inside of the namespaces.
type plan struct {
	settings
	Start time.Time
	harness.Work
}

// verdict is the result of the program inside of the namespaces.
type verdict struct {
	Attacks, Succeeded int
}
