package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

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
	result, err, leaveErr := perform(ctx, p, harness.Reporter{Out: os.Stdout, Start: p.Start})
	if ctx.Err() != nil {
		err = harness.ErrInterrupted // the interruption caused the failure
	}
	if err := errors.Join(err, leaveErr); err != nil {
		return err
	}
	return writeJSON(p.doneFile(), result)
}

func writeJSON(path string, value any) error {
	raw, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	return os.WriteFile(path, raw, 0o600)
}

// perform runs the demo. leaveErr is an error of leaving the user's cluster. It is
// returned separately, because it matters even if the user has interrupted the demo.
func perform(ctx context.Context, p plan, report harness.Reporter) (result outcome, err, leaveErr error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := &testbed{plan: p, Reporter: report, processes: &harness.Processes{Logs: p.Logs(), Failed: cancel}}
	if err := w.build(ctx); err != nil {
		return result, err, nil
	}
	if p.Stay {
		return result, w.stay(ctx), nil
	}
	result, err = w.runSteps(ctx)
	// A control plane of our own ends with this process; a user's stays.
	if p.Kubeconfig != "" {
		leaveErr = w.leaveCluster(context.WithoutCancel(ctx))
	}
	return result, err, leaveErr
}

// runSteps runs the steps in the cluster.
func (w *testbed) runSteps(ctx context.Context) (result outcome, err error) {
	if err := w.install(ctx); err != nil {
		return result, err
	}
	if err := w.startFairlead(ctx); err != nil {
		return result, err
	}
	pods, err := w.runPods(ctx)
	if err != nil {
		return result, err
	}
	if result, err = w.pingAll(ctx, pods); err != nil {
		return result, err
	}
	if err := w.removePods(ctx, pods); err != nil {
		return result, err
	}
	return result, w.cleanNodes(ctx)
}

// stepTimeout bounds each step; all steps together take a fraction of it.
const stepTimeout = 2 * time.Minute
