package cli

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli/migration"
	"fairlead.dev/fairlead/internal/migrate/multus"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/test/cluster"
)

// installMultus creates the DaemonSet and the ConfigMap of Multus' usual installation, with
// this configuration of its daemon.
func installMultus(t *testing.T, c *cluster.Cluster, daemonConfig string) {
	t.Helper()
	labels := map[string]string{"app": "multus"}
	create(t, c, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "multus-daemon-config"}, Data: map[string]string{"readme": "none", "daemon-config.json": daemonConfig},
	})
	create(t, c, &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "kube-multus-ds"},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					Containers: []corev1.Container{{Name: "kube-multus", Image: "images.example/multus-cni:snapshot-thick", Command: []string{"/usr/src/multus-cni/bin/multus-daemon"}}},
					Volumes: []corev1.Volume{{Name: "multus-daemon-config", VolumeSource: corev1.VolumeSource{
						ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "multus-daemon-config"}},
					}}},
					// No pod of it is made here.
					NodeSelector: map[string]string{"fairlead.dev/test": "nowhere"},
				},
			},
		},
	})
}

// The command reads an installation of Multus, and labels a node when nothing bars it.
func TestMultusOnACluster(t *testing.T) {
	c := cluster.Exclusive(t)
	got := call(t, "migrate", "multus", "--dry-run", "--kubeconfig", c.Kubeconfig)
	if want := "fairlead: nothing of Multus is in this cluster: neither its DaemonSet nor a NetworkAttachmentDefinition"; got.Code != exitError || !strings.HasPrefix(got.Stderr, want) {
		t.Errorf("got %+v", got)
	}
	installMultus(t, c, `{"chrootDir":"/hostroot","multusConfigFile":"auto","socketDir":"/host/run/multus/","namespaceIsolation":true}`)
	c.Network("lan", `{"cniVersion":"1.0.0","type":"macvlan","master":"eth1","ipam":{"type":"fairlead-ipam"}}`)
	broken := c.Network("broken", `{"cniVersion":"1.0.0","type":"macvlan"}`)
	node := c.Node("under-multus")
	create(t, c, &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: node.Name}})
	asks := func(networks string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Annotations = map[string]string{pod.AnnotationNetworks: networks} }
	}
	web := c.Pod("web", node.Name, asks("lan"))
	bad := c.Pod("bad", node.Name, asks("broken"))
	for _, p := range []*corev1.Pod{web, bad} {
		setStatus(t, c, p, func(p *corev1.Pod) {
			p.Status.Phase, p.Status.PodIP, p.Status.PodIPs = corev1.PodRunning, "10.244.0.5", []corev1.PodIP{{IP: "10.244.0.5"}}
		})
	}

	view := askJSON[migration.MultusView](t, c, exitAttention, "migrate", "multus", "--dry-run")
	served := map[string]string{}
	for _, n := range view.Networks {
		served[n.Name] = n.Served
	}
	want := map[string]string{c.Namespace + "/lan": multus.InProcess, c.Namespace + "/broken": multus.No}
	if diff := cmp.Diff(want, served); diff != "" || view.Source != "ConfigMap "+c.Namespace+"/multus-daemon-config" || len(view.Settings) != 2 {
		t.Errorf("%+v (-want +got):\n%s", view, diff)
	}

	label := func() string {
		o := &corev1.Node{}
		if err := c.Client.Get(t.Context(), client.ObjectKey{Name: node.Name}, o); err != nil {
			t.Fatal(err)
		}
		return o.Labels[v1alpha1.LabelAttachedBy]
	}
	switched := askJSON[migration.SwitchView](t, c, exitAttention, "migrate", "multus", "node", node.Name)
	if len(switched.Obstacles) != 2 || switched.Switched || label() != "" {
		t.Errorf("a node that is not cordoned, with a network that is not served: %+v, label %q", switched, label())
	}
	if err := c.Client.Delete(t.Context(), bad); err != nil {
		t.Fatal(err)
	}
	if err := c.Client.Delete(t.Context(), broken); err != nil {
		t.Fatal(err)
	}
	if err := c.Client.Patch(t.Context(), node, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"unschedulable":true}}`))); err != nil {
		t.Fatal(err)
	}
	c.Eventually(t, "the pod to be gone", func(ctx context.Context) error {
		return client.IgnoreNotFound(c.Client.Delete(ctx, bad, client.GracePeriodSeconds(0)))
	})
	askJSON[migration.MultusView](t, c, exitOK, "migrate", "multus", "--dry-run")
	if dry := askJSON[migration.SwitchView](t, c, exitOK, "migrate", "multus", "node", node.Name, "--dry-run"); dry.Switched || label() != "" {
		t.Errorf("a dry run: %+v, label %q", dry, label())
	}
	if done := askJSON[migration.SwitchView](t, c, exitOK, "migrate", "multus", "node", node.Name); !done.Switched || label() != v1alpha1.AttachedByFairlead {
		t.Errorf("%+v, label %q", done, label())
	}
	keepOff(t, c)
	if got := call(t, "migrate", "multus", "node", "nowhere", "--kubeconfig", c.Kubeconfig); got.Code != exitError {
		t.Errorf("a node that is not there: %+v", got)
	}
}

// keepOff patches Multus' DaemonSet as the page of the migration does: it leaves the nodes
// that bear the label.
func keepOff(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	page, err := os.ReadFile("../../docs/operator/migrate-multus.md")
	if err != nil {
		t.Fatal(err)
	}
	patch := regexp.MustCompile("(?m)^    kubectl -n kube-system patch daemonset kube-multus-ds -p '([^']*)'$").FindSubmatch(page)
	if patch == nil {
		t.Fatal("the page does not patch the DaemonSet")
	}
	o := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "kube-multus-ds"}}
	if err := c.Client.Patch(t.Context(), o, client.RawPatch(types.StrategicMergePatchType, patch[1])); err != nil {
		t.Fatal(err)
	}
	want := []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
		{Key: v1alpha1.LabelAttachedBy, Operator: corev1.NodeSelectorOpNotIn, Values: []string{v1alpha1.AttachedByFairlead}},
	}}}
	if diff := cmp.Diff(want, o.Spec.Template.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms); diff != "" {
		t.Errorf("the nodes of the DaemonSet (-want +got):\n%s", diff)
	}
}
