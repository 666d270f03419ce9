package migration

import (
	"bytes"
	"os"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/internal/cli/output"
	"fairlead.dev/fairlead/internal/migrate/multus"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/test/golden"
)

// underMultus is a cluster whose networks Multus serves. trouble adds what Fairlead does not
// serve.
func underMultus(trouble bool) multus.State {
	s := multus.State{
		Own:    "fairlead-system",
		Config: &multus.Config{Source: "ConfigMap kube-system/multus-daemon-config", ConfigFile: "auto", ReadinessIndicatorFile: "/run/flannel/subnet.env"},
		Networks: []multus.Definition{
			{Namespace: "shop", Name: "storage", Config: `{"cniVersion":"1.0.0","type":"macvlan","master":"bond0.7","ipam":{"type":"fairlead-ipam","pools":["storage"]}}`},
			{Namespace: "shop", Name: "lan", Config: `{"cniVersion":"1.0.0","plugins":[{"type":"bridge","bridge":"br-shop","ipam":{"type":"host-local","subnet":"10.7.0.0/24"}},{"type":"tuning"}]}`},
		},
		Pods: []corev1.Pod{
			podUnderMultus("cart-0", "storage,lan", `[{"name":"shop/lan","interface":"net2","ips":["10.7.0.9"]}]`),
			podUnderMultus("cart-1", "storage", ""),
		},
	}
	if trouble {
		s.Config.NamespaceIsolation, s.Config.DefaultNetworks = true, []string{"kube-system/monitoring"}
		s.Networks = append(s.Networks, multus.Definition{Namespace: "pay", Name: "fast", Config: `{"cniVersion":"1.0.0","type":"ipvlan","master":"eth1","linkInContainer":true}`})
		s.Pods = append(s.Pods, podUnderMultus("web-0", `[{"name":"storage","bandwidth":{"ingressRate":1000}}]`, ""))
	}
	return s
}

func podUnderMultus(name, networks, status string) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Annotations: map[string]string{pod.AnnotationNetworks: networks, pod.AnnotationNetworkStatus: status}},
		Spec:       corev1.PodSpec{NodeName: "node-1"},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.244.0.5"}}},
	}
}

// multusOutputs returns the outputs of `migrate multus`, by name of the golden file.
func multusOutputs(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for name, s := range map[string]multus.State{
		"multus": underMultus(false), "multus-trouble": underMultus(true), "multus-noconfig": {Networks: underMultus(false).Networks[:1]},
	} {
		plan, err := multus.Make(s)
		if err != nil {
			t.Fatal(err)
		}
		view := buildMultus(s, plan)
		out[name+".txt"] = multusText(view)
		if name == "multus-noconfig" {
			continue
		}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Spec: corev1.NodeSpec{Unschedulable: name == "multus"}}
		switched := buildSwitch("node-1", plan.Switch(s, node, true), false)
		out[name+"-node.txt"] = switchText(switched)
		var b bytes.Buffer
		format := output.JSONFormat
		if err := format.Write(&b, view, nil); err != nil {
			t.Fatal(err)
		}
		if err := format.Write(&b, switched, nil); err != nil {
			t.Fatal(err)
		}
		out[name+".json"] = b.String()
		if name == "multus" {
			out[name+"-node-dry.txt"] = switchText(buildSwitch("node-1", plan.Switch(s, node, true), true))
		}
	}
	return out
}

func TestOutputs(t *testing.T) {
	for name, got := range multusOutputs(t) {
		t.Run(name, func(t *testing.T) { golden.Equal(t, name, got) })
	}
}

// TestMigrationShowsRealOutput compares every example on the page of the migration with the
// command's output.
func TestMigrationShowsRealOutput(t *testing.T) {
	const path = "../../../docs/operator/migrate-multus.md"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for command, file := range map[string]string{
		"fairlead migrate multus --dry-run":   "multus.txt",
		"fairlead migrate multus node node-1": "multus-node.txt",
	} {
		want[command] = multusOutputs(t)[file]
	}
	got := map[string]string{}
	for _, e := range regexp.MustCompile("(?ms)^```console\n\\$ ([^\n]*)\n(.*?)^```$").FindAllStringSubmatch(string(page), -1) {
		got[e[1]] = e[2]
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-printed +shown):\n%s", path, diff)
	}
}
