package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/e2e/soak"
	"fairlead.dev/fairlead/test/harness"
)

const (
	// phaseLength is how long pods come and go, and faults happen, until a rest. A shorter
	// remainder than leastPhase is no phase of its own.
	phaseLength = 3 * time.Minute
	leastPhase  = 30 * time.Second
	// betweenFaults is the longest pause between two faults on one machine.
	betweenFaults = 6 * time.Second
	// recoverWithin bounds a recovery from a fault, while others happen. The node daemon
	// looks for some damages once in a minute.
	recoverWithin = 4 * time.Minute
	// tryTimeout bounds a request to an API server that may hang.
	tryTimeout = 20 * time.Second
)

// soaking is the state of the scenario.
type soaking struct {
	*testbed
	begun   time.Time
	journal soak.Journal
	totals  soak.Totals
	made    atomic.Int64 // pods that were seen

	mu sync.Mutex // of the rest, and of the nodes' maps of programs
	// asked are the processes that a fault ended.
	asked    map[*harness.Process]bool
	restarts map[string]int // unasked ends of programs that are not Fairlead's
	kept     map[string]string

	phases   []soak.Phase
	readings []soak.Reading
	audited  string
}

// soakNodes runs the scenario for the time that the user chose: in phases, in which pods
// come and go and faults happen at random, each followed by a rest, after which everything
// must be true.
func (w *testbed) soakNodes(ctx context.Context) error {
	s := &soaking{testbed: w, begun: time.Now(), asked: map[*harness.Process]bool{}, restarts: map[string]int{}, kept: map[string]string{}}
	err := s.soakAll(ctx)
	if err != nil {
		err = fmt.Errorf("%w\nthe faults of seed %d until then:\n%s", errors.Join(err, context.Cause(ctx)), w.Seed, &s.journal)
	}
	run := s.outcome(ctx, err)
	err = errors.Join(err, os.WriteFile(filepath.Join(w.Logs(), "soak.journal"), []byte(s.journal.String()), 0o600))
	if err == nil {
		_, err = fmt.Fprintf(w.Out, "soak: OK seconds=%.0f phases=%d faults=%d pods=%d leaked=0\n", run.Took.Seconds(), len(run.Phases), len(run.Entries), run.Pods)
	}
	if w.Report != "" {
		err = errors.Join(err, os.WriteFile(w.Report, []byte(run.Markdown()), 0o644)) //nolint:gosec // a report that others read
	}
	return err
}

func (s *soaking) soakAll(ctx context.Context) (err error) {
	undo, err := s.prepare(ctx)
	if err != nil {
		return err
	}
	defer undo()
	supervising, stop := context.WithCancel(ctx)
	var supervisors errgroup.Group
	for _, n := range s.nodes {
		n.killed = true
		for _, name := range []string{kubelet, containerRuntime, kubeProxy} {
			supervisors.Go(func() error { return s.supervise(supervising, n, name) })
		}
	}
	supervisors.Go(func() error { return s.countPods(supervising) })
	defer func() {
		stop()
		err = errors.Join(err, supervisors.Wait())
	}()
	lanes := s.lanes()
	for phase := 1; ; phase++ {
		left := s.Soak - time.Since(s.begun)
		if phase > 1 && left < leastPhase {
			break
		}
		if err := s.churn(ctx, phase, min(max(left, leastPhase), phaseLength), lanes); err != nil {
			return fmt.Errorf("phase %d: %w", phase, err)
		}
		if err := s.atRest(ctx, phase); err != nil {
			return fmt.Errorf("rest after phase %d: %w", phase, err)
		}
	}
	return s.remove(ctx)
}

// prepare makes the networks of the scenario of several networks, and sets up the
// controllers and a pool: garbage is collected often, and StatefulSets keep their addresses
// on the network apps.
func (s *soaking) prepare(ctx context.Context) (undo func(), err error) {
	for _, wire := range wires() {
		if err := s.Net.Connect(wire); err != nil {
			return nil, err
		}
	}
	if undo, err = s.networksBaseline(); err != nil {
		return nil, err
	}
	s.controllerSettings = maps.Clone(s.controllerSettings)
	s.controllerSettings["gcInterval"] = "10s"
	if err := s.installNetworks(ctx); err != nil {
		return nil, err
	}
	pool := &v1alpha1.IPPool{}
	if err := s.Get(ctx, client.ObjectKey{Name: "apps"}, pool); err != nil {
		return nil, err
	}
	pool.Spec.Sticky = v1alpha1.StickyStatefulSet
	if err := s.Update(ctx, pool); err != nil {
		return nil, err
	}
	_, err = s.leader(ctx, -1)
	return undo, err
}

// churn lets pods come and go and faults happen for a while.
func (s *soaking) churn(ctx context.Context, phase int, length time.Duration, lanes []*lane) error {
	s.Say("  phase %d: pods come and go under faults for %.0f s", phase, length.Seconds())
	g, ctx := errgroup.WithContext(ctx)
	churning, stop := context.WithTimeout(ctx, length)
	defer stop()
	for _, l := range lanes {
		g.Go(func() error { return s.disturb(ctx, churning, l) })
	}
	for i, work := range s.workers() {
		random := rand.New(rand.NewPCG(s.Seed, 1<<40+uint64(phase)<<8+uint64(i))) //nolint:gosec // not negative
		g.Go(func() error { return work(churning, random) })
	}
	return g.Wait()
}

// look returns the reason why a state is not reached yet, empty if it is.
type look = func(ctx context.Context) (string, error)

// fault makes a fault, keeps it for a while and ends its cause. It returns the look that
// finds that everything is well again.
type fault struct {
	name string
	do   func(ctx context.Context, random *rand.Rand) (well look, err error)
}

// controlPlane is the name of the lane of the control plane; the others are nodes.
const controlPlane = "control plane"

// lane is a part of the cluster in which one fault happens at a time. Faults in several
// lanes overlap.
type lane struct {
	on     string
	faults map[string]fault
	deck   *soak.Deck
	random *rand.Rand
}

func (s *soaking) lanes() []*lane {
	all := []*lane{s.newLane(controlPlane, 0, s.controlFaults())}
	for i, n := range s.nodes {
		all = append(all, s.newLane(n.name, 1+i, s.nodeFaults(n)))
	}
	return all
}

func (s *soaking) newLane(on string, number int, faults []fault) *lane {
	l := &lane{on: on, faults: map[string]fault{}, random: rand.New(rand.NewPCG(s.Seed, 1<<33+uint64(number)))} //nolint:gosec // not negative
	var names []string
	for _, f := range faults {
		l.faults[f.name] = f
		names = append(names, f.name)
	}
	l.deck = soak.NewDeck(l.random, names...)
	return l
}

// disturb makes one fault after the other in a lane until churning ends. A fault that has
// begun is healed, and its recovery awaited, in any case.
func (s *soaking) disturb(ctx, churning context.Context, l *lane) error {
	for {
		pause(churning, l.random, betweenFaults)
		if churning.Err() != nil {
			return nil //nolint:nilerr // the time is over
		}
		f := l.faults[l.deck.Next()]
		number := s.journal.Begin(f.name, l.on, time.Since(s.begun))
		well, err := f.do(ctx, l.random)
		if err != nil {
			return fmt.Errorf("%s, %s: %w", f.name, l.on, err)
		}
		s.journal.Healed(number, time.Since(s.begun))
		for _, well := range []look{well, s.newPodServed(l.on)} {
			noted := func(ctx context.Context) (string, error) {
				why, err := well(ctx)
				if why != "" || err != nil {
					s.journal.Note(number, reason(why, err)) // the last reason stays
				}
				return why, err
			}
			if err := s.becomes(ctx, recoverWithin, noted); err != nil {
				return fmt.Errorf("recovery from %s, %s: %w", f.name, l.on, err)
			}
		}
		s.journal.Recovered(number, time.Since(s.begun))
	}
}

// becomes waits until a look finds nothing wrong. An error of the look is a reason to look
// again, because the API server may be away.
func (s *soaking) becomes(ctx context.Context, within time.Duration, well look) error {
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("not within %v", within))
	defer cancel()
	tick := time.NewTicker(5 * pollInterval)
	defer tick.Stop()
	last := ""
	for {
		why, err := tried(ctx, well)
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("%w: %s", context.Cause(ctx), last)
		case err == nil && why == "":
			return nil
		case err != nil:
			why = reason(why, err)
		}
		last = why
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// reason joins the two answers of a look.
func reason(why string, err error) string {
	if err != nil {
		why = strings.TrimSpace(why + " " + err.Error())
	}
	return why
}

func tried(ctx context.Context, well look) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*tryTimeout)
	defer cancel()
	return well(ctx)
}

// outcome collects the report.
func (s *soaking) outcome(ctx context.Context, failure error) soak.Run {
	var skipped []string
	if !s.Clocked {
		skipped = []string{"jumps of the wall clocks of fairlead-node and of the controllers, which need --clocked"}
	}
	run := soak.Run{
		Skipped: skipped,
		Seed:    s.Seed, Took: time.Since(s.begun), Entries: s.journal.Entries(), Pods: int(s.made.Load()),
		Phases: s.phases, Readings: s.readings, Restarts: s.restarts, Audit: s.audited,
		ADD:   s.totals.Histogram("fairlead_cni_request_duration_seconds", "verb", "ADD"),
		DEL:   s.totals.Histogram("fairlead_cni_request_duration_seconds", "verb", "DEL"),
		Codes: s.totals.Counts("fairlead_cni_requests_total", "code", "verb", "ADD"),
	}
	for code, n := range s.totals.Counts("fairlead_cni_requests_total", "code", "verb", "DEL") {
		run.Codes[code] += n
	}
	if failure != nil {
		run.Failure = failure.Error()
		return run
	}
	if refused, err := s.failedSandboxes(ctx); err == nil {
		run.Refused = causes(refused)
	}
	return run
}
