package deploy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/nad"
	"fairlead.dev/fairlead/test/cluster"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

// TestInstallation installs Fairlead by docs/operator/install.md, checks the resulting
// objects and pods, tries the rights of the programs' accounts, and removes everything.
func TestInstallation(t *testing.T) {
	c := cluster.Own(t)
	names := []string{"node-a", "node-b", "node-c"}
	for _, name := range names {
		// A node has these taints until pods on it have a network.
		c.Node(name)
		taint(t, c, name, corev1.TaintNodeNotReady, corev1.TaintNodeNetworkUnavailable)
	}
	all, pool := path(t), path(t, "default-pool.yaml")
	c.Kubectl("apply", "--server-side", "-k", all)
	c.Kubectl("wait", "--for=condition=Established", "--timeout=1m", "crd/ippools.fairlead.dev")
	c.Kubectl("apply", "--server-side", "-f", pool)

	t.Run("pods", func(t *testing.T) { wantPods(t, c, names) })
	t.Run("again", func(t *testing.T) {
		before := generations(t, c)
		c.Kubectl("apply", "--server-side", "-k", all)
		if diff := cmp.Diff(before, generations(t, c)); diff != "" {
			t.Errorf("applied a second time, it changed something:\n%s", diff)
		}
	})
	t.Run("overlay", func(t *testing.T) { testOverlay(t, c) })
	t.Run("parts of an overlay", func(t *testing.T) { testOverlayParts(t, c) })
	t.Run("delegation", func(t *testing.T) { testDelegation(t, c) })
	t.Run("openstack", func(t *testing.T) { testOpenStack(t, c) })
	t.Run("programs", func(t *testing.T) { testPrograms(t, c) })
	t.Run("rights of a node", func(t *testing.T) { testNodeRights(t, c) })
	t.Run("rights of the controller", func(t *testing.T) { testControllerRights(t, c) })
	t.Run("queue of the Lease", func(t *testing.T) { testLeaseFlow(t, c) })
	t.Run("live picture", func(t *testing.T) { testUI(t, c) })
	t.Run("rights in another namespace", func(t *testing.T) {
		testOtherNamespace(t, c)
		c.Kubectl("apply", "--server-side", "-k", all)
	})
	t.Run("networks", func(t *testing.T) { testNetworks(t, c) })
	t.Run("objects of the controller", func(t *testing.T) { testObjectsByHand(t, c) })
	// This comes last, because it creates objects.
	t.Run("controller", func(t *testing.T) { testController(t, c) })

	c.Kubectl("delete", "-f", pool)
	c.Kubectl("delete", "--namespace", cluster.AccountNamespace, "deployment,daemonset", "--all")
	// There are no kubelets, without which no pod ends.
	c.Kubectl("delete", "--namespace", cluster.AccountNamespace, "pod", "--all", "--force", "--grace-period=0")
	c.Kubectl("delete", "-k", all, "--ignore-not-found")
	wantNothing(t, c)
}

// testNetworks installs the kind of further networks, twice, and writes a network.
func testNetworks(t *testing.T, c *cluster.Cluster) {
	file := path(t, "networks.yaml")
	for range 2 {
		c.Kubectl("apply", "--server-side", "-f", file)
	}
	c.Kubectl("wait", "--for=condition=Established", "--timeout=1m", "crd/network-attachment-definitions.k8s.cni.cncf.io")
	o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"config": `{"type":"macvlan","master":"eth1"}`}}}
	o.SetGroupVersionKind(nad.Kind)
	o.SetNamespace("default")
	o.SetName("storage")
	wrong := o.DeepCopy()
	wrong.Object["spec"] = map[string]any{"config": int64(7)}
	if err := c.Client.Create(t.Context(), wrong); !apierrors.IsInvalid(err) {
		t.Errorf("a configuration that is a number: %v", err)
	}
	if err := c.Client.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	got := o.DeepCopy()
	if err := c.Client.Get(t.Context(), client.ObjectKeyFromObject(o), got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(o.Object["spec"], got.Object["spec"]); diff != "" {
		t.Errorf("the network is stored differently (-want +got):\n%s", diff)
	}
	c.Kubectl("delete", "-f", file)
}

// generations returns the generation of each object, which counts the changes of its
// spec.
func generations(t *testing.T, c *cluster.Cluster) map[string]int64 {
	t.Helper()
	var deployments appsv1.DeploymentList
	var sets appsv1.DaemonSetList
	var policies admissionv1.ValidatingAdmissionPolicyList
	if err := errors.Join(c.Client.List(t.Context(), &deployments), c.Client.List(t.Context(), &sets), c.Client.List(t.Context(), &policies)); err != nil {
		t.Fatal(err)
	}
	out := map[string]int64{}
	for _, o := range deployments.Items {
		out["Deployment "+o.Name] = o.Generation
	}
	for _, o := range sets.Items {
		out["DaemonSet "+o.Name] = o.Generation
	}
	for _, o := range policies.Items {
		out["ValidatingAdmissionPolicy "+o.Name] = o.Generation
	}
	if len(out) != 5 {
		t.Errorf("generations of %v; must be of five objects", out)
	}
	return out
}

// path returns the path of a file or folder in deploy/.
func path(t *testing.T, elem ...string) string {
	t.Helper()
	p, err := cluster.Deploy(elem...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func taint(t *testing.T, c *cluster.Cluster, node string, keys ...string) {
	t.Helper()
	n := &corev1.Node{}
	if err := c.Client.Get(t.Context(), client.ObjectKey{Name: node}, n); err != nil {
		t.Fatal(err)
	}
	before := n.DeepCopy()
	for _, key := range keys {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
	}
	if err := c.Client.Patch(t.Context(), n, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
}

// wantPods waits until the pods are admitted and bound, although no node has a network:
// the daemon on every node, the controller on two.
func wantPods(t *testing.T, c *cluster.Cluster, nodes []string) {
	c.Eventually(t, "the pods to be bound", func(ctx context.Context) error {
		var pods corev1.PodList
		if err := c.Client.List(ctx, &pods, client.InNamespace(cluster.AccountNamespace)); err != nil {
			return err
		}
		on := map[string]map[string]int{}
		for _, p := range pods.Items {
			app := p.Labels["app.kubernetes.io/name"]
			if on[app] == nil {
				on[app] = map[string]int{}
			}
			if p.Spec.NodeName != "" {
				on[app][p.Spec.NodeName]++
			}
		}
		if len(on["fairlead-controller"]) != 2 || len(on["fairlead-node"]) != len(nodes) {
			return fmt.Errorf("pods by program and node: %v", on)
		}
		for app, counts := range on {
			for node, n := range counts {
				if n != 1 {
					return fmt.Errorf("%d pods of %s are on %s", n, app, node)
				}
			}
		}
		return nil
	})
}

// wantNothing checks that no object of Fairlead is left in the cluster.
func wantNothing(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	var roles rbacv1.ClusterRoleList
	var bindings rbacv1.ClusterRoleBindingList
	if err := errors.Join(c.Client.List(t.Context(), &roles), c.Client.List(t.Context(), &bindings)); err != nil {
		t.Fatal(err)
	}
	for _, r := range roles.Items {
		if strings.Contains(r.Name, "fairlead") {
			t.Errorf("ClusterRole %s is left", r.Name)
		}
	}
	for _, b := range bindings.Items {
		if strings.Contains(b.Name, "fairlead") {
			t.Errorf("ClusterRoleBinding %s is left", b.Name)
		}
	}
	crds, err := v1alpha1.CRDs()
	if err != nil {
		t.Fatal(err)
	}
	for _, crd := range crds {
		if err := c.Client.Get(t.Context(), client.ObjectKeyFromObject(crd), crd.DeepCopy()); !apierrors.IsNotFound(err) {
			t.Errorf("CRD %s is left: %v", crd.Name, err)
		}
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: cluster.AccountNamespace}}
	if err := c.Client.Get(t.Context(), client.ObjectKeyFromObject(namespace), namespace); !apierrors.IsNotFound(err) {
		t.Errorf("namespace %s is left: %v", namespace.Name, err)
	}
	var sets appsv1.DaemonSetList
	if err := c.Client.List(t.Context(), &sets); err != nil || len(sets.Items) > 0 {
		t.Errorf("%d DaemonSets are left, %v", len(sets.Items), err)
	}
}
