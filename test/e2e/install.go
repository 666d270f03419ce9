package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/cluster"
	"fairlead.dev/fairlead/test/harness"
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
	for _, part := range []string{"api/v1alpha1/crd", "deploy/rights"} {
		if err := w.kubectl(ctx, "apply", "--server-side", "-k", filepath.Join(w.Source, part)); err != nil {
			return err
		}
	}
	if err := w.kubectl(ctx, "wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"); err != nil {
		return err
	}
	w.ranges = w.Families.ranges()
	pool := &v1alpha1.IPPool{
		ObjectMeta: metav1.ObjectMeta{Name: "default"},
		Spec:       v1alpha1.IPPoolSpec{Ranges: words(w.ranges), Placement: v1alpha1.PlacementPerNode},
	}
	// Established is set a moment before the kind is served.
	err := w.await(ctx, "the kinds of the CRDs", func(ctx context.Context) (string, error) {
		err := w.Create(ctx, pool)
		if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
			return "IPPool is not served yet", nil
		}
		return "", err
	})
	if err != nil {
		return err
	}
	w.Say("installed from deploy/: CRDs, accounts, rights; the pool default of %v", w.ranges)
	return w.startControllers(ctx)
}

func (w *testbed) kubectl(ctx context.Context, args ...string) error {
	args = append([]string{"kubectl", "--kubeconfig", w.admin}, args...)
	_, err := w.processes.Run(ctx, w.lab.Switch.Do, filepath.Join(w.programs(), "kubelab"), args...)
	return err
}

// controllerWall is the wall clock of a controller of hack/build-clocked.sh.
func (w *testbed) controllerWall(i int) wallClock {
	return wallClock(filepath.Join(w.Tmpfs(), fmt.Sprintf("controller-%d.wall", i)))
}

// startControllers starts two controllers; one of them leads.
func (w *testbed) startControllers(ctx context.Context) error {
	account := filepath.Join(w.Tmpfs(), "controller.kubeconfig")
	if err := cluster.WriteAccount(ctx, w.Client, w.rest, account, controllerAccount, nil); err != nil {
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
	config := filepath.Join(w.Tmpfs(), fmt.Sprintf("controller-%d.yaml", i))
	if err := writeYAML(config, settings); err != nil {
		return err
	}
	program := filepath.Join(w.programs(), "fairlead-controller")
	if w.Clocked {
		program = filepath.Join(w.programs(), clockedDir, "fairlead-controller")
	}
	p, err := w.processes.Command(fmt.Sprintf("fairlead-controller-%d", i), program, "--config", config, "-v", "1")
	if err != nil {
		return err
	}
	if w.Clocked {
		w.controllerWall(i).give(p)
	}
	w.controllers[i] = p
	return w.processes.Start(w.lab.Switch.Do, p)
}

// giveAccount gives a node's daemon the credentials that a DaemonSet's pod has on that
// node: a token that is bound to a pod there, and so to the node. The pod has no other
// purpose.
func (w *testbed) giveAccount(ctx context.Context, n *node) error {
	holder := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: nodeAccount + "-" + n.name},
		Spec: corev1.PodSpec{
			NodeName: n.name, ServiceAccountName: nodeAccount, AutomountServiceAccountToken: new(false), HostNetwork: true,
			TerminationGracePeriodSeconds: new(int64(1)),
			Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers:                    []corev1.Container{{Name: "holder", Image: pauseImage, ImagePullPolicy: corev1.PullNever}},
		},
	}
	if err := w.Create(ctx, holder); err != nil {
		return fmt.Errorf("pod for the credentials of %s: %w", n.name, err)
	}
	bound := &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: holder.Name, UID: holder.UID}
	return cluster.WriteAccount(ctx, w.Client, w.rest, n.account(), nodeAccount, bound)
}
