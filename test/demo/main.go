// Command demo shows Fairlead's whole story on one machine: a Kubernetes
// control plane, nodes that are network namespaces on one link, pods that the
// real scheduler places, each with its address, all pinging each other, and in
// the end nothing left. `make demo` builds and runs it.
//
// The program that the user starts, the outer one, checks what the machine
// lacks and then executes itself again as the inner one, in a PID, a mount and
// a network namespace of its own. Everything happens there, so that all of it
// is gone with the inner program, however that ends; the outer one makes sure
// that the machine is as it was.
package main

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// innerCommand is the first argument of the inner program.
const innerCommand = "inner-program-of-the-demo"

func main() {
	if len(os.Args) == 3 && os.Args[1] == innerCommand {
		os.Exit(inner(os.Args[2], os.Stdout, os.Stderr))
	}
	os.Exit(outer(os.Args[1:], os.Stdout, os.Stderr))
}

// settings are what the user asked for.
type settings struct {
	Nodes      int
	Pods       int
	Kubeconfig string // empty: a control plane of our own
	Bin        string // directory of the programs
	KeepLogs   bool
}

const (
	maxNodes = 50
	maxPods  = 500
)

func parseFlags(args []string, stderr io.Writer) (settings, error) {
	var s settings
	self, err := os.Executable()
	if err != nil {
		return s, fmt.Errorf("find the demo's own executable: %w", err)
	}
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&s.Nodes, "nodes", 2, "how many nodes to make")
	flags.IntVar(&s.Pods, "pods", 20, "how many pods to make")
	flags.StringVar(&s.Kubeconfig, "kubeconfig", "", "kubeconfig `file` of a cluster to use instead of a control plane of our own")
	flags.StringVar(&s.Bin, "bin", filepath.Dir(self), "`directory` of Fairlead's programs")
	flags.BoolVar(&s.KeepLogs, "keep-logs", false, "keep the logs after a success too")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	var errs []error
	if s.Nodes < 1 || s.Nodes > maxNodes {
		errs = append(errs, fmt.Errorf("--nodes is %d; must be 1 to %d", s.Nodes, maxNodes))
	}
	if s.Pods < 1 || s.Pods > maxPods {
		errs = append(errs, fmt.Errorf("--pods is %d; must be 1 to %d", s.Pods, maxPods))
	}
	if flags.NArg() > 0 {
		errs = append(errs, fmt.Errorf("unexpected argument %q", flags.Arg(0)))
	}
	if s.Bin, err = filepath.Abs(s.Bin); err != nil {
		errs = append(errs, fmt.Errorf("--bin: %w", err))
	}
	return s, errors.Join(errs...)
}

// plan is what the outer program tells the inner one.
type plan struct {
	settings
	// ID tells the objects of this run from those of others.
	ID string
	// Start is when the user started the demo.
	Start time.Time
	// Work is a directory for everything; it goes at the end, but for logs.
	Work string
	// IPv4Only says that this kernel has no IPv6.
	IPv4Only bool
}

func (p plan) logs() string     { return filepath.Join(p.Work, "logs") }
func (p plan) kubelab() string  { return filepath.Join(p.Work, "kubelab") }
func (p plan) run() string      { return filepath.Join(p.Work, "run") }
func (p plan) planFile() string { return filepath.Join(p.Work, "plan.json") }
func (p plan) doneFile() string { return filepath.Join(p.Work, "done.json") }

// apiSocket is where the outer program passes requests on to the user's
// cluster, with the user's credentials: the inner one has no way there.
func (p plan) apiSocket() string { return filepath.Join(p.Work, "api.sock") }

// outcome is what the inner program achieved, on success only.
type outcome struct {
	Pings, Pairs int
}

func newID() string {
	var raw [3]byte
	_, _ = rand.Read(raw[:]) // never fails, see crypto/rand
	return hex.EncodeToString(raw[:])
}

// reporter prints progress with the time since the start.
type reporter struct {
	out   io.Writer
	start time.Time
}

func (r reporter) say(format string, args ...any) {
	_, _ = fmt.Fprintf(r.out, "[%5.1fs] %s\n", time.Since(r.start).Seconds(), fmt.Sprintf(format, args...))
}
