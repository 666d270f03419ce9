// Command scale measures Fairlead in a large cluster: a real API server, real controllers
// and simulated nodes, which are the parts of fairlead-node that talk to the API server.
// `make scale` builds and runs it; docs/operator/scale.md has its figures.
//
// A simulated node has an identity, a connection, caches, a ledger and a writer of
// statuses of its own. It plugs nothing: a PodAttachment that arrives counts as plugged.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"fairlead.dev/fairlead/test/harness"
	"fairlead.dev/fairlead/test/lab"
)

func main() {
	// The kernel ends a started program with the thread that started it.
	runtime.LockOSThread()
	klog.SetLogger(logr.Discard())
	ctrl.SetLogger(logr.Discard())
	os.Exit(launch(os.Args[1:], os.Stdout, os.Stderr))
}

// settings has the user's flags.
type settings struct {
	Nodes, Pods int
	// Seconds is how long pods are created at each steady rate.
	Seconds int
	// Blocks is IPPool.spec.maxBlocksPerNode; 0 means the default.
	Blocks int
	// Two is the number of pods that two nodes get at once.
	Two int
	// Report is the file of the report; empty writes none.
	Report string
	harness.Flags
}

// Bounds of the flags. A node has at most 250 pods beside those of the two crowded nodes.
const (
	minNodes, maxNodes = 10, 5000
	podsPerNode        = 250
)

func parseFlags(args []string, stderr io.Writer) (settings, error) {
	var s settings
	flags, err := s.Set("scale", stderr)
	if err != nil {
		return s, err
	}
	flags.IntVar(&s.Nodes, "nodes", 100, "`number` of simulated nodes")
	flags.IntVar(&s.Pods, "pods", 3000, "`number` of pods on all nodes")
	flags.IntVar(&s.Seconds, "seconds", 15, "`seconds` for which pods are created at each steady rate; 0 leaves this out")
	flags.IntVar(&s.Two, "two", 1000, "`number` of pods that two nodes get at once; 0 leaves this out")
	flags.IntVar(&s.Blocks, "blocks", 0, "maxBlocksPerNode of the pool; 0 for the default")
	flags.StringVar(&s.Report, "report", "", "`file` for the report, in Markdown")
	if err := s.Parse(flags, args, &s.Report); err != nil {
		return s, err
	}
	var errs []error
	if s.Nodes < minNodes || s.Nodes > maxNodes {
		errs = append(errs, fmt.Errorf("--nodes is %d; must be %d to %d", s.Nodes, minNodes, maxNodes))
	}
	if s.Pods < s.Nodes || s.Pods > podsPerNode*s.Nodes {
		errs = append(errs, fmt.Errorf("--pods is %d; must be 1 to %d for each of the %d nodes", s.Pods, podsPerNode, s.Nodes))
	}
	if s.Seconds < 0 || s.Two < 0 || s.Blocks < 0 {
		errs = append(errs, fmt.Errorf("--seconds is %d, --two %d and --blocks %d; must be at least 0", s.Seconds, s.Two, s.Blocks))
	}
	return s, errors.Join(errs...)
}

// launch returns the exit code: 0 for success, 1 for a failure, 2 for a wrong command
// line, 3 if the machine lacks something, 130 after Ctrl-C.
func launch(args []string, stdout, stderr io.Writer) int {
	s, err := parseFlags(args, stderr)
	if err != nil {
		return harness.WrongFlags("scale", err, stderr)
	}
	if lacks := harness.MissingPrograms(s.Bin, "fairlead", "fairlead-controller", "kubelab"); len(lacks) > 0 {
		return harness.Refuse("scale", "the test", lacks, stderr)
	}
	start := time.Now()
	if err := runIn(s, harness.Reporter{Out: stdout, Start: start}); err != nil {
		return harness.Failed("scale", err, stderr)
	}
	_, _ = fmt.Fprintf(stdout, "scale: OK nodes=%d pods=%d, nothing is left, %.0f s\n", s.Nodes, s.Pods, time.Since(start).Seconds())
	return 0
}

// runIn runs the test in a work directory, which it removes.
func runIn(s settings, say harness.Reporter) (err error) {
	signalled, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithCancelCause(signalled)
	defer cancel(nil)
	work, err := harness.NewWork("scale", recordsDir)
	if err != nil {
		return err
	}
	defer func() { err = work.Close(err, s.KeepLogs, say.Out) }()
	c := &cluster{settings: s, Cluster: &lab.Cluster{
		Reporter: say, Dir: work, Bin: s.Bin, Programs: &harness.Processes{Logs: work.Logs(), Failed: func(err error) { cancel(err) }},
	}}
	err = c.measure(ctx)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause // the first failure; the others follow from it
	}
	stopped := c.stop()
	if signalled.Err() != nil && stopped == nil {
		return harness.ErrInterrupted
	}
	return errors.Join(err, stopped)
}
