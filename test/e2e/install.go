package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/harness"
	"fairlead.dev/fairlead/test/lab"
)

const (
	system = "fairlead-system"
	// The ServiceAccounts of deploy/rights, which are also the names of the programs.
	controllerAccount = "fairlead-controller"
	nodeAccount       = "fairlead-node"
)

// slowElection is the election of controllers in pods, for machines that are slow under this
// test alone: a controller that renews its Lease late steps down. Controllers that run as
// processes have the defaults, because a killed leader is followed after its Lease.
var slowElection = map[string]string{"leaseDuration": "60s", "renewDeadline": "50s", "retryPeriod": "2s"}

// install applies the manifests of an installation except the workloads: the programs run
// as processes, with the accounts' credentials.
func (w *testbed) install(ctx context.Context) error {
	if err := w.Install(ctx, w.Source); err != nil {
		return err
	}
	w.ranges = w.Families.ranges()
	pool := &v1alpha1.IPPool{
		ObjectMeta: metav1.ObjectMeta{Name: "default"},
		Spec:       v1alpha1.IPPoolSpec{Ranges: words(w.ranges), Placement: v1alpha1.PlacementPerNode},
	}
	if err := w.Create(ctx, pool); err != nil {
		return fmt.Errorf("pool %s: %w", pool.Name, err)
	}
	w.Say("installed from deploy/: CRDs, accounts, rights; the pool default of %v", w.ranges)
	return w.startControllers(ctx)
}

// controllerWall is the wall clock of a controller of hack/build-clocked.sh.
func (w *testbed) controllerWall(i int) wallClock {
	return wallClock(filepath.Join(w.Tmpfs(), fmt.Sprintf("controller-%d.wall", i)))
}

// startControllers starts two controllers; one of them leads.
func (w *testbed) startControllers(ctx context.Context) error {
	account := filepath.Join(w.Tmpfs(), "controller.kubeconfig")
	if err := w.ControllerAccount(ctx, account); err != nil {
		return err
	}
	w.controllers = make([]*harness.Process, 2)
	w.controllerSettings = map[string]any{"kubeconfig": account}
	for i := range w.controllers {
		if err := errors.Join(w.controllerWall(i).set(0), w.startController(i)); err != nil {
			return err
		}
	}
	return nil
}

// startController starts one of the controllers with the present settings.
func (w *testbed) startController(i int) error {
	settings := maps.Clone(w.controllerSettings)
	settings["metricsAddress"] = fmt.Sprintf("127.0.0.1:%d", controllerPort+i)
	program := "fairlead-controller"
	if w.Clocked {
		program = filepath.Join(clockedDir, program)
	}
	p, err := w.Daemon(fmt.Sprintf("fairlead-controller-%d", i), program, settings)
	if err != nil {
		return err
	}
	if w.Clocked {
		w.controllerWall(i).give(p)
	}
	w.controllers[i] = p
	return w.Programs.Start(w.Net.Switch.Do, p)
}

// giveAccount gives a node's daemon the credentials that a DaemonSet's pod has on that
// node: a token that is bound to a pod there, and so to the node. The pod has no other
// purpose.
func (w *testbed) giveAccount(ctx context.Context, n *node) error {
	holder := lab.NewPod("", nodeAccount+"-"+n.name, n.name, nil)
	holder.Spec.TerminationGracePeriodSeconds = new(int64(1))
	holder.Spec.Containers = []corev1.Container{{Name: "holder", Image: pauseImage, ImagePullPolicy: corev1.PullNever}}
	return w.NodeAccount(ctx, holder, n.account())
}
