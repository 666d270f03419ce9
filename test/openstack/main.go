// Command openstack runs the OpenStack laboratory of package lab.
//
//	openstack up [FLAGS]                   with two chassis, beside kubelab, until Ctrl-C
//	openstack down                         end the laboratory that up has started
//	openstack test [FLAGS] -- ARGUMENT...  run go test with a laboratory, and end it
//
// `make openstack-lab`, `make openstack-lab-down` and `make openstack` run it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"fairlead.dev/fairlead/test/harness"
	"fairlead.dev/fairlead/test/openstack/lab"
)

// Exit codes beside those of go test.
const (
	exitFailed = 1
	exitUsage  = 2
)

// downTimeout bounds the end of the laboratory.
const downTimeout = time.Minute

func main() {
	os.Exit(launch(os.Args[1:], os.Stdout, os.Stderr))
}

// settings are the user's arguments.
type settings struct {
	verb    string
	options lab.Options
	bin     string   // directory of kubelab and of the cache
	tests   []string // arguments of go test
}

const usage = "usage: openstack up [FLAGS], openstack down, or openstack test [FLAGS] -- ARGUMENT... of go test"

// parse reads the arguments. Errors: flag.ErrHelp, or a text that names the argument.
func parse(args []string, stderr io.Writer) (settings, error) {
	if len(args) == 0 {
		return settings{}, fmt.Errorf("the first argument must be up, down or test; %s", usage)
	}
	s := settings{verb: args[0]}
	if s.verb != "up" && s.verb != "down" && s.verb != "test" {
		return s, fmt.Errorf("the first argument must be up, down or test, not %q; %s", s.verb, usage)
	}
	self, err := os.Executable()
	if err != nil {
		return s, fmt.Errorf("find the program's own executable: %w", err)
	}
	s.bin = filepath.Dir(self)
	flags := flag.NewFlagSet("openstack "+s.verb, flag.ContinueOnError)
	flags.SetOutput(stderr)
	if s.verb != "down" {
		flags.StringVar(&s.options.Release, "release", "bookworm", "Debian `release` of the packages: bookworm (OpenStack Zed) or trixie (2025.1)")
		flags.BoolVar(&s.options.Light, "light", false, "omit Keystone")
		flags.BoolVar(&s.options.Octavia, "octavia", false, "add the load balancer service")
		flags.BoolVar(&s.options.BulkTags, "bulk-tags", false, "keep the tags of POST requests, which most clouds drop")
		flags.IntVar(&s.options.Pairs, "pairs", 0, "allowed address pairs of a port at most; 0 is Neutron's default, 10")
	}
	if err := flags.Parse(args[1:]); err != nil {
		return s, err
	}
	s.tests = flags.Args()
	s.options.Cache = filepath.Join(s.bin, "openstack")
	if s.verb == "test" && len(s.tests) == 0 {
		return s, fmt.Errorf("no package to test; %s", usage)
	}
	if s.verb != "test" && len(s.tests) > 0 {
		return s, fmt.Errorf("unexpected argument %q; %s", s.tests[0], usage)
	}
	return s, nil
}

// launch does the work and returns the exit code.
func launch(args []string, stdout, stderr io.Writer) int {
	s, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "openstack:", err)
		return exitUsage
	}
	if lacks := s.lacks(); len(lacks) > 0 {
		return harness.Refuse("openstack", "the OpenStack laboratory", lacks, stderr)
	}
	s.options.Out = stdout
	if s.verb == "down" {
		// Without a handler of signals: Ctrl-C ends the wait.
		err = s.down(context.Background(), stdout)
	} else {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
		defer stop()
		if s.verb == "up" {
			err = s.up(ctx, stdout)
		} else {
			err = s.test(ctx, stdout, stderr)
		}
	}
	var failed *exec.ExitError
	switch {
	case errors.As(err, &failed) && failed.ExitCode() > 0:
		return failed.ExitCode() // go test has reported the reason
	case err != nil:
		_, _ = fmt.Fprintln(stderr, "openstack:", err)
		return exitFailed
	}
	return 0
}

// lacks returns the missing requirements of the machine, each with its remedy.
func (s settings) lacks() []string {
	var lacks []string
	if os.Geteuid() != 0 {
		lacks = append(lacks, "root, to make network namespaces and taps: sudo -E make openstack-lab")
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		lacks = append(lacks, "/dev/net/tun, for the bridges of Open vSwitch: modprobe tun, or a container with --device /dev/net/tun")
	}
	for _, program := range slices.Sorted(maps.Keys(programs)) {
		if _, err := exec.LookPath(program); err != nil {
			lacks = append(lacks, fmt.Sprintf("the program %s: on Debian, apt-get install -y --no-install-recommends %s", program, programs[program]))
		}
	}
	if s.verb == "up" {
		lacks = append(lacks, harness.MissingPrograms(s.bin, "kubelab")...)
	}
	return lacks
}

// programs are the programs of this machine that the scripts run, with their packages.
var programs = map[string]string{
	"apt-get": "apt", "dpkg-deb": "dpkg", "python3": "python3", "ip": "iproute2", "ethtool": "ethtool",
	"nsenter": "util-linux", "pgrep": "procps", "curl": "curl",
}

// end ends a laboratory, also when the user has interrupted the work.
func end(ctx context.Context, l *lab.Lab) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), downTimeout)
	defer cancel()
	return l.Down(ctx)
}
