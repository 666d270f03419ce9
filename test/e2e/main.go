// Command e2e tests Fairlead on real nodes: the real kubelet, containerd, runc
// and kube-proxy on two nodes that are network and mount namespaces of this
// machine, under a real control plane. `make e2e` builds everything and runs it.
//
// The program that the user starts checks the requirements of the machine and executes
// itself again in namespaces of its own, where everything runs (test/harness). At the end
// it checks that the machine is as it was before.
package main

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
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
	Lives    int    // pods that live while programs are killed
	Seed     uint64 // of the random choices of kills
	Families families
	Networks bool // only the scenario of several networks
	Check    bool // only the scenario of fairlead check
	Deploy30 int  // only the measurement of a Deployment, in so many turns
	// Conformance is whether only Kubernetes' own tests run, those that Focus and Skip choose.
	Conformance bool
	Focus, Skip string
	Bin         string // directory of the programs
	Source      string // directory of the checkout, for deploy/
	KeepLogs    bool
}

const (
	maxLives = 100_000
	maxTurns = 100
)

func parseFlags(args []string, stderr io.Writer) (settings, error) {
	var s settings
	self, err := os.Executable()
	if err != nil {
		return s, fmt.Errorf("find the test's own executable: %w", err)
	}
	flags := flag.NewFlagSet("e2e", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&s.Lives, "lives", 100, "how many pods live while kubelet, containerd and fairlead-node are killed")
	flags.Uint64Var(&s.Seed, "seed", 0, "`number` of the random choices of kills; 0 chooses one")
	flags.StringVar((*string)(&s.Families), "families", string(dual), "`families` of all addresses, dual or ipv6")
	flags.BoolVar(&s.Networks, "networks", false, "run only the scenario of several networks, and what it needs, for working on it")
	flags.BoolVar(&s.Check, "check", false, "run only the scenario of fairlead check, and what it needs, for working on it")
	flags.IntVar(&s.Deploy30, "deploy30", 0, "run only the measurement of a Deployment of 30 pods beside the same with hostNetwork, in so many `turns`")
	flags.BoolVar(&s.Conformance, "conformance", false, "run only Kubernetes' own tests, with a DNS")
	flags.StringVar(&s.Focus, "focus", suiteFocus, "with --conformance, a regular `expression` of the names of tests to run")
	flags.StringVar(&s.Skip, "skip", suiteSkip, "with --conformance, a regular `expression` of the names of tests to leave out")
	flags.StringVar(&s.Bin, "bin", filepath.Dir(self), "`directory` of the programs")
	flags.StringVar(&s.Source, "source", filepath.Dir(filepath.Dir(self)), "`directory` of the checkout, whose deploy/ is installed")
	flags.BoolVar(&s.KeepLogs, "keep-logs", false, "keep the logs after a success too")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	errs := []error{s.Families.check()}
	if s.Lives < 1 || s.Lives > maxLives {
		errs = append(errs, fmt.Errorf("--lives is %d; must be 1 to %d", s.Lives, maxLives))
	}
	if s.Networks && s.Families == ipv6 {
		errs = append(errs, errors.New("--networks with --families ipv6: the scenario runs with dual alone"))
	}
	if s.Deploy30 < 0 || s.Deploy30 > maxTurns {
		errs = append(errs, fmt.Errorf("--deploy30 is %d; must be 1 to %d, or 0 for the whole test", s.Deploy30, maxTurns))
	}
	if s.Deploy30 > 0 && s.Networks || s.Check && (s.Networks || s.Deploy30 > 0) {
		errs = append(errs, errors.New("--deploy30, --networks and --check: each runs alone"))
	}
	if s.Conformance && (s.Networks || s.Deploy30 > 0 || s.Check || s.Families == ipv6) {
		errs = append(errs, errors.New("--conformance with --networks, --deploy30, --check or --families ipv6: it runs alone, with both families"))
	}
	if flags.NArg() > 0 {
		errs = append(errs, fmt.Errorf("unexpected argument %q", flags.Arg(0)))
	}
	if s.Bin, err = filepath.Abs(s.Bin); err != nil {
		errs = append(errs, fmt.Errorf("--bin: %w", err))
	}
	if s.Source, err = filepath.Abs(s.Source); err != nil {
		errs = append(errs, fmt.Errorf("--source: %w", err))
	}
	if s.Seed == 0 {
		s.Seed = mathrand.Uint64N(1_000_000) + 1
	}
	return s, errors.Join(errs...)
}

// plan is the input of the program inside of the namespaces.
type plan struct {
	settings
	// ID marks everything that belongs to this run.
	ID    string
	Start time.Time
	harness.Work
}

// programsDir is the directory of the programs in the work directory.
const programsDir = "bin"

// programs returns where the directory of the programs is mounted: the nodes have another
// /var/lib and another /run, and the programs may be in one of them.
func (p plan) programs() string { return p.Path(programsDir) }

// cgroup returns the control group of everything that the nodes run, relative to the root
// of each hierarchy.
func (p plan) cgroup() string { return "fairlead-e2e-" + p.ID }

func newID() string {
	var raw [3]byte
	_, _ = rand.Read(raw[:]) // never fails, see crypto/rand
	return hex.EncodeToString(raw[:])
}
