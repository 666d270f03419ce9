// Command vm runs programs of this machine on Debian's kernel, in a VM. Kernels of clouds
// and containers often lack link types that nodes have: ipvlan, vlan, vrf.
//
//	vm run [--timeout 5m] -- COMMAND ARGUMENTS...
//	vm test [--timeout 5m] [--skip REGEXP] PACKAGES...
//
// The VM has the files of this machine, read-only; changes stay in the memory of the VM.
// QEMU runs it without KVM if the processor has no virtualization. Neither root nor a
// network is necessary. The kernel comes from Debian's archive and is not installed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"fairlead.dev/fairlead/test/harness"
)

// Exit codes beside those of commands.
const (
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	if os.Getpid() == 1 {
		runGuest() // never returns
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	code := launch(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// settings are the user's arguments.
type settings struct {
	verb    string
	timeout time.Duration
	kernel  string   // directory of the kernel
	skip    string   // tests that are left out
	args    []string // the command, or the packages
}

const usage = "usage: vm run [--timeout 5m] -- COMMAND [ARGUMENT]..., or vm test [--timeout 5m] [--skip REGEXP] PACKAGE..."

// parse reads the arguments. Errors: flag.ErrHelp, or a text that names the argument.
func parse(args []string, self string, stderr io.Writer) (settings, error) {
	if len(args) == 0 {
		return settings{}, fmt.Errorf("the first argument must be run or test; %s", usage)
	}
	if args[0] != "run" && args[0] != "test" {
		return settings{}, fmt.Errorf("the first argument must be run or test, not %q; %s", args[0], usage)
	}
	s := settings{verb: args[0]}
	flags := flag.NewFlagSet("vm "+s.verb, flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.DurationVar(&s.timeout, "timeout", 5*time.Minute, "`time` after which the VM is ended")
	flags.StringVar(&s.kernel, "kernel", filepath.Join(filepath.Dir(self), "kernel"), "`directory` of the kernel, which is made if it is missing")
	if s.verb == "test" {
		flags.StringVar(&s.skip, "skip", "", "`expression` of the tests that are left out, as of go test -skip")
	}
	if err := flags.Parse(args[1:]); err != nil {
		return s, err
	}
	s.args = flags.Args()
	if s.timeout <= 0 {
		return s, fmt.Errorf("--timeout is %v; must be more than 0", s.timeout)
	}
	if len(s.args) == 0 {
		return s, fmt.Errorf("nothing to run; %s", usage)
	}
	var err error
	if s.kernel, err = filepath.Abs(s.kernel); err != nil {
		return s, fmt.Errorf("--kernel: %w", err)
	}
	return s, nil
}

// launch does the work and returns the exit code: that of the command, or that of
// harness.Refuse if this machine cannot run a VM.
func launch(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	self, err := os.Executable()
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "vm: find the program's own executable:", err)
		return exitFailed
	}
	s, err := parse(args, self, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "vm:", err)
		return exitUsage
	}
	report := harness.Reporter{Out: stderr, Start: time.Now()}
	code, err := s.do(ctx, self, stdout, report)
	if err != nil && ctx.Err() != nil {
		err = harness.ErrInterrupted
	}
	var lack lackError
	switch {
	case errors.As(err, &lack):
		return harness.Refuse("vm", "a VM with Debian's kernel", []string{lack.Error()}, stderr)
	case err != nil:
		_, _ = fmt.Fprintln(stderr, "vm:", err)
		return exitFailed
	}
	return code
}

func (s settings) do(ctx context.Context, self string, stdout io.Writer, report harness.Reporter) (int, error) {
	if err := checkMachine(); err != nil {
		return 0, err
	}
	if err := ensureKernel(ctx, s.kernel, report); err != nil {
		return 0, err
	}
	m := machine{kernel: s.kernel, init: self, timeout: s.timeout, report: report}
	if s.verb == "test" {
		return m.test(ctx, s.args, s.skip, stdout)
	}
	dir, err := os.Getwd()
	if err != nil {
		return 0, err
	}
	statuses, err := m.run(ctx, []command{{Dir: dir, Args: s.args}}, stdout)
	if err != nil {
		return 0, err
	}
	return statuses[0], nil
}
