package main

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/cluster"
	"fairlead.dev/fairlead/test/harness"
	"fairlead.dev/fairlead/test/lab"
)

// The namespaces, which are also the names of the users with rights in each.
const (
	victim = "victim"  // owns the attacked pods
	tenant = "mallory" // has the role "edit" in her namespace, and may write IPClaims
	author = "nadia"   // may write NetworkAttachmentDefinitions too
	other  = "carol"   // a user without bad intent
)

// pools returns the pools of the operator.
func pools() []*v1alpha1.IPPool {
	of := func(names ...string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpIn, Values: names},
		}}
	}
	pool := func(name string, spec v1alpha1.IPPoolSpec) *v1alpha1.IPPool {
		return &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	}
	return []*v1alpha1.IPPool{
		pool("default", v1alpha1.IPPoolSpec{Ranges: []string{"10.244.0.0/16", "fd00:10:244::/64"}, Placement: v1alpha1.PlacementPerNode}),
		pool("private", v1alpha1.IPPoolSpec{Domain: "private", Ranges: []string{"10.90.0.0/26"}, NamespaceSelector: of(victim)}),
		pool("shop", v1alpha1.IPPoolSpec{
			Domain: "shop", Ranges: []string{"10.91.0.0/26"}, NamespaceSelector: of(tenant), Quota: v1alpha1.Quota{PerNamespace: 2},
		}),
		pool("common", v1alpha1.IPPoolSpec{Domain: "common", Ranges: []string{"10.93.0.0/27"}, NamespaceSelector: of(tenant, other)}),
		pool("tiny", v1alpha1.IPPoolSpec{Domain: "tiny", Ranges: []string{"10.92.0.0-10.92.0.7"}, UseEdges: true, NamespaceSelector: of(tenant, other)}),
	}
}

// install applies the manifests of an installation and the users' rights, and starts the
// programs with the accounts of deploy/.
func (w *testbed) install(ctx context.Context) error {
	networks := cluster.NetworkDefinition()
	if err := w.Create(ctx, networks); err != nil {
		return fmt.Errorf("CRD of the networks: %w", err)
	}
	if err := w.Install(ctx, w.Source, networks); err != nil {
		return err
	}
	for _, pool := range pools() {
		if err := w.Create(ctx, pool); err != nil {
			return fmt.Errorf("pool %s: %w", pool.Name, err)
		}
	}
	if err := w.patchPool(ctx, "default", fmt.Sprintf(`{"spec":{"maxBlocksPerNode":%d}}`, boundOfBlocks)); err != nil {
		return err
	}
	for _, name := range []string{victim, tenant, author, other} {
		if err := w.addUser(ctx, name); err != nil {
			return err
		}
	}
	if err := w.startCloud(ctx); err != nil {
		return fmt.Errorf("cloud: %w", err)
	}
	if err := w.startControllers(ctx); err != nil {
		return err
	}
	for _, n := range w.nodes {
		if err := w.giveAccount(ctx, n); err != nil {
			return err
		}
		if err := w.startDaemon(n, nil); err != nil {
			return err
		}
		if err := w.startRunner(n); err != nil {
			return err
		}
	}
	if err := w.attachOnSecond(ctx); err != nil {
		return err
	}
	w.Say("installed from deploy/; two controllers run, and fairlead-node on each node")
	return await(ctx, "the nodes", w.nodesReady)
}

// attachOnSecond has Fairlead attach the pods of the second node to their networks. On the
// first node it gives the addresses alone, as beside Multus.
func (w *testbed) attachOnSecond(ctx context.Context) error {
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:"Fairlead"}}}`, v1alpha1.LabelAttachedBy)
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.nodes[1].Name}}
	return w.Patch(ctx, n, client.RawPatch(types.MergePatchType, []byte(patch)))
}

// patchPool changes a pool as an operator does.
func (w *testbed) patchPool(ctx context.Context, name, patch string) error {
	pool := &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name}}
	return w.Patch(ctx, pool, client.RawPatch(types.MergePatchType, []byte(patch)))
}

// addUser creates a namespace and a user with rights there.
func (w *testbed) addUser(ctx context.Context, name string) error {
	rules := []rbacv1.PolicyRule{
		{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"ipclaims"}, Verbs: []string{"create", "get", "list", "delete", "update"}},
		{APIGroups: []string{"events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"get", "list"}},
	}
	if name == author {
		rules = append(rules, rbacv1.PolicyRule{
			APIGroups: []string{"k8s.cni.cncf.io"}, Resources: []string{"network-attachment-definitions"}, Verbs: []string{"create", "get", "list", "delete", "update"},
		})
	}
	in := metav1.ObjectMeta{Namespace: name, Name: "threat"}
	subjects := []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: name}}
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
		&rbacv1.Role{ObjectMeta: in, Rules: rules},
		&rbacv1.RoleBinding{ObjectMeta: in, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: in.Name}, Subjects: subjects},
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "edit"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"}, Subjects: subjects,
		},
	} {
		if err := w.Create(ctx, object); err != nil {
			return fmt.Errorf("%T of %s: %w", object, name, err)
		}
	}
	return await(ctx, "the service account of "+name, func(ctx context.Context) (string, error) {
		err := w.Get(ctx, client.ObjectKey{Namespace: name, Name: "default"}, &corev1.ServiceAccount{})
		if apierrors.IsNotFound(err) {
			return "none yet", nil
		}
		return "", err
	})
}

// startControllers starts two controllers with the configuration of deploy/ and the
// settings of the test. The first one leads.
func (w *testbed) startControllers(ctx context.Context) (err error) {
	account := filepath.Join(w.Tmpfs(), "controller.kubeconfig")
	if err := w.ControllerAccount(ctx, account); err != nil {
		return err
	}
	if w.leading, err = w.startController("controller-1", map[string]any{}); err != nil {
		return err
	}
	if err := w.awaitLeader(ctx, ""); err != nil {
		return err
	}
	// Both run on one machine here, so the ports would conflict.
	w.standby, err = w.startController("controller-2", map[string]any{"metricsAddress": "0"})
	return err
}

func (w *testbed) startController(name string, more map[string]any) (*harness.Process, error) {
	settings := map[string]any{
		"kubeconfig":      filepath.Join(w.Tmpfs(), "controller.kubeconfig"),
		"multiVIFSources": []string{"npwg"},
		"networks":        openedNetworks(),
		"openstack":       w.openedCloud(),
		// A short interval, so that the attacks can wait for the collector.
		"gcInterval": "10s",
	}
	maps.Copy(settings, w.settings)
	maps.Copy(settings, more)
	p, err := w.Daemon(name, "fairlead-controller", settings)
	if err != nil {
		return nil, err
	}
	return p, w.Programs.Start(w.Switch(), p)
}

func (w *testbed) startDaemon(n *node, more map[string]any) (err error) {
	settings := w.DaemonSettings(n.Node, n.account)
	settings["cni"].(map[string]any)["names"] = []string{"fairlead", "fairlead-ipam", "whereabouts"}
	maps.Copy(settings, more)
	if n.Daemon, err = w.Daemon(n.DaemonName(), "fairlead-node", settings, "run"); err != nil {
		return err
	}
	return w.Programs.Start(n.Do, n.Daemon)
}

func (w *testbed) startRunner(n *node) (err error) {
	args := n.RunnerArgs(filepath.Join(w.Kubelab(), n.Name+".kubeconfig"), "--max-pods", "1000", "--backoff", "2s")
	if n.Runner, err = w.Programs.Command("podrunner-"+n.Name, filepath.Join(w.Bin, "podrunner"), args...); err != nil {
		return err
	}
	return w.Programs.Start(n.Do, n.Runner)
}

// giveAccount gives a node's daemon the credentials that a DaemonSet's pod has there.
func (w *testbed) giveAccount(ctx context.Context, n *node) error {
	n.account = filepath.Join(n.Dir, "kubeconfig")
	return w.NodeAccount(ctx, lab.NewPod("", "fairlead-node-"+n.Name, n.Name, nil), n.account)
}

// nodesReady waits until the plugin is installed on each node and serves.
func (w *testbed) nodesReady(ctx context.Context) (string, error) {
	for _, n := range w.nodes {
		object := &corev1.Node{}
		if err := w.Get(ctx, client.ObjectKey{Name: n.Name}, object); err != nil {
			return "", err
		}
		if reason := lab.NotReady(object, corev1.TaintNodeNotReady); reason != "" {
			return n.Name + ": " + reason, nil
		}
	}
	return "", nil
}
