package deploy

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"fairlead.dev/fairlead/internal/config"
	"fairlead.dev/fairlead/test/cluster"
)

// TestChartIsTheBase compares the chart with the kustomize base, and with the components.
func TestChartIsTheBase(t *testing.T) {
	if testing.Short() {
		t.Skip("builds helm")
	}
	for _, tt := range []struct {
		component string
		values    []string
	}{
		{"", nil},
		{"delegation", []string{"--set", "node.delegation=true"}},
		{"openstack", []string{"--set", "openstack.secret=openstack"}},
		{"cleanup", []string{"--set", "node.cleanup=true"}},
		{"ui", []string{"--set", "ui.enabled=true"}},
	} {
		t.Run(tt.component, func(t *testing.T) {
			dir := path(t)
			if tt.component != "" {
				dir = t.TempDir()
				base, err := filepath.Rel(dir, path(t))
				if err != nil {
					t.Fatal(err)
				}
				text := "resources: [" + base + "]\ncomponents: [" + filepath.Join(base, tt.component) + "]\n"
				if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			kustomized, err := cluster.Kustomize(dir)
			if err != nil {
				t.Fatal(err)
			}
			base := asRelease(objectsIn(t, kustomized))
			// A release is made in a namespace that exists.
			delete(base, "Namespace /"+release)
			chart := asRelease(template(t, append(tt.values, "--include-crds")...))
			for name := range maps.Keys(base) {
				if chart[name] == nil {
					t.Errorf("the chart has no %s", name)
				} else if diff := cmp.Diff(base[name].Object, chart[name].Object, volumesInAnyOrder); diff != "" {
					t.Errorf("%s (-base +chart):\n%s", name, diff)
				}
			}
			for name := range maps.Keys(chart) {
				if base[name] == nil {
					t.Errorf("the base has no %s", name)
				}
			}
		})
	}
}

// volumesInAnyOrder compares volumes and mounts without their order: patches add at the end.
var volumesInAnyOrder = cmp.FilterPath(func(p cmp.Path) bool {
	for _, step := range p {
		if index, ok := step.(cmp.MapIndex); ok && (index.Key().String() == "volumes" || index.Key().String() == "volumeMounts") {
			return true
		}
	}
	return false
}, cmpopts.SortSlices(func(a, b any) bool { return key(a) < key(b) }))

// key is an entry of a list as text.
func key(entry any) string {
	raw, err := json.Marshal(entry)
	if err != nil {
		panic(err) // it was YAML
	}
	return string(raw)
}

// asRelease removes what kustomize and Helm do differently so that a change of the
// configuration is rolled out: the hash in a ConfigMap's name, and the annotation of pods.
func asRelease(objects map[string]*unstructured.Unstructured) map[string]*unstructured.Unstructured {
	hash := regexp.MustCompile(`^(fairlead-(?:controller|node)-config)-[a-z0-9]{10}$`)
	out := map[string]*unstructured.Unstructured{}
	for name, o := range objects {
		if m := hash.FindStringSubmatch(o.GetName()); m != nil && o.GetKind() == "ConfigMap" {
			o.SetName(m[1])
			name = "ConfigMap " + o.GetNamespace() + "/" + m[1]
		}
		volumes, _ := at(o.Object, "spec/template/spec/volumes").([]any)
		for _, v := range volumes {
			if configMap, ok := at(v, "configMap").(map[string]any); ok {
				configMap["name"] = hash.ReplaceAllString(configMap["name"].(string), "$1")
			}
		}
		if annotations, ok := at(o.Object, "spec/template/metadata/annotations").(map[string]any); ok {
			delete(annotations, "fairlead.dev/config")
			if len(annotations) == 0 {
				unstructured.RemoveNestedField(o.Object, "spec", "template", "metadata", "annotations")
			}
		}
		out[name] = o
	}
	return out
}

// valueTests are the values of the chart beside the configurations: each changes the field
// that its description names.
var valueTests = []struct{ value, set, object, path, want string }{
	{"image.repository", "images.example/f", deployment, "spec/template/spec/containers/0/image", `"images.example/f:unreleased"`},
	{"image.repository", "images.example/f", daemonSet, "spec/template/spec/containers/0/image", `"images.example/f:unreleased"`},
	{"image.tag", "v9", daemonSet, "spec/template/spec/containers/0/image", `"fairlead:v9"`},
	{"image.digest", "sha256:12", deployment, "spec/template/spec/containers/0/image", `"fairlead@sha256:12"`},
	{"image.pullSecrets", "{mine}", deployment, "spec/template/spec/imagePullSecrets", `[{"name":"mine"}]`},
	{"image.pullSecrets", "{mine}", daemonSet, "spec/template/spec/imagePullSecrets", `[{"name":"mine"}]`},
	{"controller.replicas", "3", deployment, "spec/replicas", `3`},
	{"controller.resources.limits.memory", "3Gi", deployment, "spec/template/spec/containers/0/resources/limits/memory", `"3Gi"`},
	{"controller.nodeSelector.infra", "network", deployment, "spec/template/spec/nodeSelector", `{"infra":"network","kubernetes.io/os":"linux"}`},
	{"controller.tolerations[0].operator", "Exists", deployment, "spec/template/spec/tolerations/3/operator", `"Exists"`},
	{"node.resources.requests.cpu", "7m", daemonSet, "spec/template/spec/containers/0/resources/requests/cpu", `"7m"`},
	{"node.nodeSelector.fairlead", "old", daemonSet, "spec/template/spec/nodeSelector", `{"fairlead":"old","kubernetes.io/os":"linux"}`},
	{"node.delegation", "true", daemonSet, "spec/template/spec/containers/0/securityContext/privileged", `true`},
	{"node.openVSwitch", "true", daemonSet, "spec/template/spec/volumes/6/hostPath/path", `"/run/openvswitch"`},
	{"node.openVSwitch", "true", daemonSet, "spec/template/spec/containers/0/volumeMounts/6/mountPath", `"/run/openvswitch"`},
	{"node.cleanup", "true", daemonSet, "spec/template/spec/initContainers/0/command/1", `"cleanup"`},
	{"defaultPool.ranges", "{10.1.0.0/16}", "IPPool /default", "spec", `{"placement":"PerNode","ranges":["10.1.0.0/16"]}`},
	{"networks.install", "true", "CustomResourceDefinition /network-attachment-definitions.k8s.cni.cncf.io", "metadata/annotations", `{"helm.sh/resource-policy":"keep"}`},
	{"openstack.secret", "mine", deployment, "spec/template/spec/volumes/1/secret/secretName", `"mine"`},
	{"openstack.secret", "mine", deployment, "spec/template/spec/containers/0/volumeMounts/1/mountPath", `"/etc/fairlead/openstack"`},
	{"ui.enabled", "true", "Deployment fairlead-system/fairlead-ui", "spec/template/spec/containers/0/command", `["fairlead","ui","--listen=127.0.0.1:8080","--health=:8081"]`},
	// Fields of the configurations that the manifests follow.
	{"controller.config.metricsAddress", "127.0.0.1:1111", deployment, "spec/template/spec/containers/0/ports/0/containerPort", `1111`},
	{"controller.config.openstack.cloudsFile", "/a/b/clouds.yaml,openstack.secret=s", deployment, "spec/template/spec/containers/0/volumeMounts/1/mountPath", `"/a/b"`},
	{"node.config.metricsAddress", "127.0.0.1:3333", daemonSet, "spec/template/spec/containers/0/ports/0/containerPort", `3333`},
	{"node.config.metricsAddress", "unix:/run/fairlead/m9", daemonSet, "spec/template/spec/containers/0/ports", `null`},
	{"node.config.metricsAddress", "'0'", daemonSet, "spec/template/spec/containers/0/livenessProbe", `null`},
	{"node.config.stateDir", "/run/s", daemonSet, "spec/template/spec/volumes/1/hostPath/path", `"/run/s"`},
	{"node.config.cni.binDir", "/bin/cni", daemonSet, "spec/template/spec/containers/0/volumeMounts/2/mountPath", `"/bin/cni"`},
	{"node.config.cni.confDir", "/etc/c", daemonSet, "spec/template/spec/volumes/3/hostPath/path", `"/etc/c"`},
	{"node.config.podResourcesSocket", "/k/pr/kubelet.sock", daemonSet, "spec/template/spec/volumes/5/hostPath/path", `"/k/pr"`},
	{"node.config.ovsdbSocket", "/o/db.sock,node.openVSwitch=true", daemonSet, "spec/template/spec/volumes/6/hostPath/path", `"/o"`},
}

func TestValues(t *testing.T) {
	if testing.Short() {
		t.Skip("builds helm")
	}
	for _, tt := range valueTests {
		t.Run(tt.value, func(t *testing.T) {
			flag := "--set"
			if strings.HasPrefix(tt.set, "'") {
				flag = "--set-string"
			}
			o := template(t, flag, tt.value+"="+strings.Trim(tt.set, "'"))[tt.object]
			if o == nil {
				t.Fatalf("no %s", tt.object)
			}
			got := key(at(o.Object, tt.path))
			if got != tt.want {
				t.Errorf("%s of %s is %s; must be %s", tt.path, tt.object, got, tt.want)
			}
			if before := template(t)[tt.object]; before != nil && key(at(before.Object, tt.path)) == tt.want {
				t.Errorf("%s of %s is %s by default, too", tt.path, tt.object, tt.want)
			}
		})
	}
	for _, value := range documented(t) {
		if !strings.Contains(value, ".config") && !slices.ContainsFunc(valueTests, func(v struct{ value, set, object, path, want string }) bool {
			return v.value == value || strings.HasPrefix(v.value, value+".") || strings.HasPrefix(v.value, value+"[")
		}) {
			t.Errorf("no test changes the value %s", value)
		}
	}
}

// documented returns the values of the reference page.
func documented(t *testing.T) (values []string) {
	t.Helper()
	page, err := os.ReadFile(path(t, "..", "docs", "operator", "values.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllSubmatch(page, -1) {
		values = append(values, string(m[1]))
	}
	if len(values) < 50 {
		t.Fatalf("the page has %d values", len(values))
	}
	return values
}

// TestConfigurationByValues checks that a field of a configuration in the values is that of
// the program: every field that the programs have by default, as the values.
func TestConfigurationByValues(t *testing.T) {
	if testing.Short() {
		t.Skip("builds helm")
	}
	controller, node := config.DefaultController(), config.DefaultNode()
	controller.Workers, controller.DefaultNetwork.Pools = 41, []string{"a", "b"}
	controller.Networks.Open = []config.Opening{{Bridges: []string{"br-*"}}}
	controller.OpenStack.Fabric = &config.Fabric{Pairs: config.PairsPerBlock, Router: "r"}
	node.VXLAN.VNI, node.Masquerade.Enabled, node.Uplink = 7, false, "eth1"
	node.HostPorts.Reserved = []string{"22/TCP"}
	raw, err := yaml.Marshal(map[string]any{"controller": map[string]any{"config": controller}, "node": map[string]any{"config": node}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	objects := template(t, "--values", file)
	if diff := cmp.Diff(controller, configOf(t, objects, "controller", config.DefaultController())); diff != "" {
		t.Errorf("the controller reads other values (-values +read):\n%s", diff)
	}
	if diff := cmp.Diff(node, configOf(t, objects, "node", config.DefaultNode())); diff != "" {
		t.Errorf("the node reads other values (-values +read):\n%s", diff)
	}
	// The Lease is where the controller has the right to it.
	out, err := helm(t, "template", "fairlead", path(t, "chart"), "--namespace", "networking")
	if err != nil {
		t.Fatal(err)
	}
	text, _ := at(objectsIn(t, out)["ConfigMap networking/fairlead-controller-config"].Object, "data/controller.yaml").(string)
	if !strings.Contains(text, "leaderElection:\n  namespace: networking\n") {
		t.Errorf("in the namespace networking the configuration is\n%s", text)
	}
}

// TestSchema checks the messages for wrong values: each names the path and the accepted
// values.
func TestSchema(t *testing.T) {
	if testing.Short() {
		t.Skip("builds helm")
	}
	for _, tt := range []struct {
		set  string
		want []string
	}{
		{"controler.replicas=2", []string{"additional properties 'controler' not allowed"}},
		{"controller.config.workrs=2", []string{"'/controller/config'", "additional properties 'workrs' not allowed"}},
		{"controller.replicas=0", []string{"'/controller/replicas'", "minimum: got 0, want 1"}},
		{"controller.config.workers=many", []string{"'/controller/config/workers'", "got string, want integer"}},
		{"controller.config.gcInterval=5 minutes", []string{"'/controller/config/gcInterval'", "does not match pattern"}},
		{"controller.config.defaultNetwork.driver=calico", []string{"'/controller/config/defaultNetwork/driver'", "must be one of 'native', 'neutron', 'none'"}},
		{"controller.config.multiVIFSources={multus}", []string{"'/controller/config/multiVIFSources/0'", "must be one of 'npwg', 'additional-subnets', 'sriov'"}},
		{"node.config.encapsulation=gre", []string{"'/node/config/encapsulation'", "must be one of 'none', 'vxlan', 'auto'"}},
		{"node.config.vxlan.vni=16777216", []string{"'/node/config/vxlan/vni'", "maximum: got 1.6777216"}},
		{"defaultPool.ranges=10.0.0.0/8", []string{"'/defaultPool/ranges'", "got string, want array"}},
	} {
		_, err := helm(t, "template", "fairlead", path(t, "chart"), "--set", tt.set)
		if err == nil {
			t.Errorf("%s is accepted", tt.set)
			continue
		}
		for _, want := range tt.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v; must have %q", tt.set, err, want)
			}
		}
	}
}
