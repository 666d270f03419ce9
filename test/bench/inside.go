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
func runInside(ctx context.Context, work harness.Work, programs *harness.Processes) error {
	var p plan
	if err := work.ReadPlan(&p); err != nil {
		return err
	}
	ctrl.SetLogger(logr.Discard())
	return perform(ctx, &testbed{plan: p, Reporter: harness.Reporter{Out: os.Stdout, Start: p.Start}, processes: &processes{Processes: programs}})
}

// perform makes all wanted measurements. A failed measurement does not stop the others.
func perform(ctx context.Context, w *testbed) error {
	var (
		results []result
		failed  int
		errs    []error
	)
	for _, m := range measurements() {
		if !w.makes(m) {
			continue
		}
		w.Say("%s", m.what)
		figures, err := m.run(ctx, w)
		if harness.Interrupted(ctx) {
			return harness.ErrInterrupted
		}
		if ctx.Err() != nil {
			errs = append(errs, context.Cause(ctx))
			break
		}
		if err != nil {
			w.Say("  FAILED: %v", err)
			failed++
			continue
		}
		made, err := m.results(w.plan, figures)
		for _, r := range made {
			w.Say("  %s", r)
		}
		results, errs = append(results, made...), append(errs, err)
	}
	if failed > 0 {
		errs = append(errs, fmt.Errorf("%d measurements failed", failed))
	}
	errs = append(errs, w.stop())
	printTable(w.Reporter.Out, results)
	if w.plan.Out != "" {
		errs = append(errs, writeResults(w.plan.Out, results))
	}
	return errors.Join(errs...)
}
