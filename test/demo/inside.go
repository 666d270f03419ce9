package main

import (
	"context"
	"errors"
	"os"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"fairlead.dev/fairlead/test/harness"
	"fairlead.dev/fairlead/test/lab"
)

// runInside is the work inside of the namespaces.
func runInside(ctx context.Context, work harness.Work, programs *harness.Processes) error {
	var p plan
	if err := work.ReadPlan(&p); err != nil {
		return err
	}
	ctrl.SetLogger(logr.Discard())
	w := &testbed{plan: p, Cluster: &lab.Cluster{
		Reporter: harness.Reporter{Out: os.Stdout, Start: p.Start}, Dir: work, Bin: p.Bin, Programs: programs,
	}}
	result, err, leaveErr := w.perform(ctx)
	if harness.Interrupted(ctx) {
		err = harness.ErrInterrupted // the interruption caused the failure
	}
	if err := errors.Join(err, leaveErr); err != nil {
		return err
	}
	return work.WriteResult(result)
}

// perform runs the demo. leaveErr is an error of leaving the user's cluster. It is
// returned separately, because it matters even if the user has interrupted the demo.
func (w *testbed) perform(ctx context.Context) (result outcome, err, leaveErr error) {
	if err := w.build(ctx); err != nil {
		return result, err, nil
	}
	if w.Stay {
		return result, w.stay(ctx), nil
	}
	result, err = w.runSteps(ctx)
	// A control plane of our own ends with this process; a user's stays.
	if w.Kubeconfig != "" {
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
