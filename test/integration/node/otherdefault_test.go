package node

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli"
)

// The default network is made by another plugin, first with Fairlead's addresses and then
// without. In the second case only pods with further networks have a record.
func TestDefaultNetworkOfAnotherPlugin(t *testing.T) {
	w := newSystem(t, npwg+"\ndefaultNetwork: {driver: native, binding: addressOnly, pools: [default]}", "fairlead-ipam")
	w.pool(t, "default", func(s *v1alpha1.IPPoolSpec) {
		s.Ranges, s.Gateways = []string{"10.9.0.0/24"}, []string{"10.9.0.1"}
		s.NetworkNamespaceSelector = &metav1.LabelSelector{} // the network blue is on the same bridge
	})
	w.networks[""] = `{"cniVersion":"1.1.0","name":"cluster","plugins":[{"type":"bridge","bridge":"br-blue","ipam":{"type":"fairlead-ipam"}}]}`
	w.network("blue", `{"cniVersion":"1.0.0","type":"bridge","bridge":"br-blue","ipam":{"type":"fairlead-ipam"}}`)
	w.joinBridges(t)
	before := [][]string{w.nodes[0].state(t).Links, w.nodes[1].state(t).Links}
	t.Run("addressOnly", w.defaultByBridge)
	w.killController(t)
	text, err := os.ReadFile(w.config)
	if err == nil {
		err = os.WriteFile(w.config, []byte(strings.Replace(string(text), "driver: native", "driver: none", 1)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	w.startController()
	t.Run("none", w.noDefault)
	w.wantTaken(t)
	w.audit(t)
	for i, n := range w.nodes {
		w.wantLinks(t, n, before[i])
	}
}

func (w *system) defaultByBridge(t *testing.T) {
	eth0 := delegate{ifName: "eth0"}
	var pods []*labPod
	for i, n := range w.nodes {
		if _, err := os.Stat(n.conflist()); err == nil {
			t.Errorf("%s announces a network of its own", n.name)
		}
		p := n.pod(t, []string{"one", "two"}[i])
		w.add(t, n, p, eth0)
		pods = append(pods, p)
	}
	w.reaches(t, pods[0], pods[1], address(w.record(t, pods[1])["eth0"]))
	w.wantTaken(t, "one", "two")
	for i, p := range pods {
		w.deletePod(t, p)
		w.del(t, w.nodes[i], p, eth0)
	}
	w.wantTaken(t)
}

// needsNothing waits until `fairlead explain` reports that a pod needs no network of Fairlead.
func (w *system) needsNothing(t *testing.T, p *labPod) {
	t.Helper()
	got := "nothing"
	w.cluster.Eventually(t, "the command to report that the pod needs nothing", func(ctx context.Context) error {
		var out bytes.Buffer
		program := cli.New("fairlead", &out, &out) //nolint:contextcheck // its commands get the context from Run
		program.Run(ctx, []string{"explain", "pod", w.cluster.Namespace + "/" + p.name, "--kubeconfig", w.cluster.Kubeconfig})
		if ctx.Err() == nil {
			got = out.String()
		}
		if !strings.Contains(got, "waits for nothing: no network of it is Fairlead's") {
			return fmt.Errorf("it prints:\n%s", got)
		}
		return nil
	})
}

func (w *system) noDefault(t *testing.T) {
	n, net1 := w.nodes[0], delegate{network: "blue", ifName: "net1"}
	plain := n.pod(t, "plain")
	p := n.pod(t, "further", onNetworks("blue"))
	w.add(t, n, p, net1)
	w.wantTaken(t, "further")
	record := w.record(t, p)
	if len(record) != 1 {
		t.Errorf("interfaces %+v", record)
	}
	w.needsNothing(t, plain)
	w.deletePod(t, p)
	w.deletePod(t, plain)
	w.del(t, n, p, net1)
	w.wantPodEvent(t, p, "IPAddressGarbageCollected", address(record["net1"]), w.cluster.Namespace+"/blue")
}
