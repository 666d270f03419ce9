package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	ctrl "sigs.k8s.io/controller-runtime"
)

// inner is the program inside the namespaces that the outer one made. It is
// process 1 there: its end is the end of everything it started.
func inner(planFile string, stdout, stderr io.Writer) int {
	var p plan
	raw, err := os.ReadFile(planFile)
	if err == nil {
		err = json.Unmarshal(raw, &p)
	}
	if err == nil {
		err = settleIn(p)
	}
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "bench: %v\n", err)
		return 1
	}
	ctrl.SetLogger(logr.Discard())
	if err := perform(context.Background(), p, reporter{out: stdout, start: p.Start}); err != nil {
		_, _ = fmt.Fprintf(stderr, "bench: %v\n", err)
		return 1
	}
	return 0
}

// settleIn makes the mount namespace private, with the processes of our own
// PID namespace in /proc, and what must not outlive a boot on tmpfs.
func settleIn(p plan) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := unix.Mount("tmpfs", p.run(), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0700"); err != nil {
		return fmt.Errorf("mount a tmpfs at %s: %w", p.run(), err)
	}
	return nil
}

// perform measures everything that was asked for. A measurement that fails
// does not keep the others from being made.
func perform(ctx context.Context, p plan, report reporter) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := &world{plan: p, reporter: report, crew: &crew{logs: p.logs(), failed: cancel}}
	var (
		results []result
		failed  int
		errs    []error
	)
	for _, m := range measurements() {
		if !p.wants(m.names()...) || m.full && p.Short {
			continue
		}
		report.say("%s", m.what)
		figures, err := m.run(ctx, w)
		if ctx.Err() != nil {
			errs = append(errs, context.Cause(ctx))
			break
		}
		if err != nil {
			report.say("  FAILED: %v", err)
			failed++
			continue
		}
		made, err := m.results(p, figures)
		for _, r := range made {
			report.say("  %s", r)
		}
		results, errs = append(results, made...), append(errs, err)
	}
	if failed > 0 {
		errs = append(errs, fmt.Errorf("%d measurements failed", failed))
	}
	errs = append(errs, w.stop())
	printTable(report.out, results)
	if p.Out != "" {
		errs = append(errs, writeResults(p.Out, results))
	}
	return errors.Join(errs...)
}
