package check

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
)

func nodeNamed(name string, isReady corev1.ConditionStatus, addresses ...string) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: isReady}}
	for _, a := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	return n
}

func networkOf(name string) v1alpha1.NodeNetwork {
	return v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func TestSample(t *testing.T) {
	var nodes []corev1.Node
	var networks []v1alpha1.NodeNetwork
	for i := range 9 {
		name := fmt.Sprintf("node-%d", 8-i)
		nodes = append(nodes, nodeNamed(name, corev1.ConditionTrue))
		networks = append(networks, networkOf(name))
	}
	nodes = append(nodes, nodeNamed("other", corev1.ConditionTrue), nodeNamed("off", corev1.ConditionUnknown))
	networks = append(networks, networkOf("off"))
	for limit, want := range map[int][]string{
		20: {"node-0", "node-1", "node-2", "node-3", "node-4", "node-5", "node-6", "node-7", "node-8"},
		3:  {"node-0", "node-3", "node-6"},
		1:  {"node-0"},
	} {
		places, rows, served := sample(nodes, networks, limit)
		var got []string
		for _, p := range places {
			got = append(got, p.name)
		}
		if diff := cmp.Diff(want, got); diff != "" || served != 10 {
			t.Errorf("at most %d of %d nodes (-want +got):\n%s", limit, served, diff)
		}
		if diff := cmp.Diff([]Row{{Test: testPod, From: "off", Result: NotTried, Detail: "the node is not Ready"}}, rows); diff != "" {
			t.Errorf("rows (-want +got):\n%s", diff)
		}
	}
}

func TestNodeAddresses(t *testing.T) {
	n := nodeNamed("node-1", corev1.ConditionTrue, "192.0.2.1", "192.0.2.2", "no address", "fd00::1")
	n.Status.Addresses = append([]corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "192.0.2.9"}}, n.Status.Addresses...)
	if got := fmt.Sprint(nodeAddresses(&n)); got != "[192.0.2.1 fd00::1]" {
		t.Errorf("addresses %s; want the first internal one of each family", got)
	}
}
