// Command bench measures Fairlead on one machine, each figure against a baseline that is
// measured in the same run. `make bench` builds and runs it; docs/dev/benchmarks.md
// explains its output.
//
// The program that the user starts checks the requirements of the machine, builds the
// programs to compare with, and then executes itself again in namespaces of its own,
// where everything is measured (test/harness).
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"fairlead.dev/fairlead/test/harness"
)

func main() {
	if code, inside := harness.Inside(runInside); inside {
		os.Exit(code)
	}
	os.Exit(launch(os.Args[1:], os.Stdout, os.Stderr))
}

// plan has the user's flags, and is the input of the program inside of the namespaces.
type plan struct {
	// Out is the file of results; empty writes none.
	Out string
	// Short takes fewer samples, so that everything takes some four minutes.
	Short bool
	// Only has the names of the figures to measure; empty measures all.
	Only []string
	harness.Flags
	// Start is when the user started the bench.
	Start time.Time
	harness.Work
}

// tools is the directory of the programs to compare with.
func (p plan) tools() string { return p.Path(toolsDir) }

const (
	toolsDir = "tools"
	// pluginDir is the runtime's directory of plugins on a node: on a disk, like the
	// reference plugins'.
	pluginDir = "plugins"
)

// program returns the path of one of Fairlead's programs, or of the laboratory's.
func (p plan) program(name string) string { return filepath.Join(p.Bin, name) }

// tool returns the path of a program to compare with.
func (p plan) tool(name string) string { return filepath.Join(p.tools(), name) }

// samples returns how many samples to take: full, or short.
func (p plan) samples(full, short int) int {
	if p.Short {
		return short
	}
	return full
}

// wants reports whether one of the names is to be measured.
func (p plan) wants(names ...string) bool {
	return len(p.Only) == 0 || slices.ContainsFunc(names, func(name string) bool { return slices.Contains(p.Only, name) })
}

// makes reports whether a measurement is to be made.
func (p plan) makes(m measurement) bool { return p.wants(m.names()...) && (!m.full || !p.Short) }

func parseFlags(args []string, stderr io.Writer) (plan, error) {
	p := plan{Start: time.Now()}
	flags, err := p.Set("bench", stderr)
	if err != nil {
		return p, err
	}
	var only string
	flags.StringVar(&p.Out, "out", "", "`file` for the results, as JSON")
	flags.BoolVar(&p.Short, "short", false, "take fewer samples: all in some four minutes")
	flags.StringVar(&only, "only", "", "comma separated `names` of the figures to measure, as "+strings.Join(names(), ","))
	if err := p.Parse(flags, args, &p.Out); err != nil {
		return p, err
	}
	if only != "" {
		p.Only = strings.Split(only, ",")
	}
	var errs []error
	for _, name := range p.Only {
		if !slices.Contains(names(), name) {
			errs = append(errs, fmt.Errorf("--only: %q; must be of %s", name, strings.Join(names(), ", ")))
		}
	}
	return p, errors.Join(errs...)
}
