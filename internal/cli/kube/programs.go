package kube

import (
	"cmp"
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Labels of the programs and of their pods.
const (
	LabelProgram = "app.kubernetes.io/name"
	LabelVersion = "app.kubernetes.io/version"
)

// DaemonName is the label's value of the node's daemon; the controller's is
// ControllerName.
const DaemonName = "fairlead-node"

// Installation is the set of objects that run the programs; empty if the programs run
// outside the cluster.
type Installation struct {
	Controllers []appsv1.Deployment
	Daemons     []appsv1.DaemonSet
	Pods        []corev1.Pod
}

// readPrograms reads the programs of one namespace. Programs that run outside the cluster
// are not shown. A user without the right to read the programs sees none.
func (r *reader) readPrograms(ctx context.Context, namespace string) error {
	var (
		deployments appsv1.DeploymentList
		daemonSets  appsv1.DaemonSetList
		pods        corev1.PodList
	)
	named := func(list client.ObjectList, name string) error {
		err := r.api.List(ctx, list, client.InNamespace(namespace), client.MatchingLabels{LabelProgram: name})
		if err != nil && !apierrors.IsForbidden(err) {
			return explain(err, r.server, "the programs in namespace "+namespace)
		}
		return nil
	}
	if err := cmp.Or(named(&deployments, ControllerName), named(&daemonSets, DaemonName)); err != nil {
		return err
	}
	r.snap.Installed = Installation{Controllers: deployments.Items, Daemons: daemonSets.Items}
	for _, name := range []string{ControllerName, DaemonName} {
		if err := named(&pods, name); err != nil {
			return err
		}
		r.snap.Installed.Pods = append(r.snap.Installed.Pods, pods.Items...)
	}
	return nil
}
