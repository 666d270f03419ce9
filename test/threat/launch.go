package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"fairlead.dev/fairlead/test/harness"
	"fairlead.dev/fairlead/test/netlab"
)

// launch is the program that the user starts. It returns the exit code: 0 if no attack
// succeeded, 1 otherwise, 2 for a wrong command line, 3 if the machine lacks something,
// 130 after Ctrl-C.
func launch(args []string, stdout, stderr io.Writer) int {
	s, err := parseFlags(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "threat: %v\n", err)
		return 2
	}
	if lacks := preflight(s); len(lacks) > 0 {
		return harness.Refuse("threat", "the suite", lacks, stderr)
	}
	result, err := runAll(s, stdout)
	switch {
	case err == harness.ErrInterrupted: //nolint:errorlint // joined with another error it is not clean
		_, _ = fmt.Fprintf(stderr, "threat: %v\n", err)
		return 130
	case err != nil:
		_, _ = fmt.Fprintf(stderr, "threat: FAILED: %v\n", err)
		return 1
	}
	_, _ = fmt.Fprintf(stdout, "threat: OK attacks=%d succeeded=%d\n", result.Attacks, result.Succeeded)
	return 0
}

func preflight(s settings) []string {
	if os.Geteuid() != 0 {
		return []string{"root, to make network namespaces and links: run it with sudo (sudo -E make threat)"}
	}
	var lacks []string
	if !netlab.HasIPv6() {
		lacks = append(lacks, "a kernel with IPv6: boot without ipv6.disable=1, or modprobe ipv6")
	}
	if _, err := exec.LookPath("nft"); err != nil {
		lacks = append(lacks, "the program nft: on Debian and Ubuntu, apt-get install -y --no-install-recommends nftables")
	}
	return append(lacks, harness.MissingPrograms(s.Bin, "fairlead-controller", "fairlead-node", "fairlead-cni", "kubelab", "podrunner")...)
}

// runAll runs the program inside of the namespaces, and checks that it left nothing on
// the machine.
func runAll(s settings, stdout io.Writer) (result verdict, err error) {
	before, err := links()
	if err != nil {
		return result, err
	}
	work, err := harness.NewWork("threat")
	if err != nil {
		return result, err
	}
	defer func() { err = work.Close(err, s.KeepLogs, stdout) }()
	p := plan{settings: s, Start: time.Now(), Work: work}
	err = work.Enter(p, stdout)
	if leftErr := checkMachine(before, p); leftErr != nil {
		err = errors.Join(err, leftErr)
	}
	if err != nil {
		return result, err
	}
	err = work.ReadResult(&result)
	return result, err
}

func links() (netlab.State, error) {
	ns, err := netlab.Current()
	if err != nil {
		return netlab.State{}, err
	}
	defer ns.Close()
	return ns.State()
}

// checkMachine returns an error if anything of the run is left: a process, a mount, or a
// link, route or table of a name that Fairlead or the laboratory gives.
func checkMachine(before netlab.State, p plan) error {
	after, err := links()
	if err != nil {
		return err
	}
	left, err := p.Left()
	if err != nil {
		return err
	}
	for _, item := range after.Since(before).All() {
		if strings.Contains(item, "fairlead") || strings.Contains(item, " "+netlab.PortPrefix) || strings.Contains(item, " "+netlab.BridgeName) {
			left = append(left, item)
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("the run left on this machine: %s", strings.Join(left, ", "))
	}
	return nil
}
