package main

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/cluster"
	"fairlead.dev/fairlead/test/lab"
)

// demoLabel marks the objects of one run; its value is the run's ID.
const demoLabel = "fairlead.dev/demo"

func (w *testbed) namespace() string {
	if w.Stay {
		return "fairlead-system"
	}
	return "fairlead-demo-" + w.ID
}

// poolName returns the name of the run's pool and domain, which are its own in a user's
// cluster.
func (w *testbed) poolName() string {
	if w.Kubeconfig != "" {
		return "demo-" + w.ID
	}
	return "default"
}

func (w *testbed) ranges() []string {
	if w.IPv4Only {
		return []string{"10.244.0.0/16"}
	}
	return []string{"10.244.0.0/16", "fd00:10:244::/64"}
}

// install creates the objects in the cluster that Fairlead needs.
func (w *testbed) install(ctx context.Context) error {
	w.joined = true
	crds, err := v1alpha1.CRDs()
	if err != nil {
		return err
	}
	for _, crd := range crds {
		crd.Labels = map[string]string{demoLabel: w.ID}
		if err := w.Create(ctx, crd); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("install %s: %w", crd.Name, err)
		}
	}
	served, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	if err := cluster.AwaitServed(served, w, crds...); err != nil {
		return err
	}
	objects := []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace(), Labels: map[string]string{demoLabel: w.ID}}},
		&v1alpha1.IPPool{
			ObjectMeta: metav1.ObjectMeta{Name: w.poolName(), Labels: map[string]string{demoLabel: w.ID}},
			Spec: v1alpha1.IPPoolSpec{
				Domain: w.poolName(), Ranges: w.ranges(), Placement: v1alpha1.PlacementPerNode,
			},
		},
	}
	if w.Kubeconfig == "" {
		objects = append(objects, nodeRights()...)
	}
	for _, object := range objects {
		if err := w.Create(ctx, object); err != nil {
			return fmt.Errorf("create %T %s: %w", object, object.GetName(), err)
		}
	}
	w.Say("installed the CRDs and the pool %s: %s", w.poolName(), strings.Join(w.ranges(), ", "))
	return w.await(ctx, "the namespace's service account", w.serviceAccountThere)
}

// serviceAccountThere waits for the service account that every pod needs to be admitted.
func (w *testbed) serviceAccountThere(ctx context.Context) (string, error) {
	err := w.Get(ctx, client.ObjectKey{Namespace: w.namespace(), Name: "default"}, &corev1.ServiceAccount{})
	if apierrors.IsNotFound(err) {
		return "none yet", nil
	}
	return "", err
}

// nodeRights returns the least rights that the daemons need; their users are the nodes'.
func nodeRights() []client.Object {
	const name = "fairlead-node"
	read := []string{"get", "list", "watch"}
	return []client.Object{
		&rbacv1.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Rules: []rbacv1.PolicyRule{
				{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"podattachments", "nodenetworks"}, Verbs: read},
				{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"podattachments/status", "nodenetworks/status"}, Verbs: []string{"patch"}},
				{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}},
			},
		},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:nodes"}},
		},
	}
}

// nodesReady waits until each node can serve pods: the plugin is installed and reports
// it, and pods may be scheduled there.
func (w *testbed) nodesReady(ctx context.Context) (string, error) {
	var not []string
	for _, node := range w.nodes {
		object := &corev1.Node{}
		if err := w.Get(ctx, client.ObjectKey{Name: node.KubeName}, object); client.IgnoreNotFound(err) != nil {
			return "", err
		}
		if reason := lab.NotReady(object, demoLabel, corev1.TaintNodeNotReady); reason != "" {
			not = append(not, node.KubeName+": "+reason)
		}
	}
	if len(not) == 0 {
		return "", nil
	}
	return fmt.Sprintf("%d of %d are ready; %s", len(w.nodes)-len(not), len(w.nodes), strings.Join(not, "; ")), nil
}
