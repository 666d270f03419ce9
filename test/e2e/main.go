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
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"slices"
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
	Seed     uint64 // of the random choices of kills
	Families families
	Only     part          // what runs alone
	Soak     time.Duration // how long pods live under faults of every kind; 0 for not at all
	// Clocked runs the programs of hack/build-clocked.sh, whose wall clock the soak sets.
	Clocked  bool
	Report   string // file of the soak's report; empty for none
	Deploy30 int    // only the measurement of a Deployment, in so many turns
	// Focus and Skip choose of Kubernetes' own tests.
	Focus, Skip string
	Source      string // directory of the checkout, for deploy/
}

const (
	maxTurns = 100
	maxSoak  = 20 * time.Hour // the tokens of the programs are valid for a day
)

func parseFlags(args []string, stderr io.Writer) (settings, error) {
	var s settings
	flags, err := s.Set("e2e", stderr)
	if err != nil {
		return s, err
	}
	flags.Uint64Var(&s.Seed, "seed", 0, "`number` of the random choices of kills; 0 chooses one")
	flags.StringVar((*string)(&s.Families), "families", string(dual), "`families` of all addresses, dual or ipv6")
	flags.StringVar((*string)(&s.Only), "only", "", "run one `part` and what it needs: upgrade, networks, check, soak, or conformance, which are Kubernetes' own tests")
	flags.DurationVar(&s.Soak, "soak", 0, "`how long` pods come and go under faults of every kind, after the other scenarios; 0 for not at all")
	flags.BoolVar(&s.Clocked, "clocked", false, "run the soak with the programs that hack/build-clocked.sh makes, and let their wall clocks jump")
	flags.StringVar(&s.Report, "report", "", "`file` of the soak's report, in Markdown")
	flags.IntVar(&s.Deploy30, "deploy30", 0, "run only the measurement of a Deployment of 30 pods beside the same with hostNetwork, in so many `turns`")
	flags.StringVar(&s.Focus, "focus", suiteFocus, "with --only conformance, a regular `expression` of the names of tests to run")
	flags.StringVar(&s.Skip, "skip", suiteSkip, "with --only conformance, a regular `expression` of the names of tests to leave out")
	flags.StringVar(&s.Source, "source", filepath.Dir(s.Bin), "`directory` of the checkout, whose deploy/ is installed")
	if err := s.Parse(flags, args, &s.Report, &s.Source); err != nil {
		return s, err
	}
	errs := []error{s.Families.check(), s.checkOnly(), s.checkSoak()}
	if s.Deploy30 < 0 || s.Deploy30 > maxTurns {
		errs = append(errs, fmt.Errorf("--deploy30 is %d; must be 1 to %d, or 0 for the whole test", s.Deploy30, maxTurns))
	}
	if s.Seed == 0 {
		s.Seed = mathrand.Uint64N(1_000_000) + 1
	}
	return s, errors.Join(errs...)
}

// part is a part of the test that runs alone.
type part string

const (
	everything      part = ""
	onlyUpgrade     part = "upgrade"
	onlyNetworks    part = "networks"
	onlyCheck       part = "check"
	onlySoak        part = "soak"
	onlyConformance part = "conformance"
)

// checkOnly checks the flag of a part that runs alone.
func (s settings) checkOnly() error {
	switch {
	case !slices.Contains([]part{everything, onlyUpgrade, onlyNetworks, onlyCheck, onlySoak, onlyConformance}, s.Only):
		return fmt.Errorf("--only is %q; must be upgrade, networks, check, soak or conformance", s.Only)
	case s.Only != everything && s.Deploy30 > 0:
		return fmt.Errorf("--only %s with --deploy30: each runs alone", s.Only)
	case s.Families == ipv6 && s.Only != everything && s.Only != onlyCheck:
		return fmt.Errorf("--only %s with --families ipv6: it runs with dual alone", s.Only)
	}
	return nil
}

// upgrades reports whether an older version is upgraded.
func (s settings) upgrades() bool {
	return s.Only == onlyUpgrade || s.Only == everything && s.Families == dual && s.Deploy30 == 0
}

// checkSoak checks the flags of the soak.
func (s settings) checkSoak() error {
	switch {
	case s.Soak < 0 || s.Soak > maxSoak:
		return fmt.Errorf("--soak is %v; must be up to %v, or 0 for no soak", s.Soak, maxSoak)
	case s.Soak == 0 && (s.Only == onlySoak || s.Clocked || s.Report != ""):
		return errors.New("--only soak, --clocked and --report: --soak is missing")
	case s.Soak > 0 && s.Families == ipv6:
		return errors.New("--soak with --families ipv6: the scenario runs with dual alone")
	}
	return nil
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
