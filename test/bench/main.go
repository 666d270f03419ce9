// Command bench measures Fairlead on one machine, each figure against a
// baseline that is measured beside it in the same run. `make bench` builds and
// runs it; docs/dev/benchmarks.md says how to read what it prints.
//
// The program that the user starts, the outer one, checks what the machine
// lacks, builds what is compared with, and then executes itself again as the
// inner one, in a PID, a mount and a network namespace of its own. Everything
// is measured there, so that all of it is gone with the inner program, however
// that ends.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// innerCommand is the first argument of the inner program.
const innerCommand = "inner-program-of-the-bench"

func main() {
	if len(os.Args) == 3 && os.Args[1] == innerCommand {
		os.Exit(inner(os.Args[2], os.Stdout, os.Stderr))
	}
	os.Exit(outer(os.Args[1:], os.Stdout, os.Stderr))
}

// plan is what the user asked for, and what the outer program tells the inner
// one.
type plan struct {
	// Out is the file of results; empty writes none.
	Out string
	// Short takes fewer samples: all in less than two minutes.
	Short bool
	// Only has the names of the figures to measure; empty measures all.
	Only []string
	// Bin is the directory of Fairlead's programs.
	Bin string
	// KeepLogs keeps the logs after a success too.
	KeepLogs bool
	// Start is when the user started the bench.
	Start time.Time
	// Work is a directory for everything; it goes at the end.
	Work string
}

func (p plan) logs() string     { return filepath.Join(p.Work, "logs") }
func (p plan) run() string      { return filepath.Join(p.Work, "run") }
func (p plan) tools() string    { return filepath.Join(p.Work, "tools") }
func (p plan) planFile() string { return filepath.Join(p.Work, "plan.json") }

// program is the path of one of Fairlead's programs, or of one of the lab's.
func (p plan) program(name string) string { return filepath.Join(p.Bin, name) }

// tool is the path of a program that the outer program built to compare with.
func (p plan) tool(name string) string { return filepath.Join(p.tools(), name) }

// samples is how many to take: full, or short.
func (p plan) samples(full, short int) int {
	if p.Short {
		return short
	}
	return full
}

// wants says whether one of the names is to be measured.
func (p plan) wants(names ...string) bool {
	return len(p.Only) == 0 || slices.ContainsFunc(names, func(name string) bool { return slices.Contains(p.Only, name) })
}

func parseFlags(args []string, stderr io.Writer) (plan, error) {
	p := plan{Start: time.Now()}
	self, err := os.Executable()
	if err != nil {
		return p, fmt.Errorf("find the bench's own executable: %w", err)
	}
	var only string
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&p.Out, "out", "", "`file` for the results, as JSON")
	flags.BoolVar(&p.Short, "short", false, "take fewer samples: all in less than two minutes")
	flags.StringVar(&only, "only", "", "comma separated `names` of the figures to measure, as "+strings.Join(names(), ","))
	flags.StringVar(&p.Bin, "bin", filepath.Dir(self), "`directory` of Fairlead's programs")
	flags.BoolVar(&p.KeepLogs, "keep-logs", false, "keep the logs after a success too")
	if err := flags.Parse(args); err != nil {
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
	if flags.NArg() > 0 {
		errs = append(errs, fmt.Errorf("unexpected argument %q", flags.Arg(0)))
	}
	for _, path := range []*string{&p.Out, &p.Bin} {
		if *path == "" {
			continue
		}
		absolute, err := filepath.Abs(*path)
		errs = append(errs, err)
		*path = absolute
	}
	return p, errors.Join(errs...)
}

// reporter prints progress with the time since the start.
type reporter struct {
	out   io.Writer
	start time.Time
}

func (r reporter) say(format string, args ...any) {
	_, _ = fmt.Fprintf(r.out, "[%5.1fs] %s\n", time.Since(r.start).Seconds(), fmt.Sprintf(format, args...))
}
