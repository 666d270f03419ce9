package cli

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/internal/cli/migration"
	"fairlead.dev/fairlead/internal/openstack/cloud"
	"fairlead.dev/fairlead/internal/openstack/cloud/cloudtest"
	"fairlead.dev/fairlead/test/cluster"
)

// installKuryr creates the kind of KuryrPorts, which has no status subresource, and the
// Deployment and the ConfigMap of Kuryr's controller.
func installKuryr(t *testing.T, c *cluster.Cluster, conf string) schema.GroupVersionKind {
	t.Helper()
	kind := schema.GroupVersionKind{Group: "openstack.org", Version: "v1", Kind: "KuryrPort"}
	create(t, c, &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{
			Name: "kuryrports.openstack.org", Annotations: map[string]string{"api-approved.kubernetes.io": "unapproved, for a test"},
		},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: kind.Group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Kind: kind.Kind, ListKind: "KuryrPortList", Plural: "kuryrports", Singular: "kuryrport"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: kind.Version, Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: new(true)}},
			}},
		},
	})
	c.Eventually(t, "the kind of KuryrPorts", func(ctx context.Context) error {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(kind)
		return c.Client.List(ctx, list)
	})
	create(t, c, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "kuryr-config"}, Data: map[string]string{"kuryr.conf": conf}})
	labels := map[string]string{"name": "kuryr-controller"}
	create(t, c, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "kuryr-controller"},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(0)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "controller", Image: "images.example/kuryr/controller"}},
				Volumes: []corev1.Volume{{Name: "config-volume", VolumeSource: corev1.VolumeSource{
					ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "kuryr-config"}},
				}}},
			}},
		},
	})
	return kind
}

// The command reads an installation of Kuryr, also if only some of its kinds are there.
func TestKuryrOnACluster(t *testing.T) {
	c := cluster.Exclusive(t)
	got := call(t, "migrate", "kuryr", "--dry-run", "--kubeconfig", c.Kubeconfig)
	if want := "fairlead: nothing of Kuryr is in this cluster: neither an object of openstack.org/v1 nor its Deployment"; got.Code != exitError || !strings.HasPrefix(got.Stderr, want) {
		t.Errorf("got %+v", got)
	}
	kind := installKuryr(t, c, "[neutron_defaults]\nresource_tags = east\n")
	web := c.Pod("web", "node-1")
	s := cloudtest.New(t)
	network, _ := s.AddNetwork(t, "pods", "10.8.0.0/24")
	id := s.Add(t, "ports", cloudtest.AdminProject, cloudtest.Object{
		"name": "web", "network_id": network, "device_owner": "compute:kuryr", "binding:host_id": "node-1", "fixed_ips": []any{map[string]any{"ip_address": "10.8.0.5"}},
	})
	for name, status := range map[string]any{
		"web": map[string]any{"vifs": map[string]any{"eth0": map[string]any{"vif": map[string]any{
			"versioned_object.name": "VIFOpenVSwitch", "versioned_object.data": map[string]any{
				"id": id, "network": map[string]any{"versioned_object.data": map[string]any{
					"id": network, "subnets": map[string]any{"versioned_object.data": map[string]any{"objects": []any{
						map[string]any{"versioned_object.data": map[string]any{"cidr": "10.8.0.0/24", "ips": map[string]any{"versioned_object.data": map[string]any{"objects": []any{
							map[string]any{"versioned_object.data": map[string]any{"address": "10.8.0.5"}},
						}}}}},
					}}},
				}},
			},
		}}}},
		"poison": "a text",
	} {
		o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"podUid": string(web.UID), "podNodeName": "node-1"}, "status": status}}
		o.SetGroupVersionKind(kind)
		o.SetNamespace(c.Namespace)
		o.SetName(name)
		create(t, c, o)
	}
	view := askJSON[migration.KuryrView](t, c, exitAttention, "migrate", "kuryr", "--dry-run")
	outcomes := map[string]string{}
	for _, p := range view.Ports {
		outcomes[p.Pod] = string(p.Outcome) + " " + strings.Join(p.Addresses, ",")
	}
	want := map[string]string{c.Namespace + "/web": "Adoptable 10.8.0.5", c.Namespace + "/poison": "Left "}
	if diff := cmp.Diff(want, outcomes); diff != "" || view.Source != "ConfigMap "+c.Namespace+"/kuryr-config" || !strings.Contains(view.Configuration, "cluster: east") {
		t.Errorf("source %q, configuration\n%s\nports (-want +got):\n%s", view.Source, view.Configuration, diff)
	}
	seen := func() (outcome string, view migration.KuryrView) {
		view = askJSON[migration.KuryrView](t, c, exitAttention, "migrate", "kuryr", "--dry-run", "--cloud", cloudtest.Admin, "--clouds-file", s.File)
		for _, p := range view.Ports {
			if p.Interface == "eth0" {
				outcome = string(p.Outcome) + " " + p.Cloud
			}
		}
		return outcome, view
	}
	s.Add(t, "ports", cloudtest.AdminProject, cloudtest.Object{"name": "lost", "network_id": network, "device_owner": "compute:kuryr"})
	outcome, view := seen()
	if v := view.OpenStack; outcome != "Adoptable DOWN, bound on node-1" || v == nil || v.Project != cloudtest.AdminProject || len(v.Foreign) != 1 || v.Foreign[0].Name != "lost" {
		t.Errorf("outcome %q, OpenStack: %+v", outcome, v)
	}
	openstack, err := cloud.New(t.Context(), cloud.Config{File: s.File, Cloud: cloudtest.Admin, Cluster: "test"})
	if err == nil {
		err = openstack.DeletePort(t.Context(), id)
	}
	if err != nil {
		t.Fatal(err)
	}
	if outcome, _ = seen(); outcome != "Missing " {
		t.Errorf("without the port: %q", outcome)
	}
	s.Inject(func(_, path string) cloudtest.Fault { return cloudtest.Fault{LoseRequest: path == "/ports"} })
	got = call(t, "migrate", "kuryr", "--dry-run", "--kubeconfig", c.Kubeconfig, "--cloud", cloudtest.Admin, "--clouds-file", s.File)
	if got.Code != exitError || !strings.HasPrefix(got.Stderr, "fairlead: OpenStack could not be read") {
		t.Errorf("without an answer of OpenStack: %+v", got)
	}
	s.Inject(nil)
	for _, args := range [][]string{{"--clouds-file", s.File}, {"--cloud", "none", "--clouds-file", s.File}} {
		if got := call(t, append([]string{"migrate", "kuryr", "--dry-run", "--kubeconfig", c.Kubeconfig}, args...)...); got.Code != exitError || !strings.Contains(got.Stderr, "--cloud") {
			t.Errorf("%v: %+v", args, got)
		}
	}
	if got := call(t, "migrate", "kuryr", "--kubeconfig", c.Kubeconfig); got.Code != exitError || !strings.Contains(got.Stderr, "give --dry-run") {
		t.Errorf("without --dry-run: %+v", got)
	}
	if got := call(t, "gc", "--kubeconfig", c.Kubeconfig); got.Code != exitError || !strings.Contains(got.Stderr, "give --dry-run") {
		t.Errorf("gc without --dry-run: %+v", got)
	}
	askJSON[struct{ OK bool }](t, c, exitOK, "gc", "--dry-run")
	if err := c.Client.Delete(t.Context(), web, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
}
