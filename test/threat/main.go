// Command threat attacks Fairlead: a tenant, the author of a network, a compromised node,
// a faulty runtime and an operator by mistake each try to take, free, exhaust or learn
// things beyond their rights. The controllers, the API server, the nodes' daemons, the
// plugin and the kernel are real, and the victim's pods send traffic all the while. `make
// threat` builds and runs it.
//
// An attack counts by its effect: an address that was obtained, a packet that arrived,
// a file that was written, traffic that was lost. At the end, each lock that can be
// opened by configuration or by leaving out a manifest is opened, and its attack has to
// succeed: this proves that the suite would detect a missing lock.
//
// The program that the user starts executes itself again in namespaces of its own, where
// everything runs (test/harness).
package main

import (
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
	harness.Flags
	Only   string // a regular expression of the attacks to try; empty: all
	Source string // directory of the checkout, for deploy/
}

func parseFlags(args []string, stderr io.Writer) (settings, error) {
	var s settings
	flags, err := s.Set("threat", stderr)
	if err != nil {
		return s, err
	}
	flags.StringVar(&s.Only, "only", "", "try only the attacks and locks whose ID matches this regular `expression`, for working on them")
	flags.StringVar(&s.Source, "source", filepath.Dir(s.Bin), "`directory` of the checkout, whose deploy/ is installed")
	if err := s.Parse(flags, args, &s.Source); err != nil {
		return s, err
	}
	if _, err := regexp.Compile(s.Only); err != nil {
		return s, fmt.Errorf("--only: %w", err)
	}
	return s, nil
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
