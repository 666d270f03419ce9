package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"fairlead.dev/fairlead/test/harness"
)

// runInside is the work inside of the namespaces.
func runInside(ctx context.Context, work harness.Work) error {
	var p plan
	if err := work.ReadPlan(&p); err != nil {
		return err
	}
	ctrl.SetLogger(logr.Discard())
	return perform(ctx, p, harness.Reporter{Out: os.Stdout, Start: p.Start})
}

// perform makes all wanted measurements. A failed measurement does not stop the others.
func perform(interrupted context.Context, p plan, report harness.Reporter) error {
	ctx, cancel := context.WithCancelCause(interrupted)
	defer cancel(nil)
	w := &testbed{plan: p, Reporter: report, processes: &processes{Processes: harness.Processes{Logs: p.Logs(), Failed: cancel}}}
	var (
		results []result
		failed  int
		errs    []error
	)
	for _, m := range measurements() {
		if !p.makes(m) {
			continue
		}
		report.Say("%s", m.what)
		figures, err := m.run(ctx, w)
		if interrupted.Err() != nil {
			return harness.ErrInterrupted
		}
		if ctx.Err() != nil {
			errs = append(errs, context.Cause(ctx))
			break
		}
		if err != nil {
			report.Say("  FAILED: %v", err)
			failed++
			continue
		}
		made, err := m.results(p, figures)
		for _, r := range made {
			report.Say("  %s", r)
		}
		results, errs = append(results, made...), append(errs, err)
	}
	if failed > 0 {
		errs = append(errs, fmt.Errorf("%d measurements failed", failed))
	}
	errs = append(errs, w.stop())
	printTable(report.Out, results)
	if p.Out != "" {
		errs = append(errs, writeResults(p.Out, results))
	}
	return errors.Join(errs...)
}
