// Command demo shows the whole work of Fairlead on one machine: a Kubernetes control
// plane, nodes that are network namespaces on one link, and pods that the real scheduler
// places. Each pod has its address, all pods ping each other, and in the end nothing is
// left. `make demo` builds and runs it. `make up` leaves such a cluster running, for
// docs/user/tour.md, until `make down`.
//
// The program that the user starts checks the requirements of the machine and then
// executes itself again in namespaces of its own, where everything runs (test/harness).
// At the end it checks that the machine is as it was before.
package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"fairlead.dev/fairlead/test/harness"
	"fairlead.dev/fairlead/test/netlab"
)

func main() {
	if code, inside := harness.Inside(runInside); inside {
		os.Exit(code)
	}
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case verbUp, verbKeep, verbDown, verbShell, verbPlay, verbNeutron:
			os.Exit(staying(os.Args[1], os.Args[2:], os.Stdout, os.Stderr))
		}
	}
	os.Exit(launch(os.Args[1:], os.Stdout, os.Stderr))
}

// The verbs for a cluster that stays. Without one, the demo runs to its end.
const (
	verbUp    = "up"
	verbDown  = "down"
	verbShell = "shell"
	verbPlay  = "play"
	verbKeep  = "keep" // used by up
	// verbNeutron gives the stand-in of Neutron a command.
	verbNeutron = "neutron"
)

// staying runs one of the verbs and returns the exit code: 0 for success, 1 for a failure,
// 2 for a wrong command line, 3 if the machine lacks something.
func staying(verb string, args []string, stdout, stderr io.Writer) int {
	own, paths := args, []string(nil)
	switch verb {
	case verbShell, verbNeutron:
		own = nil // they are the command's
	case verbPlay:
		flags := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, "-") })
		if flags < 0 {
			flags = len(args)
		}
		own, paths = args[flags:], args[:flags]
	}
	s, err := parseFlags(own, stderr)
	switch {
	case err == nil && verb == verbPlay && len(paths) == 0:
		err = errors.New("play: name one page or more before the flags, as docs/user/tour.md")
	case err == nil && s.Kubeconfig != "":
		err = fmt.Errorf("--kubeconfig %s: a cluster that stays has a control plane of its own", s.Kubeconfig)
	}
	if err != nil {
		return harness.WrongFlags("demo", err, stderr)
	}
	switch verb {
	case verbDown:
		return s.down(stdout, stderr)
	case verbShell:
		return s.shell(args, stderr)
	case verbNeutron:
		return s.neutron(args, stdout, stderr)
	case verbKeep:
		return s.keep()
	}
	if lacks := preflight(context.Background(), s, !netlab.HasIPv6()); len(lacks) > 0 {
		return harness.Refuse("demo", "the cluster", lacks, stderr)
	}
	if verb == verbPlay {
		return s.play(paths, stdout, stderr)
	}
	return s.up(stdout, stderr)
}

// settings are the user's flags.
type settings struct {
	Nodes      int
	Pods       int
	Kubeconfig string // empty: a control plane of our own
	OpenStack  bool   // the cluster is on stand-ins of Neutron and of Open vSwitch
	harness.Flags
	Check bool // only print the missing requirements, without Fairlead's programs
}

const (
	maxNodes = 50
	maxPods  = 500
)

func parseFlags(args []string, stderr io.Writer) (settings, error) {
	var s settings
	flags, err := s.Set("demo", stderr)
	if err != nil {
		return s, err
	}
	flags.IntVar(&s.Nodes, "nodes", 2, "how many nodes to make")
	flags.IntVar(&s.Pods, "pods", 20, "how many pods to make")
	flags.StringVar(&s.Kubeconfig, "kubeconfig", "", "kubeconfig `file` of a cluster to use instead of a control plane of our own")
	flags.BoolVar(&s.OpenStack, "openstack", false, "with up or play: have pods on ports of a stand-in of Neutron")
	flags.BoolVar(&s.Check, "check", false, "print the missing requirements of this machine, and do nothing; Fairlead's programs need not be built yet")
	if err := s.Parse(flags, args); err != nil {
		return s, err
	}
	var errs []error
	if s.Nodes < 1 || s.Nodes > maxNodes {
		errs = append(errs, fmt.Errorf("--nodes is %d; must be 1 to %d", s.Nodes, maxNodes))
	}
	if s.Pods < 1 || s.Pods > maxPods {
		errs = append(errs, fmt.Errorf("--pods is %d; must be 1 to %d", s.Pods, maxPods))
	}
	return s, errors.Join(errs...)
}

// plan is the input of the program inside of the namespaces.
type plan struct {
	settings
	// ID distinguishes the objects of this run from others.
	ID string
	// Start is when the user started the demo.
	Start time.Time
	harness.Work
	// Stay keeps the cluster running until the user ends it.
	Stay bool
	// Address is where the user's programs reach the API server of a cluster that stays.
	Address string
	// IPv4Only is true if this kernel has no IPv6.
	IPv4Only bool
}

// neutronSocket is where the stand-in of Neutron obeys the user.
func (p plan) neutronSocket() string { return p.Path(neutronSocket) }

// apiSocket is the socket where the outer program passes requests on to the user's
// cluster, with the user's credentials: the inner program cannot reach the cluster.
func (p plan) apiSocket() string { return p.Path("api.sock") }

// outcome is the result of the inner program, on success only.
type outcome struct {
	Pings, Pairs int
}

func newID() string {
	var raw [3]byte
	_, _ = rand.Read(raw[:]) // never fails, see crypto/rand
	return hex.EncodeToString(raw[:])
}
